//! Images under running clones.

mod common;

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use common::{Place, is_filled, pins, publish, register};
use farfork_pool::{Finding, Forgotten, ImageSlot, PinFile, Pool, PoolError, failpoint};
use farfork_types::CHUNK_BYTES;

#[test]
fn a_removed_image_stays_while_it_is_pinned() {
    let place = Place::new();
    let pool = place.pool(8);
    let rows = (register(&pool, "one"), register(&pool, "two"));
    let (one, two) = (rows.0.slot(), rows.1.slot());
    drop(rows);
    assert_eq!(register(&pool, "one").slot(), one);
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
    let row = register(&pool, "n");
    let node = row.slot();
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
    let row = register(&pool, "n");
    let node = row.slot();
    let cid = publish(&pool, 3, 7);
    let image = pool.find(cid).unwrap();
    let pins = pins(&pool, "n");
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
    let row = register(&pool, "n");
    let node = row.slot();
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
    let row = register(&pool, "n");
    let node = row.slot();
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
    let row = register(&pool, "n");
    let node = row.slot();
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
    let pins = pins(&pool, "n");
    assert_eq!(pool.reconcile(node, &pins).unwrap(), [slot]);
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn nodes_of_one_name_do_not_take_each_other_for_dead() {
    let place = Place::new();
    let pool = place.pool(8);
    let cid = publish(&pool, 3, 7);
    let image = pool.find(cid).unwrap();
    let [here, there] = ["here", "there"].map(|directory| pins(&pool, directory));
    let first = pool.register_node("local", &here).unwrap();
    pool.pin(first.slot(), cid).unwrap();
    let clone = start_clone(&here, image.slot);
    pool.remove(cid).unwrap();
    let slot = first.slot();
    let mut first = Some(first);
    for agents in ["both", "one of two"] {
        let second = pool.register_node("local", &there).unwrap();
        assert_ne!(second.slot(), slot, "{agents}");
        assert_eq!(pool.reconcile(second.slot(), &there).unwrap(), [], "{agents}");
        assert!(is_filled(&pool, &image.extents, 7), "{agents}");
        first.take(); // is killed, and its clone lives
    }
    let again = pool.register_node("local", &here).unwrap();
    assert_eq!(again.slot(), slot);
    drop(clone);
    assert_eq!(pool.reconcile(slot, &here).unwrap(), [image.slot]);
    assert_eq!(pool.info().unwrap().used_bytes, 0);
    assert_eq!(pool.info().unwrap().nodes, ["local", "local"]);
}

#[test]
fn a_row_has_one_owner_at_a_time() {
    let place = Place::new();
    let pool = place.pool(8);
    let row = register(&pool, "n");
    let again = pins(&pool, "n");
    assert!(pool.row_of("n", &again).unwrap().is_none());
    assert!(matches!(pool.register_node("n", &again), Err(PoolError::NodeLives { .. })));
    drop(row);
    assert!(pool.row_of("n", &again).unwrap().is_some());
    assert!(pool.row_of("m", &again).unwrap().is_none());
}

#[test]
fn a_node_that_is_forgotten_holds_nothing() {
    let place = Place::new();
    let pool = place.pool(8);
    let row = register(&pool, "gone");
    let cid = publish(&pool, 2, 7);
    let image = pool.find(cid).unwrap();
    pool.pin(row.slot(), cid).unwrap();
    let holders = pins(&pool, "gone");
    let clone = start_clone(&holders, image.slot);
    pool.remove(cid).unwrap();
    let lives = |holders| {
        assert!(matches!(pool.forget_node("gone", holders), Err(PoolError::NodeLives { .. })));
        assert!(is_filled(&pool, &image.extents, 7));
    };
    lives(Some(&holders));
    lives(None);
    drop(row);
    lives(Some(&holders));
    if place.mounted {
        // On other file systems the list of locks may have another number for it.
        lives(None);
    }
    assert!(matches!(pool.forget_node("other", None), Err(PoolError::NoNode { .. })));
    drop(clone);
    let living = pool.register_node("gone", &pins(&pool, "elsewhere")).unwrap();
    let done = pool.forget_node("gone", Some(&holders)).unwrap();
    assert_eq!(done, Forgotten { rows: 1, pins: 1, living: 1 });
    assert_eq!(pool.info().unwrap().used_bytes, 0);
    drop(living);
    assert_eq!(pool.forget_node("gone", None).unwrap(), Forgotten { rows: 1, pins: 0, living: 0 });
    assert_eq!(pool.info().unwrap().nodes, [""; 0]);
}

#[test]
fn a_full_table_has_room_where_nothing_is_pinned_by_anybody() {
    let place = Place::new();
    let pool = place.pool(8);
    let cid = publish(&pool, 1, 7);
    let holders = pins(&pool, "n");
    for name in ["", &"n".repeat(200)] {
        let error = pool.register_node(name, &holders).unwrap_err();
        assert!(matches!(error, PoolError::BadNodeName { .. }));
    }
    let name = |number: usize| format!("node-{number}");
    let mut rows: Vec<_> =
        (0..farfork_pool::MAX_NODES).map(|n| register(&pool, &name(n))).collect();
    let full = |when: &str| {
        let error = pool.register_node("more", &holders).unwrap_err();
        assert!(matches!(error, PoolError::TooManyNodes { .. }), "{when}: {error}");
    };
    full("all live");
    let pinning = rows.pop().unwrap();
    pool.pin(pinning.slot(), cid).unwrap();
    drop(pinning);
    full("one has ended and pins an image");
    let ended = rows.pop().unwrap().slot();
    assert_eq!(pool.register_node("more", &holders).unwrap().slot(), ended);
    assert!(pool.find(cid).is_ok());
}

/// Pins outlive the clones of a machine that was started again, and the pin file that listed them.
#[test]
fn a_former_life_of_the_machine_pins_nothing() {
    let place = Place::new();
    let pool = place.pool(8);
    let cid = publish(&pool, 2, 7);
    for (name, machine, is_former) in [("a", None, true), ("b", Some(1u64), false)] {
        let row = register(&pool, name);
        pool.pin(row.slot(), cid).unwrap();
        let at = 0x1000 + 128 * row.slot().index() as u64;
        drop(row);
        let file = OpenOptions::new().read(true).write(true).open(place.path()).unwrap();
        let mut record = [0; 128];
        file.read_exact_at(&mut record, at).unwrap();
        record[16] ^= 1; // the boot
        if let Some(machine) = machine {
            record[8..16].copy_from_slice(&machine.to_le_bytes());
        }
        let is_told = record[8..16] != [0; 8];
        let sum = crc32c::crc32c(&record[8..40 + name.len()]);
        record[4..8].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&record, at).unwrap();
        let next = pool.register_node(name, &pins(&pool, name)).unwrap();
        let rows = pool.info().unwrap().nodes.iter().filter(|known| *known == name).count();
        // A machine without an id cannot be known again.
        assert_eq!(rows, if is_former && is_told { 1 } else { 2 }, "{name}");
        let pinned = pool.info().unwrap().images[0].pinned_by.contains(&name.to_owned());
        assert_eq!(pinned, rows == 2, "{name}");
        drop(next);
    }
}
