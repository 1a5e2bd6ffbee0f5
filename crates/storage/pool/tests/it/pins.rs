//! Images under running clones.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use farfork_pool::{Finding, Forgotten, ImageState, PinFile, Pool, PoolError, failpoint};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::common::{Place, await_used, pins, publish, register, used};

/// A process that holds an image; killed when dropped.
struct Clone(Child);

/// The clone inherits the description as its standard input, and lives on when we let go of it.
fn start_clone(pins: &PinFile, cid: Cid) -> Clone {
    let hold = pins.hold(cid).unwrap();
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

/// Waits until no clone of an image lives. A process that another test has just forked has our files open.
fn await_unheld(pins: &PinFile, cid: Cid) {
    for _ in 0..1000 {
        if !pins.is_held(cid).unwrap() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    panic!("the image is held still");
}

#[test]
fn pins_show_what_is_in_use_and_keep_nothing_where_the_kernel_does() {
    let place = Place::new();
    let pool = place.pool();
    let before = used(&pool);
    let row = register(&pool, "n");
    let cid = publish(&pool, 1, 7);
    pool.pin(&row, cid).unwrap();
    pool.pin(&row, cid).unwrap();
    assert_eq!(pool.info().unwrap().images[0].pinned_by, ["n"]);
    pool.remove(cid).unwrap();
    assert!(matches!(pool.find(cid), Err(PoolError::NoImage { .. })));
    await_used(&pool, before + if place.is_mounted { 4096 } else { 0 });
    let report = pool.check().unwrap();
    assert_eq!(report.findings, [Finding::StalePin { node: "n".into(), cid }]);
    assert!(report.is_sound());
    pool.unpin(&row, cid).unwrap();
    pool.unpin(&row, cid).unwrap();
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn where_kernels_share_the_medium_a_removed_image_stays_while_a_node_pins_it() {
    let place = Place::new();
    let pool = place.shared_pool();
    let [one, two] = ["one", "two"].map(|name| register(&pool, name));
    let cid = publish(&pool, 3, 7);
    let before = used(&pool);
    pool.pin(&one, cid).unwrap();
    pool.pin(&two, cid).unwrap();
    pool.remove(cid).unwrap();
    assert!(matches!(pool.find(cid), Err(PoolError::NoImage { .. })));
    assert!(matches!(pool.remove(cid), Err(PoolError::NoImage { .. })));
    let late = register(&pool, "late");
    assert!(matches!(pool.pin(&late, cid), Err(PoolError::NoImage { .. })));
    let kept = || {
        assert_eq!(pool.check().unwrap().findings, []);
        let images = pool.info().unwrap().images;
        assert_eq!((images.len(), images[0].state), (1, ImageState::Removed));
        assert_eq!(images[0].bytes, 3 * CHUNK_BYTES);
        let bytes = fs::read(place.file(&format!("removed/{cid}"))).unwrap();
        assert!(bytes.len() as u64 == 3 * CHUNK_BYTES && bytes.iter().all(|byte| *byte == 7));
        images[0].pinned_by.len()
    };
    assert_eq!(kept(), 2);
    pool.unpin(&one, cid).unwrap();
    assert_eq!(kept(), 1);
    pool.unpin(&two, cid).unwrap();
    assert_eq!(pool.info().unwrap().images, []);
    assert_eq!(place.list("removed"), [""; 0]);
    if place.is_mounted {
        // And the files of three nodes.
        await_used(&pool, before - 3 * CHUNK_BYTES + 4096);
    }
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn the_clones_of_a_dead_agent_keep_their_image_until_the_last_is_gone() {
    let place = Place::new();
    let pool = place.shared_pool();
    let row = register(&pool, "n");
    let (cid, other) = (publish(&pool, 3, 7), publish(&pool, 1, 7));
    let pins = pins(&pool, "n");
    pool.pin(&row, cid).unwrap();
    pool.pin(&row, other).unwrap();
    drop(row); // the agent
    let (first, second) = (start_clone(&pins, cid), start_clone(&pins, cid));
    pool.remove(cid).unwrap();
    drop(first);
    assert!(pins.is_held(cid).unwrap());
    await_unheld(&pins, other);
    let row = register(&pool, "n");
    assert_eq!(pool.reconcile(&row, &pins).unwrap(), [other]);
    assert_eq!(place.list("removed"), [cid.to_string()]);
    drop(second);
    await_unheld(&pins, cid);
    assert_eq!(place.list("removed"), [cid.to_string()]);
    assert_eq!(pool.reconcile(&row, &pins).unwrap(), [cid]);
    assert_eq!(place.list("removed"), [""; 0]);
}

#[test]
fn pin_and_remove_race_and_one_of_them_wins() {
    let place = Place::new();
    let pool = place.shared_pool();
    let row = register(&pool, "n");
    let mut wins = [0; 2];
    for round in 0..200 {
        let cid = publish(&pool, 1, 7);
        let is_pinned = std::thread::scope(|scope| {
            let pin = scope.spawn(|| pool.pin(&row, cid).is_ok());
            pool.remove(cid).unwrap();
            pin.join().unwrap()
        });
        wins[usize::from(is_pinned)] += 1;
        assert_eq!(place.list("removed").len(), usize::from(is_pinned), "round {round}");
        pool.unpin(&row, cid).unwrap();
        assert_eq!(place.list("removed"), [""; 0], "round {round}");
    }
    println!("removals that won {}, pins that won {}", wins[0], wins[1]);
}

#[test]
fn a_removal_at_any_step_of_a_pin_and_a_pin_at_any_step_of_a_removal_agree() {
    let place = Place::new();
    let pool = place.shared_pool();
    let row = std::sync::Arc::new(register(&pool, "n"));
    for pins_first in [true, false] {
        for step in 0.. {
            let cid = publish(&pool, 1, 7);
            let (path, other) = (place.path(), std::sync::Arc::clone(&row));
            let open = move || Pool::open(&path).unwrap().as_on(farfork_pool::Medium::Dax);
            let (sent, pinned) = std::sync::mpsc::channel();
            let event: Box<dyn FnOnce()> = match pins_first {
                true => Box::new(move || open().remove(cid).unwrap()),
                false => Box::new(move || sent.send(open().pin(&other, cid).is_ok()).unwrap()),
            };
            failpoint::happen_after(step, Some(event));
            let is_pinned = match pins_first {
                true => pool.pin(&row, cid).is_ok(),
                false => {
                    pool.remove(cid).unwrap();
                    pinned.try_recv().unwrap_or(false)
                }
            };
            let is_over = failpoint::happen_after(0, None);
            assert_eq!(is_pinned, pins_first && is_over, "step {step}");
            if is_over && pins_first {
                pool.remove(cid).unwrap();
                assert_eq!(place.list("removed"), [cid.to_string()]);
                pool.unpin(&row, cid).unwrap();
            }
            assert_eq!(place.list("removed"), [""; 0], "step {step}");
            assert_eq!(pool.check().unwrap().findings, [], "step {step}");
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn nodes_of_one_name_do_not_take_each_other_for_dead() {
    let place = Place::new();
    let pool = place.shared_pool();
    let cid = publish(&pool, 3, 7);
    let [here, there] = ["here", "there"].map(|directory| pins(&pool, directory));
    let first = pool.register_node("local", &here).unwrap();
    pool.pin(&first, cid).unwrap();
    let clone = start_clone(&here, cid);
    pool.remove(cid).unwrap();
    let id = first.id();
    let mut first = Some(first);
    for agents in ["both", "one of two"] {
        let second = pool.register_node("local", &there).unwrap();
        assert_ne!(second.id(), id, "{agents}");
        assert_eq!(pool.reconcile(&second, &there).unwrap(), [], "{agents}");
        assert_eq!(place.list("removed").len(), 1, "{agents}");
        first.take(); // is killed, and its clone lives
    }
    let again = pool.register_node("local", &here).unwrap();
    assert_eq!(again.id(), id);
    drop(clone);
    await_unheld(&here, cid);
    assert_eq!(pool.reconcile(&again, &here).unwrap(), [cid]);
    assert_eq!(place.list("removed"), [""; 0]);
    assert_eq!(pool.info().unwrap().nodes, ["local", "local"]);
    let names = pool.node_names().unwrap();
    assert!(names.len() == 2 && names[&id] == "local");
    assert_eq!(id.to_string().parse::<farfork_pool::NodeId>().unwrap(), id);
}

#[test]
fn a_node_has_one_owner_at_a_time() {
    let place = Place::new();
    let pool = place.pool();
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
    let pool = place.shared_pool();
    let row = register(&pool, "gone");
    let cid = publish(&pool, 2, 7);
    pool.pin(&row, cid).unwrap();
    let holders = pins(&pool, "gone");
    let clone = start_clone(&holders, cid);
    pool.remove(cid).unwrap();
    let lives = |holders| {
        assert!(matches!(pool.forget_node("gone", holders), Err(PoolError::NodeLives { .. })));
        assert_eq!(place.list("removed").len(), 1);
    };
    lives(Some(&holders));
    lives(None);
    drop(row);
    lives(Some(&holders));
    assert!(matches!(pool.forget_node("other", None), Err(PoolError::NoNode { .. })));
    drop(clone);
    await_unheld(&holders, cid);
    let living = pool.register_node("gone", &pins(&pool, "elsewhere")).unwrap();
    let done = pool.forget_node("gone", Some(&holders)).unwrap();
    assert_eq!(done, Forgotten { rows: 1, pins: 1, living: 1 });
    assert_eq!(place.list("removed"), [""; 0]);
    drop(living);
    assert_eq!(pool.forget_node("gone", None).unwrap(), Forgotten { rows: 1, pins: 0, living: 0 });
    assert_eq!(pool.info().unwrap().nodes, [""; 0]);
}

/// Pins outlive the clones of a machine that was started again, and the pin file that listed them.
#[test]
fn a_former_life_of_the_machine_pins_nothing() {
    let place = Place::new();
    let pool = place.shared_pool();
    for (name, machine, is_former) in [("a", None, true), ("b", Some(1u64), false)] {
        let cid = publish(&pool, 1, 7);
        let row = register(&pool, name);
        pool.pin(&row, cid).unwrap();
        let path = place.file(&format!("nodes/{}", row.id()));
        drop(row);
        let mut file = fs::read(&path).unwrap();
        file[24] ^= 1; // the boot
        if let Some(machine) = machine {
            file[16..24].copy_from_slice(&machine.to_le_bytes());
        }
        let is_told = file[16..24] != [0; 8];
        file[12..16].fill(0);
        let sum = crc32c::crc32c(&file[..256]);
        file[12..16].copy_from_slice(&sum.to_le_bytes());
        // Its number is that of another boot, too.
        fs::remove_file(&path).unwrap();
        fs::write(place.file("nodes/00000000000000aa"), file).unwrap();
        pool.remove(cid).unwrap();
        assert_eq!(place.list("removed").len(), 1, "{name}");
        let _row = register(&pool, name);
        // A machine without an id cannot be known again.
        let is_dropped = is_former && is_told;
        assert_eq!(place.list("removed").len(), usize::from(!is_dropped), "{name}");
        let nodes = pool.info().unwrap().nodes;
        assert_eq!(
            nodes.iter().filter(|known| *known == name).count(),
            2 - usize::from(is_dropped)
        );
    }
}

#[test]
fn places_of_pins_are_used_again() {
    let place = Place::new();
    let pool = place.pool();
    let row = register(&pool, "n");
    let cids: Vec<Cid> = (0..4).map(|_| publish(&pool, 1, 7)).collect();
    let length = || fs::metadata(place.file(&format!("nodes/{}", row.id()))).unwrap().len();
    cids[..3].iter().for_each(|cid| pool.pin(&row, *cid).unwrap());
    assert_eq!(length(), 256 + 3 * 16);
    pool.unpin(&row, cids[1]).unwrap();
    pool.pin(&row, cids[3]).unwrap();
    assert_eq!(length(), 256 + 3 * 16);
    let row = {
        drop(row);
        register(&pool, "n")
    };
    // The next agent knows what the last has pinned.
    pool.pin(&row, cids[0]).unwrap();
    assert_eq!(
        fs::metadata(place.file(&format!("nodes/{}", row.id()))).unwrap().len(),
        256 + 3 * 16
    );
    let pinned = pool.info().unwrap().images;
    assert_eq!(pinned.iter().filter(|image| !image.pinned_by.is_empty()).count(), 3);
}
