//! Images under running clones.

mod common;

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use common::{Place, is_filled, publish};
use farfork_pool::{Finding, ImageSlot, PinFile, Pool, PoolError, failpoint};
use farfork_types::CHUNK_BYTES;

#[test]
fn a_removed_image_stays_while_it_is_pinned() {
    let place = Place::new();
    let pool = place.pool(8);
    let (one, two) = (pool.register_node("one").unwrap(), pool.register_node("two").unwrap());
    assert_eq!(pool.register_node("one").unwrap(), one);
    let cid = publish(&pool, 3, 7);
    let extents = pool.find(cid).unwrap().extents;
    pool.pin(one, cid).unwrap();
    pool.pin(two, cid).unwrap();
    pool.remove(cid).unwrap();
    assert!(matches!(pool.pin(two, cid), Err(PoolError::NoImage { .. })));

    let mut writer = pool.begin().unwrap();
    assert!(matches!(writer.allocate(4), Err(PoolError::Full { .. })));
    let fill = writer.allocate(3).unwrap()[0];
    writer.bytes_mut(fill).fill(9);
    assert!(is_filled(&pool, &extents, 7));

    pool.unpin(one, cid).unwrap();
    pool.check().unwrap();
    assert!(is_filled(&pool, &extents, 7));
    pool.unpin(two, cid).unwrap();
    assert_eq!(writer.allocate(3).unwrap(), extents);
    assert!(is_filled(&pool, &extents, 0));
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_pin_of_one_image_does_not_keep_the_next_one_in_its_slot() {
    let place = Place::new();
    let pool = place.pool(8);
    let node = pool.register_node("n").unwrap();
    let first = publish(&pool, 1, 1);
    let slot = pool.find(first).unwrap().slot;
    pool.pin(node, first).unwrap();
    pool.unpin(node, first).unwrap();
    pool.remove(first).unwrap();
    let second = publish(&pool, 1, 2);
    assert_eq!(pool.find(second).unwrap().slot, slot);
    assert!(matches!(pool.unpin(node, first), Err(PoolError::NoImage { .. })));
    pool.remove(second).unwrap();
    assert_eq!(pool.info().unwrap().used_bytes, 0);
}

#[test]
fn the_clones_of_a_dead_agent_keep_their_image_until_the_last_is_gone() {
    let place = Place::new();
    let pool = place.pool(8);
    let node = pool.register_node("n").unwrap();
    let cid = publish(&pool, 3, 7);
    let image = pool.find(cid).unwrap();
    let pins = PinFile::open(&place.dir().join("pins")).unwrap();
    pool.pin(node, cid).unwrap();
    let (first, second) = (start_clone(&pins, image.slot), start_clone(&pins, image.slot));
    pool.remove(cid).unwrap();
    drop(first);
    assert!(pins.is_held(image.slot).unwrap());
    assert_eq!(pool.reconcile(node, &pins).unwrap(), []);
    assert!(is_filled(&pool, &image.extents, 7));

    drop(second);
    assert!(!pins.is_held(image.slot).unwrap());
    assert_eq!(pool.info().unwrap().used_bytes, 3 * CHUNK_BYTES);
    assert_eq!(pool.reconcile(node, &pins).unwrap(), [image.slot]);
    assert_eq!(pool.info().unwrap().used_bytes, 0);
}

/// A process that holds an image; killed when dropped.
struct Clone(Child);

/// The clone inherits the description as its standard input, and lives on when we let go of it.
fn start_clone(pins: &PinFile, slot: ImageSlot) -> Clone {
    let hold = pins.hold(slot).unwrap();
    let mut process = Command::new("sh")
        .args(["-c", "echo up; exec sleep 600"])
        .stdin(Stdio::from(hold))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    Clone(process)
}

impl Drop for Clone {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn pin_and_remove_race_and_one_of_them_wins() {
    let place = Place::new();
    let pool = place.pool(8);
    let node = pool.register_node("n").unwrap();
    for round in 0..400 {
        let cid = publish(&pool, 1, 7);
        let extents = pool.find(cid).unwrap().extents;
        let pinned = std::thread::scope(|scope| {
            let pin = scope.spawn(|| pool.pin(node, cid).is_ok());
            pool.remove(cid).unwrap();
            pin.join().unwrap()
        });
        assert_eq!(is_filled(&pool, &extents, 7), pinned, "round {round}");
        if pinned {
            pool.unpin(node, cid).unwrap();
        }
        assert_eq!(pool.info().unwrap().used_bytes, 0, "round {round}");
    }
}

#[test]
fn a_removal_at_any_step_of_a_pin_refuses_the_pin_and_gives_back() {
    let place = Place::new();
    let pool = place.pool(8);
    let node = pool.register_node("n").unwrap();
    for step in 0.. {
        let cid = publish(&pool, 1, 7);
        let path = place.path();
        let removal = move || Pool::open(&path).unwrap().remove(cid).unwrap();
        failpoint::happen_after(step, Some(Box::new(removal)));
        let pinned = pool.pin(node, cid);
        if failpoint::happen_after(0, None) {
            assert_eq!((step, pinned.is_ok()), (2, true));
            pool.unpin(node, cid).unwrap();
            return;
        }
        assert!(matches!(pinned, Err(PoolError::NoImage { .. })), "step {step}");
        assert_eq!(pool.info().unwrap().used_bytes, 0, "step {step}");
        assert_eq!(pool.check().unwrap().findings, [], "step {step}");
    }
}

#[test]
fn the_word_of_an_image_that_is_gone_pins_nothing() {
    let place = Place::new();
    let pool = place.pool(8);
    let node = pool.register_node("n").unwrap();
    pool.remove(publish(&pool, 1, 7)).unwrap();
    let cid = publish(&pool, 1, 7);
    let slot = pool.find(cid).unwrap().slot;
    // An agent that was killed between its word and its second look, when the first image was
    // there, left this.
    let word = 0x13000 + (node.index() * farfork_pool::MAX_IMAGES + slot.index()) as u64 * 8;
    let file = OpenOptions::new().write(true).open(place.path()).unwrap();
    file.write_all_at(&1u64.to_le_bytes(), word).unwrap();
    let report = pool.check().unwrap();
    assert_eq!(report.findings, [Finding::StalePin { node, slot }]);
    assert!(report.is_sound());
    pool.remove(cid).unwrap();
    assert_eq!(pool.info().unwrap().used_bytes, 0);
    let pins = PinFile::open(&place.dir().join("pins")).unwrap();
    assert_eq!(pool.reconcile(node, &pins).unwrap(), [slot]);
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_node_that_is_forgotten_holds_nothing() {
    let place = Place::new();
    let pool = place.pool(8);
    let node = pool.register_node("gone").unwrap();
    let cid = publish(&pool, 2, 7);
    pool.pin(node, cid).unwrap();
    pool.remove(cid).unwrap();
    pool.forget_node(node).unwrap();
    let info = pool.info().unwrap();
    assert_eq!((info.used_bytes, info.nodes), (0, vec![]));
    for name in ["", &"n".repeat(200)] {
        assert!(matches!(pool.register_node(name), Err(PoolError::BadNodeName { .. })));
    }
    for number in 0..farfork_pool::MAX_NODES {
        pool.register_node(&format!("node-{number}")).unwrap();
    }
    assert!(matches!(pool.register_node("more"), Err(PoolError::TooManyNodes { .. })));
}
