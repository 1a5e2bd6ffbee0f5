//! Names of images.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_pool::{Pool, PoolError};
use farfork_types::Cid;

use crate::common::{Place, publish};

const NAME: [&str; 3] = ["amy", "resize", "live"];
const CIDS: [Cid; 2] = [Cid::from_bytes([1; 16]), Cid::from_bytes([2; 16])];

#[test]
fn a_name_moves_and_goes_and_says_what_it_meant() {
    let place = Place::new();
    let pool = place.pool();
    assert_eq!(pool.named(NAME).unwrap(), None);
    assert_eq!(pool.remove_name(NAME).unwrap(), None);
    assert_eq!(pool.set_name(NAME, CIDS[0]).unwrap(), None);
    assert_eq!(pool.set_name(NAME, CIDS[1]).unwrap(), Some(CIDS[0]));
    assert_eq!(Pool::open(&place.path()).unwrap().named(NAME).unwrap(), Some(CIDS[1]));
    let link = fs::read_link(place.file("names/amy/resize/live")).unwrap();
    assert_eq!(link.to_str().unwrap(), format!("../../../images/{}", CIDS[1]));
    // People can follow it.
    let cid = publish(&pool, 1, 7);
    pool.set_name(NAME, cid).unwrap();
    assert_eq!(fs::read(place.file("names/amy/resize/live")).unwrap()[0], 7);
    assert_eq!(pool.remove_name(NAME).unwrap(), Some(cid));
    assert_eq!(pool.named(NAME).unwrap(), None);
    assert_eq!(place.list("new"), [""; 0]);
}

#[test]
fn names_are_listed_in_order_and_empty_directories_go() {
    let place = Place::new();
    let pool = place.pool();
    let names = [["b", "f", "1"], ["a", "g", "2"], ["a", "f", "2"], ["a", "f", "1"]];
    for name in names {
        pool.set_name(name, CIDS[0]).unwrap();
    }
    let listed = pool.names().unwrap();
    let parts: Vec<_> = listed.iter().map(|named| named.parts.join("/")).collect();
    assert_eq!(parts, ["a/f/1", "a/f/2", "a/g/2", "b/f/1"]);
    assert!(listed.iter().all(|named| named.cid == Some(CIDS[0]) && named.set_unix_s > 1 << 30));
    pool.remove_name(["a", "f", "1"]).unwrap();
    assert_eq!(place.list("names/a"), ["f", "g"]);
    pool.remove_name(["a", "f", "2"]).unwrap();
    assert_eq!(place.list("names/a"), ["g"]);
    pool.remove_name(["a", "g", "2"]).unwrap();
    assert_eq!(place.list("names"), ["b"]);
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn readers_see_one_of_two_images_while_a_name_moves_and_others_write() {
    let place = Place::new();
    let pool = place.pool();
    pool.set_name(NAME, CIDS[0]).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let other = Pool::open(&place.path()).unwrap();
            let mut seen = [0; 2];
            while !is_over.load(Ordering::Relaxed) {
                let cid = other.named(NAME).unwrap().unwrap();
                seen[CIDS.iter().position(|known| *known == cid).unwrap()] += 1;
                let listed = other.names().unwrap();
                assert!(listed.is_empty() || CIDS.contains(&listed[0].cid.unwrap()));
            }
            seen
        });
        let sweeper = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(pool.begin(None).unwrap());
            }
        });
        for round in 1..2000 {
            pool.set_name(NAME, CIDS[round % 2]).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        let seen = reader.join().unwrap();
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
        sweeper.join().unwrap();
    });
    assert_eq!(place.list("new"), [""; 0]);
}

#[test]
fn what_lies_among_the_names_and_is_none_is_replaced_or_taken_away() {
    let place = Place::new();
    let pool = place.pool();
    let directory = place.file("names/amy/resize");
    fs::create_dir_all(directory.join("below")).unwrap();
    fs::write(directory.join("file"), "x").unwrap();
    symlink("/etc/passwd", directory.join("away")).unwrap();
    symlink("../../../images/12", directory.join("short")).unwrap();
    fs::write(place.file("names/file"), "x").unwrap();
    symlink("amy", place.file("names/loop")).unwrap();
    let listed = pool.names().unwrap();
    let parts: Vec<_> = listed.iter().map(|named| named.parts[2].as_str()).collect();
    assert_eq!(parts, ["away", "file", "short"]);
    assert!(listed.iter().all(|named| named.cid.is_none()));
    for tag in ["away", "file", "short"] {
        let name = ["amy", "resize", tag];
        assert!(matches!(pool.named(name), Err(PoolError::BadName { .. })), "{tag}");
        assert_eq!(pool.set_name(name, CIDS[0]).unwrap(), None);
        assert_eq!(pool.named(name).unwrap(), Some(CIDS[0]));
    }
    fs::write(directory.join("another"), "x").unwrap();
    assert_eq!(pool.remove_name(["amy", "resize", "another"]).unwrap(), None);
    assert!(!directory.join("another").exists());
}
