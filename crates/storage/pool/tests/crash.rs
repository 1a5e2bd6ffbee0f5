//! Processes that are killed: at every step of what they do, and at any time.

mod common;

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use common::{Place, is_filled, orders, publish, register, was_killed};
use farfork_pool::{Epochs, Finding, ImageInfo, ImageState, PageBits, Pool, PoolError, failpoint};
use farfork_types::{CHUNK_BYTES, Cid};

/// What the child does under the name of a role; it may die anywhere within.
fn act(role: &str, pool: &Pool, cid: Cid) {
    match role {
        "checkpoint" => {
            let mut writer = pool.begin().unwrap();
            for chunks in [3, 1] {
                for extent in writer.allocate(chunks).unwrap() {
                    writer.bytes_mut(extent).fill(7);
                }
            }
            writer.publish(100).unwrap();
        }
        "reserve" => {
            let mut writer = pool.begin().unwrap();
            writer.allocate(4).unwrap();
            writer.populate();
            writer.keep(3).unwrap();
            let root = writer.allocate(1).unwrap()[0];
            writer.put_first(root);
            for extent in writer.extents().to_vec() {
                writer.bytes_mut(extent).fill(7);
            }
            writer.publish(100).unwrap();
        }
        "give up" => {
            let mut writer = pool.begin().unwrap();
            let extent = writer.allocate(2).unwrap()[0];
            writer.bytes_mut(extent).fill(7);
        }
        "remove" => pool.remove(cid).unwrap(),
        "create" => drop(Pool::create(&new_path(pool), 4 * CHUNK_BYTES).unwrap()),
        "hold" => {
            let mut writer = pool.begin().unwrap();
            writer.allocate(2).unwrap();
            std::io::stdin().read_line(&mut String::new()).unwrap();
            panic!("to be killed before");
        }
        "pin" => {
            let row = register(pool, "child");
            let node = row.slot();
            pool.pin(node, cid).unwrap();
            pool.remove(cid).unwrap();
            pool.unpin(node, cid).unwrap();
        }
        "note" => {
            let row = register(pool, "child");
            let node = row.slot();
            pool.pin(node, cid).unwrap();
            let first = PageBits { accessed: vec![1, 2], dirtied: vec![1], ..PageBits::default() };
            pool.add_access(node, cid, Epochs::default(), &first).unwrap();
            pool.reset_access(cid, true).unwrap();
            let epochs = pool.epochs(cid).unwrap();
            let second = PageBits { accessed: vec![4], dirtied: vec![4], ..PageBits::default() };
            pool.add_access(node, cid, epochs, &second).unwrap();
            pool.unpin(node, cid).unwrap();
        }
        "heat" => {
            let hot = |hot: &[u64]| PageBits { hot: hot.to_vec(), ..PageBits::default() };
            pool.add_users_bits(cid, &hot(&[1, 0, 6])).unwrap();
            pool.clear_hot(cid, &[1, 0, 2]).unwrap();
            pool.reset_access(cid, false).unwrap();
        }
        "loop" => loop {
            let cid = publish(pool, 3, 7);
            pool.remove(cid).unwrap();
        },
        _ => panic!("no such role: {role}"),
    }
}

fn new_path(pool: &Pool) -> PathBuf {
    pool.path().with_extension("new")
}

#[test]
fn child() {
    let Some((role, pool, cid)) = orders() else { return };
    failpoint::arm();
    act(&role, &pool, cid);
}

/// Kills the role at each of its steps; `verify` looks at the pool that is left, checked.
fn kill_at_every_step(role: &str, verify: impl Fn(&Pool, Cid, bool)) {
    let place = Place::new();
    let pool = place.pool(12);
    let mut steps = 0;
    for step in 0.. {
        let cid = publish(&pool, 2, 7);
        let killed = was_killed(run(role, &pool, cid, step));
        verify_all(&pool, &format!("{role}, step {step}"));
        verify(&pool, cid, killed);
        clear(&pool);
        assert_eq!(pool.info().unwrap().used_bytes, 0, "{role}, step {step}: space is lost");
        if !killed {
            break;
        }
        steps += 1;
    }
    println!("{role}: killed at {steps} steps");
    assert!(steps > 3, "{role}: only {steps} steps");
}

/// Runs a role to its end, or to the step at which it is killed.
fn run(role: &str, pool: &Pool, cid: Cid, step: u64) -> ExitStatus {
    common::child(role, pool.path(), cid, Some(step)).wait().unwrap()
}

/// What holds whatever happened: a check finds nothing but the dead, the next one nothing.
fn verify_all(pool: &Pool, when: &str) {
    let report = pool.check().unwrap();
    assert!(report.is_sound(), "{when}: {:?}", report.findings);
    let again = pool.check().unwrap().findings;
    let stale = |finding: &Finding| matches!(finding, Finding::StalePin { .. });
    assert!(again.iter().all(stale), "{when}: {again:?}");
    for image in pool.info().unwrap().images {
        let Ok(image) = pool.find(image.cid.parse().unwrap()) else { continue };
        assert!(is_filled(pool, &image.extents, 7), "{when}");
    }
}

/// Removes everything, also the node of a dead child.
fn clear(pool: &Pool) {
    if let Some(index) = pool.info().unwrap().nodes.iter().position(|name| name == "child") {
        assert_eq!(index, 0);
        pool.forget_node("child", None).unwrap();
    }
    for image in pool.info().unwrap().images {
        let _ = pool.remove(image.cid.parse().unwrap());
    }
}

#[test]
fn a_checkpoint_that_dies_is_invisible_and_costs_no_space() {
    for role in ["checkpoint", "reserve"] {
        kill_at_every_step(role, |pool, cid, _| {
            pool.find(cid).unwrap();
            let others = pool.info().unwrap().images.len() - 1;
            let bytes = pool.info().unwrap().used_bytes - 2 * CHUNK_BYTES;
            assert!(others <= 1 && bytes == others as u64 * 4 * CHUNK_BYTES, "{others}, {bytes}");
        });
    }
}

#[test]
fn a_checkpoint_that_dies_while_it_gives_up_costs_no_space() {
    kill_at_every_step("give up", |pool, _, _| {
        assert_eq!(pool.info().unwrap().used_bytes, 2 * CHUNK_BYTES);
    });
}

#[test]
fn a_removal_that_dies_removes_all_or_nothing() {
    kill_at_every_step("remove", |pool, cid, killed| {
        let used = pool.info().unwrap().used_bytes;
        let there = pool.find(cid).is_ok();
        assert_eq!(used, if there { 2 * CHUNK_BYTES } else { 0 });
        assert!(!there || killed);
    });
}

#[test]
fn an_agent_that_dies_with_a_pin_keeps_the_image_until_it_is_forgotten() {
    kill_at_every_step("pin", |pool, cid, _| {
        let info = pool.info().unwrap();
        let pinned = info.images.iter().any(|image| !image.pinned_by.is_empty());
        let there = pool.find(cid).is_ok();
        assert_eq!(info.used_bytes, if pinned || there { 2 * CHUNK_BYTES } else { 0 });
    });
}

/// Bytes of the side tables of all images, and whether no chunk but these and the images' is used.
fn table_bytes(pool: &Pool) -> u64 {
    let info = pool.info().unwrap();
    let tables = info.images.iter().map(|image| image.table_bytes).sum();
    let images: u64 = info.images.iter().map(|image| image.bytes).sum();
    assert_eq!(info.used_bytes, images + tables);
    tables
}

#[test]
fn an_agent_that_dies_while_it_notes_what_clones_do_leaves_true_bits_only() {
    kill_at_every_step("note", |pool, cid, killed| {
        let tables = pool.access_tables(cid).unwrap();
        assert_eq!(table_bytes(pool), tables.len() as u64 * CHUNK_BYTES);
        let accessed: Vec<_> = tables.iter().map(|table| &table.bits.accessed).collect();
        let merged = |word: usize| {
            accessed.iter().filter_map(|words| words.get(word)).fold(0, |all, word| all | word)
        };
        match pool.epochs(cid).unwrap().accessed {
            0 => assert!(merged(0) & !1 == 0 && merged(1) & !2 == 0, "{tables:?}"),
            _ => assert!(merged(0) & !4 == 0 && merged(1) == 0, "{tables:?}"),
        }
        assert!(killed || merged(0) == 4);
    });
}

#[test]
fn a_killed_user_command_declares_or_takes_back_whole_words() {
    kill_at_every_step("heat", |pool, cid, killed| {
        let tables = pool.access_tables(cid).unwrap();
        assert_eq!(table_bytes(pool), tables.len() as u64 * CHUNK_BYTES);
        let hot = tables.first().map_or([0; 3], |table| table.bits.hot[..3].try_into().unwrap());
        let ways = [[0, 0, 0], [1, 0, 0], [1, 0, 6], [0, 0, 6], [0, 0, 4]];
        assert!(ways.contains(&hot), "{hot:?}");
        assert!(killed || hot == [0, 0, 4]);
    });
}

#[test]
fn the_next_table_takes_what_a_dead_maker_held_without_a_check() {
    let place = Place::new();
    let pool = place.pool(12);
    for step in 0..6 {
        let cid = publish(&pool, 2, 7);
        assert!(was_killed(run("heat", &pool, cid, step)));
        pool.reset_access(cid, false).unwrap();
        assert_eq!(pool.info().unwrap().used_bytes, 3 * CHUNK_BYTES, "step {step}");
        assert_eq!(pool.check().unwrap().findings, []);
        clear(&pool);
    }
}

#[test]
fn the_next_writer_takes_what_a_dead_one_held_without_a_check() {
    let place = Place::new();
    let pool = place.pool(6);
    let mut writer = pool.begin().unwrap();
    assert!(was_killed(run("checkpoint", &pool, Cid::NIL, 5)));
    assert_eq!(writer.allocate(4).unwrap()[0].chunks, 4);
}

#[test]
fn a_pool_whose_maker_dies_is_unfinished_or_whole() {
    // Not on tmpfs: no command could find and delete the cgroup of a pool without a superblock.
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(&dir.path().join("pool"), 4 * CHUNK_BYTES).unwrap();
    let mut unfinished = 0;
    for step in 0.. {
        let killed = was_killed(run("create", &pool, Cid::NIL, step));
        match Pool::open(&new_path(&pool)) {
            Ok(new) => assert_eq!(new.check().unwrap().findings, []),
            Err(PoolError::Unfinished { .. }) => unfinished += 1,
            Err(error) => panic!("step {step}: {error}"),
        }
        std::fs::remove_file(new_path(&pool)).unwrap();
        if !killed {
            break;
        }
    }
    assert!(unfinished > 0);
}

#[test]
fn a_writer_in_another_pid_namespace_is_alive_until_it_is_killed() {
    const APART: [&str; 3] = ["--pid", "--fork", "--kill-child"];
    if !Command::new("unshare").args(APART).arg("true").status().is_ok_and(|made| made.success()) {
        println!("skipped: unshare(1) cannot make a PID namespace here");
        return;
    }
    let place = Place::new();
    let pool = place.pool(6);
    let mut command = Command::new("unshare");
    command.args(APART).arg(std::env::current_exe().unwrap());
    let mut writer = common::as_child(command, "hold", pool.path(), Cid::NIL).spawn().unwrap();
    // Kept open: at its end the writer would give up in good order.
    let _input = writer.stdin.take();
    let has_allocated = || pool.info().unwrap().used_bytes == 2 * CHUNK_BYTES;
    while !has_allocated() {
        assert!(writer.try_wait().unwrap().is_none(), "the writer has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pool.check().unwrap().findings, []);
    assert!(has_allocated());
    writer.kill().unwrap();
    writer.wait().unwrap();
    await_helpers(&pool);
    assert!(matches!(pool.check().unwrap().findings[..], [Finding::DeadWriter { .. }]));
    assert!(!has_allocated());
}

/// A helper that still allocates for a dead writer keeps it alive for a moment.
fn await_helpers(pool: &Pool) {
    let writing = |image: &ImageInfo| image.state == ImageState::Writing;
    for _ in 0..1000 {
        if !pool.info().unwrap().images.iter().any(writing) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("a dead writer is held to be alive");
}

#[test]
fn writers_that_are_killed_at_any_time_lose_nothing() {
    let place = Place::new();
    let pool = place.pool(16);
    let started = std::time::Instant::now();
    for round in 0..60u64 {
        let mut writers: Vec<_> =
            (0..2).map(|_| common::child("loop", pool.path(), Cid::NIL, None)).collect();
        std::thread::sleep(Duration::from_micros(8_000 + round * 7919 % 20_000));
        for writer in &mut writers {
            writer.kill().unwrap();
        }
        for writer in &mut writers {
            assert!(was_killed(writer.wait().unwrap()));
        }
        await_helpers(&pool);
        verify_all(&pool, &format!("round {round}"));
        clear(&pool);
        assert_eq!(pool.info().unwrap().used_bytes, 0, "round {round}");
    }
    println!("120 writers killed in {:?}", started.elapsed());
}
