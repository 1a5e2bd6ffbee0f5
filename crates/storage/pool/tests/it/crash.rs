//! Processes that are killed: at every step of what they do, and at any time.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use farfork_pool::{Finding, Pool, PoolError, Quota};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::child::{KINDS, Kind, NAME, Orders, USER, was_killed};
use crate::common::{Place, await_used, bits, is_filled, is_root, publish, used};

/// What was there before the child came.
const BEFORE: Cid = Cid::from_bytes([9; 16]);

/// Kills the role at each of its steps, and compares what is visible then with what has to be, one after
/// the other. Only a pool that a check has found sound is looked at, and nothing is lost in it.
pub fn kill_at_every_step(role: &str, observe: impl Fn(&Pool, Cid) -> String, expected: &[&str]) {
    for kind in KINDS {
        let place = Place::new();
        let pool = kind.applied_to(place.pool());
        pool.set_name(NAME, BEFORE).unwrap();
        pool.set_quota(USER, Quota { bytes: 1 << 40, images: 99 }).unwrap();
        let before = used(&pool);
        let mut seen: Vec<String> = Vec::new();
        for step in 0.. {
            let when = format!("{role}, {kind:?}, step {step}");
            let cid = publish(&pool, 1, 7);
            let orders = Orders { role, kind, pool: pool.path(), cid };
            let is_killed = orders.is_killed_at(step);
            // The next process sees the same, whether there was a check or not.
            let unchecked = observe(&Pool::open(pool.path()).unwrap(), cid);
            verify(&pool, &when);
            assert_eq!(observe(&pool, cid), unchecked, "{when}");
            if seen.last() != Some(&unchecked) {
                seen.push(unchecked);
            }
            clear(&pool);
            await_used(&pool, before);
            assert_eq!(place.list("new"), [""; 0], "{when}");
            if !is_killed {
                assert!(step > 0, "{when}: there are no steps");
                break;
            }
        }
        assert_eq!(seen, expected, "{role}, {kind:?}");
    }
}

/// What holds whatever happened: a check finds nothing but the dead, the next one nothing.
fn verify(pool: &Pool, when: &str) {
    let report = pool.check().unwrap();
    assert!(report.is_sound(), "{when}: {:?}", report.findings);
    let again = pool.check().unwrap().findings;
    let stale = |finding: &Finding| matches!(finding, Finding::StalePin { .. });
    assert!(again.iter().all(stale), "{when}: {again:?}");
    for cid in pool.images().unwrap() {
        let image = pool.find(cid).unwrap();
        let chunks = image.id.bytes / CHUNK_BYTES;
        assert!([1, 3].contains(&chunks) && is_filled(&image, chunks, 7), "{when}");
        assert!(!pool.is_held(cid).unwrap(), "{when}");
    }
}

/// Makes all as it was, also if a node of the dead child has pins.
fn clear(pool: &Pool) {
    let _ = pool.forget_node("child", None);
    for cid in pool.images().unwrap() {
        pool.remove(cid).unwrap();
    }
    for region in pool.regions(USER).unwrap() {
        fs::remove_file(pool.region_path(USER, &region.name).unwrap()).unwrap();
    }
    pool.set_name(NAME, BEFORE).unwrap();
    pool.set_quota(USER, Quota { bytes: 1 << 40, images: 99 }).unwrap();
}

/// How many images the user has, and how many there are.
fn images(pool: &Pool) -> String {
    let info = pool.user_info(USER).unwrap();
    assert_eq!(info.bytes, info.images * 3 * CHUNK_BYTES);
    format!("{} of {}", info.images, pool.images().unwrap().len())
}

#[test]
fn a_checkpoint_that_dies_is_whole_or_invisible_and_costs_no_space() {
    kill_at_every_step("checkpoint", |pool, _| images(pool), &["0 of 1", "1 of 2"]);
}

#[test]
fn a_removal_that_dies_has_removed_the_image() {
    let observe = |pool: &Pool, cid| match (pool.find(cid), pool.access_tables(cid)) {
        (Ok(_), Ok(_)) => "there".to_owned(),
        (Err(PoolError::NoImage { .. }), Err(PoolError::NoImage { .. })) => "gone".to_owned(),
        other => format!("{other:?}"),
    };
    // Its first step is the one that counts.
    kill_at_every_step("remove", observe, &["gone"]);
}

#[test]
fn what_a_removal_that_dies_leaves_goes_with_the_next_check() {
    for kind in KINDS {
        let place = Place::new();
        let pool = kind.applied_to(place.pool());
        let before = used(&pool);
        let mut lost = BTreeMap::new();
        for step in 0.. {
            let cid = crate::common::publish_for(Some(USER), &pool, 1, 7).unwrap();
            pool.add_users_bits(cid, &bits(&[], &[], &[1])).unwrap();
            let is_killed =
                Orders { role: "remove", kind, pool: pool.path(), cid }.is_killed_at(step);
            for finding in pool.check().unwrap().findings {
                assert!(!finding.is_damage(), "{finding}");
                let text = finding.to_string().replace(&cid.to_string(), "CID");
                *lost.entry(text.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
            }
            let _ = pool.remove(cid);
            await_used(&pool, before);
            assert_eq!((place.list("tables"), place.list("users")), (vec![], vec![]));
            if !is_killed {
                break;
            }
        }
        assert!(lost.contains_key("tables") && lost.contains_key("image"), "{lost:?}");
    }
}

#[test]
fn a_name_that_moves_means_the_old_image_or_the_new_one() {
    let observe = |pool: &Pool, cid| match pool.named(NAME).unwrap() {
        None => "none".to_owned(),
        Some(BEFORE) => "before".to_owned(),
        Some(meant) => (if meant == cid { "after" } else { "another" }).to_owned(),
    };
    kill_at_every_step("name", observe, &["before", "after", "none", "after"]);
}

#[test]
fn a_limit_is_the_old_or_the_new_one() {
    let observe = |pool: &Pool, _| pool.quota(USER).unwrap().images.to_string();
    kill_at_every_step("limit", observe, &["99", "1", "2"]);
}

#[test]
fn notes_of_an_agent_that_dies_are_whole() {
    let observe = |pool: &Pool, cid| {
        let access = pool.access(cid).unwrap();
        let first = |set: &[u64]| set.first().copied().unwrap_or(0);
        assert_eq!(access.accessed, access.dirtied);
        format!("{} in {}", first(&access.accessed), pool.epochs(cid).unwrap().dirtied)
    };
    kill_at_every_step("note", observe, &["0 in 0", "1 in 0", "0 in 1", "4 in 1"]);
}

#[test]
fn a_killed_user_command_declares_or_takes_back_all() {
    let observe = |pool: &Pool, cid| {
        let access = pool.access(cid).unwrap();
        format!("{:?} in {}", access.hot, pool.epochs(cid).unwrap().accessed)
    };
    let expected = ["[] in 0", "[1, 6] in 0", "[0, 4] in 0", "[0, 4] in 1"];
    kill_at_every_step("heat", observe, &expected);
}

#[test]
fn an_agent_that_dies_has_all_its_pins_or_one_less() {
    let observe = |pool: &Pool, cid: Cid| {
        let info = pool.info().unwrap();
        let is_there = pool.find(cid).is_ok();
        format!("{} nodes, {}", info.nodes.len(), if is_there { "there" } else { "removed" })
    };
    let expected = ["0 nodes, there", "1 nodes, there", "1 nodes, removed"];
    kill_at_every_step("pin", observe, &expected);
}

#[test]
fn an_agent_that_dies_with_a_pin_keeps_the_image_until_it_is_forgotten() {
    let place = Place::new();
    let pool = place.shared_pool();
    let before = used(&pool);
    let mut kept = 0;
    for step in 0.. {
        let cid = publish(&pool, 1, 7);
        let orders = Orders { role: "pin", kind: Kind::Shared, pool: pool.path(), cid };
        let is_killed = orders.is_killed_at(step);
        pool.check().unwrap();
        let infos = pool.info().unwrap().images;
        let is_pinned = infos.iter().any(|image| !image.pinned_by.is_empty());
        let is_there = pool.find(cid).is_ok();
        assert_eq!(infos.len(), usize::from(is_pinned || is_there), "step {step}");
        kept += i32::from(is_pinned && !is_there);
        clear(&pool);
        await_used(&pool, before + 4096); // the limits of the user
        assert_eq!(place.list("removed"), [""; 0], "step {step}");
        if !is_killed {
            break;
        }
    }
    assert!(kept > 0);
}

#[test]
fn a_checkpoint_that_dies_while_it_gives_up_costs_no_space() {
    for kind in KINDS {
        let place = Place::new();
        let pool = kind.applied_to(place.pool());
        let before = used(&pool);
        for step in 0.. {
            let orders = Orders { kind, ..Orders::new("give up", pool.path()) };
            let is_killed = orders.is_killed_at(step);
            // No check is needed: the next writer takes what a dead one has left.
            drop(pool.begin(None).unwrap());
            await_used(&pool, before);
            if !is_killed {
                break;
            }
        }
    }
}

#[test]
fn a_pool_whose_maker_dies_is_whole_or_can_be_made_again() {
    for is_new in [true, false] {
        let mut seen = Vec::new();
        for step in 0.. {
            let place = Place::plain();
            if !is_new {
                fs::create_dir(place.path()).unwrap();
            }
            let is_killed = Orders::new("create", &place.path()).is_killed_at(step);
            let is_whole = match Pool::open(&place.path()) {
                Ok(_) => true,
                Err(PoolError::NotAPool { .. }) => false,
                Err(error) => panic!("step {step}: {error}"),
            };
            seen.push(is_whole);
            let again = Pool::create(&place.path(), 4 * CHUNK_BYTES);
            match is_whole {
                true => assert!(matches!(again, Err(PoolError::NotEmpty { .. }))),
                false => drop(again.unwrap()),
            }
            let pool = Pool::open(&place.path()).unwrap();
            assert_eq!(pool.check().unwrap().findings, []);
            if !is_killed {
                break;
            }
        }
        seen.dedup();
        assert_eq!(seen, [false, true]);
    }
}

#[test]
fn what_a_writer_of_another_user_than_root_leaves_is_swept() {
    if !is_root() {
        return;
    }
    let place = Place::plain();
    drop(place.pool());
    chown_all(place.dir(), 1234);
    let path = place.path();
    let run = |role: &str, step: u64| {
        use std::os::unix::process::CommandExt;
        let orders = Orders { kind: Kind::Named, ..Orders::new(role, &path) };
        let mut command = orders.command();
        command.uid(1234).gid(1234).env("FARFORK_KILL_AT_STEP", step.to_string());
        was_killed(command.status().unwrap())
    };
    for step in 0.. {
        let is_killed = run("checkpoint", step);
        assert!(!run("check", u64::MAX), "step {step}");
        assert_eq!(place.list("new"), [""; 0], "step {step}");
        if !is_killed {
            break;
        }
    }
}

/// Gives a directory and what lies in it to another user.
pub fn chown_all(path: &std::path::Path, owner: u32) {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            chown_all(&entry.unwrap().path(), owner);
        }
    }
}

#[test]
fn a_writer_in_another_pid_namespace_is_alive_until_it_is_killed() {
    const APART: [&str; 3] = ["--pid", "--fork", "--kill-child"];
    if !Command::new("unshare").args(APART).arg("true").status().is_ok_and(|made| made.success()) {
        println!("skipped: unshare(1) cannot make a PID namespace here");
        return;
    }
    let place = Place::new();
    let pool = place.pool();
    let before = used(&pool);
    let mut command = Command::new("unshare");
    command.args(APART).arg(std::env::current_exe().unwrap());
    let orders = Orders { kind: Kind::Named, ..Orders::new("hold", pool.path()) };
    let mut writer = orders.given_to(command).spawn().unwrap();
    // Kept open: at its end the writer would give up in good order.
    let _input = writer.stdin.take();
    while used(&pool) < before + 2 * CHUNK_BYTES && place.is_mounted {
        assert!(writer.try_wait().unwrap().is_none(), "the writer has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pool.check().unwrap().findings, []);
    assert!(matches!(Pool::destroy(pool.path()), Err(PoolError::InUse { .. })));
    assert_eq!(place.list("new").len(), 1);
    writer.kill().unwrap();
    writer.wait().unwrap();
    // Its parent is dead before it is.
    let mut findings = Vec::new();
    for _ in 0..1000 {
        findings = pool.check().unwrap().findings;
        if !findings.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(matches!(findings[..], [Finding::DeadWriters { files: 1, .. }]), "{findings:?}");
    await_used(&pool, before);
}

#[test]
fn writers_that_are_killed_at_any_time_lose_nothing() {
    let place = Place::new();
    let pool = place.pool();
    let before = used(&pool);
    for round in 0..24u64 {
        let kind = KINDS[round as usize % KINDS.len()];
        let orders = Orders { kind, ..Orders::new("loop", pool.path()) };
        let mut writers = [orders.start(), orders.start()];
        std::thread::sleep(Duration::from_micros(8_000 + round * 7919 % 20_000));
        for writer in &mut writers {
            writer.kill().unwrap();
        }
        for writer in &mut writers {
            assert!(was_killed(writer.wait().unwrap()));
        }
        // What allocates for a dead writer holds its lock for a moment.
        while pool.check().is_ok() && !place.list("new").is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        verify(&pool, &format!("round {round}"));
        for cid in pool.images().unwrap() {
            pool.remove(cid).unwrap();
        }
        drop(pool.begin(None).unwrap());
        await_used(&pool, before);
    }
}
