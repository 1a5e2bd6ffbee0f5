//! Names that move under their readers and under writers that are killed.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farfork_image::catalog::{Catalog, ImageName};
use farfork_pool::{Pool, PoolError, failpoint};
use farfork_types::{CHUNK_BYTES, Cid};

struct Place {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn pool() -> (Place, Pool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::create(&path, 4 * CHUNK_BYTES).unwrap();
    (Place { _dir: dir, path }, pool)
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Pool::destroy(&self.path);
    }
}

fn cid(number: u8) -> Cid {
    Cid::from_bytes([number; 16])
}

fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

#[test]
fn names_are_set_moved_listed_and_removed() {
    let (_place, pool) = pool();
    let catalog = Catalog::of(&pool);
    assert_eq!(catalog.get(&name("a/f")).unwrap(), None);
    assert_eq!(catalog.set(&name("a/f"), cid(1)).unwrap(), None);
    assert_eq!(catalog.set(&name("a/f:v2"), cid(1)).unwrap(), None);
    assert_eq!(catalog.set(&name("a/f"), cid(2)).unwrap(), Some(cid(1)));

    let other = Pool::open(pool.path()).unwrap();
    let other = Catalog::of(&other);
    assert_eq!(other.get(&name("a/f:latest")).unwrap(), Some(cid(2)));
    let rows: Vec<_> = other.list().unwrap().into_iter().map(|row| (row.0, row.1)).collect();
    assert_eq!(rows, [(name("a/f"), cid(2)), (name("a/f:v2"), cid(1))]);
    assert_eq!(other.names_of(cid(1)).unwrap(), [name("a/f:v2")]);
    assert_eq!(other.remove(&name("a/f")).unwrap(), Some(cid(2)));
    assert_eq!(catalog.remove(&name("a/f")).unwrap(), None);
    assert_eq!(catalog.list().unwrap().len(), 1);
}

/// A link that leads elsewhere, and a file where a link should be.
#[test]
fn what_is_no_name_is_reported_and_removed() {
    let (_place, pool) = pool();
    let catalog = Catalog::of(&pool);
    let names = pool.path().join("names/a/f");
    for foreign in ["link", "file"] {
        catalog.set(&name("a/f"), cid(1)).unwrap();
        catalog.set(&name("a/f:v2"), cid(2)).unwrap();
        fs::remove_file(names.join("latest")).unwrap();
        match foreign {
            "link" => symlink(format!("../../{}", cid(1)), names.join("latest")).unwrap(),
            _ => fs::write(names.join("latest"), "x").unwrap(),
        }
        let error = catalog.get(&name("a/f")).unwrap_err();
        assert!(matches!(error, PoolError::BadName { .. }), "{foreign}: {error}");
        assert_eq!(catalog.get(&name("a/f:v2")).unwrap(), Some(cid(2)));
        assert_eq!(catalog.list().unwrap().len(), 1);
        assert_eq!(catalog.repair().unwrap(), 1, "{foreign}");
        assert_eq!(catalog.get(&name("a/f")).unwrap(), None);
        assert_eq!(catalog.list().unwrap().len(), 1);
    }
}

#[test]
fn a_name_that_nobody_could_type_is_left_out_and_removed() {
    let (_place, pool) = pool();
    let catalog = Catalog::of(&pool);
    catalog.set(&name("a/f"), cid(1)).unwrap();
    pool.set_name(["a", "f", "-v"], cid(2)).unwrap();
    assert_eq!(catalog.list().unwrap().len(), 1);
    assert_eq!(catalog.names_of(cid(2)).unwrap(), []);
    assert_eq!(catalog.repair().unwrap(), 1);
    assert_eq!(pool.names().unwrap().len(), 1);
}

#[test]
fn names_can_be_as_many_as_there_are_images() {
    let (_place, pool) = pool();
    let catalog = Catalog::of(&pool);
    let names = (0..2000).map(|number| name(&format!("u/f{number}")));
    names.clone().for_each(|name| assert_eq!(catalog.set(&name, cid(1)).unwrap(), None));
    assert_eq!(catalog.names_of(cid(1)).unwrap().len(), 2000);
    names.for_each(|name| assert_eq!(catalog.remove(&name).unwrap(), Some(cid(1))));
    // The directories go with the last name in them.
    assert_eq!(fs::read_dir(pool.path().join("names")).unwrap().count(), 0);
}

#[test]
fn a_reader_of_a_moving_name_sees_one_image_and_never_none() {
    let (_place, pool) = pool();
    let catalog = Catalog::of(&pool);
    catalog.set(&name("a/f"), cid(1)).unwrap();
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                assert!(catalog.get(&name("a/f")).unwrap().is_some());
                reads += 1;
            }
            reads
        });
        for round in 0..4000 {
            catalog.set(&name("a/f"), cid(round as u8)).unwrap();
            // Another name moves beside it, in the same directory.
            catalog.set(&name("a/g"), cid(round as u8)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    println!("{reads} reads while the name moved 4000 times");
    assert!(reads > 100);
}

/// What a child does; it may die anywhere within.
#[test]
fn child() {
    let Ok(role) = std::env::var("ROLE") else {
        println!("nothing to do: the other tests run this one in processes of its own");
        return;
    };
    let pool = Pool::open(Path::new(&std::env::var("POOL").unwrap())).unwrap();
    failpoint::arm();
    let catalog = Catalog::of(&pool);
    match role.as_str() {
        "move" => drop(catalog.set(&name("a/f"), cid(2)).unwrap()),
        "remove" => drop(catalog.remove(&name("a/f")).unwrap()),
        _ => loop {
            for number in 1..100 {
                catalog.set(&name("a/f"), cid(number)).unwrap();
                catalog.set(&name("a/other"), cid(number)).unwrap();
            }
        },
    }
}

fn start(role: &str, pool: &Pool, step: Option<u64>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "catalog::child"]).env("ROLE", role).env("POOL", pool.path());
    if let Some(step) = step {
        command.env("FARFORK_KILL_AT_STEP", step.to_string());
    }
    command.stdout(Stdio::null()).spawn().unwrap()
}

fn name_image_1(pool: &Pool) {
    Catalog::of(pool).set(&name("a/f"), cid(1)).unwrap();
}

/// Kills a role at each of its steps, on a pool that was prepared. Afterwards the name must mean
/// one of `allowed`, in every way to ask, and be as usable as before.
fn kill_at_every_step(role: &str, prepare: impl Fn(&Pool), allowed: &[Option<Cid>]) {
    let mut seen = HashSet::new();
    let mut steps = 0;
    for step in 0.. {
        let (_place, pool) = pool();
        prepare(&pool);
        let status = start(role, &pool, Some(step)).wait().unwrap();
        let killed = status.signal() == Some(9);
        assert!(killed || status.success(), "{role}, step {step}: {status}");
        let catalog = Catalog::of(&pool);
        let found = catalog.get(&name("a/f")).unwrap();
        assert!(allowed.contains(&found), "{role}, step {step}: {found:?}");
        let listed = catalog.list().unwrap();
        assert_eq!(listed.first().map(|row| row.1), found, "{role}, step {step}");
        assert!(listed.len() <= 1, "{role}, step {step}: {listed:?}");
        assert_eq!(catalog.set(&name("a/f"), cid(3)).unwrap(), found, "{role}, step {step}");
        assert_eq!(catalog.remove(&name("a/f")).unwrap(), Some(cid(3)));
        assert_eq!(catalog.get(&name("a/f")).unwrap(), None, "{role}, step {step}");
        assert_eq!(catalog.repair().unwrap(), 0);
        // What is on the way to its place is swept.
        let report = pool.check().unwrap();
        assert!(report.is_sound() && report.findings.len() <= 1, "{role}, step {step}: {report:?}");
        assert_eq!(pool.check().unwrap().findings, [], "{role}, step {step}");
        seen.insert(found);
        if !killed {
            break;
        }
        steps += 1;
    }
    println!("{role}: killed at {steps} steps");
    assert_eq!(seen.len(), allowed.len(), "{role}: only {seen:?} in {steps} steps");
}

#[test]
fn a_move_that_dies_leaves_the_old_or_the_new() {
    kill_at_every_step("move", name_image_1, &[Some(cid(1)), Some(cid(2))]);
}

#[test]
fn the_first_use_of_a_catalog_that_dies_leaves_all_or_nothing() {
    kill_at_every_step("move", |_| (), &[None, Some(cid(2))]);
}

/// Its first step takes the name away; directories may stay, and do not hinder a later name.
#[test]
fn a_removal_that_dies_has_removed_the_name() {
    kill_at_every_step("remove", name_image_1, &[None]);
}

#[test]
fn writers_of_several_names_do_not_lose_each_others() {
    let (_place, pool) = pool();
    std::thread::scope(|scope| {
        for user in 0..4u8 {
            let pool = &pool;
            scope.spawn(move || {
                let catalog = Catalog::of(pool);
                for number in 0..100 {
                    catalog.set(&name(&format!("u{user}/f{number}")), cid(user)).unwrap();
                }
            });
        }
    });
    let catalog = Catalog::of(&pool);
    assert_eq!(catalog.list().unwrap().len(), 400);
    assert_eq!(catalog.names_of(cid(3)).unwrap().len(), 100);
}

#[test]
fn a_writer_that_is_killed_at_any_time_leaves_the_name() {
    let (_place, pool) = pool();
    let catalog = Catalog::of(&pool);
    catalog.set(&name("a/f"), cid(1)).unwrap();
    for round in 0..40u64 {
        let mut writer = start("loop", &pool, None);
        std::thread::sleep(Duration::from_micros(5_000 + round * 7919 % 9_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let found = catalog.get(&name("a/f")).unwrap();
        assert!(found.is_some(), "round {round}");
        let listed = catalog.list().unwrap();
        assert_eq!(Some(listed[0].1), found, "round {round}");
        assert_eq!(catalog.repair().unwrap(), 0, "round {round}");
    }
}
