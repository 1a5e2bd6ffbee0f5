//! Side tables: what is learnt about the pages of an image that is sealed.

mod common;

use common::{Place, is_filled, publish, register};
use farfork_pool::{Epochs, Finding, NodeSlot, PageBits, Pool, PoolError};
use farfork_types::{CHUNK_BYTES, Cid};
use std::os::unix::fs::FileExt;

fn bits(accessed: &[u64], dirtied: &[u64], hot: &[u64]) -> PageBits {
    PageBits { accessed: accessed.to_vec(), dirtied: dirtied.to_vec(), hot: hot.to_vec() }
}

fn node(pool: &Pool, name: &str, cid: Cid) -> NodeSlot {
    let node = register(pool, name).slot();
    pool.pin(node, cid).unwrap();
    node
}

/// The first words of all tables, merged: accessed, dirtied, hot.
fn merged(pool: &Pool, cid: Cid) -> [u64; 3] {
    let mut merged = [0; 3];
    for table in pool.access_tables(cid).unwrap() {
        let sets = [&table.bits.accessed, &table.bits.dirtied, &table.bits.hot];
        for (merged, set) in merged.iter_mut().zip(sets) {
            *merged |= set.first().copied().unwrap_or(0);
        }
    }
    merged
}

#[test]
fn each_node_and_the_users_have_a_table_and_readers_merge_them() {
    let place = Place::new();
    let pool = place.pool(16);
    let cid = publish(&pool, 3, 7);
    assert_eq!(pool.access_tables(cid).unwrap(), []);
    let (a, b) = (node(&pool, "a", cid), node(&pool, "b", cid));
    pool.add_access(a, cid, Epochs::default(), &bits(&[1], &[1], &[])).unwrap();
    pool.add_access(b, cid, Epochs::default(), &bits(&[2], &[], &[])).unwrap();
    pool.add_access(a, cid, Epochs::default(), &bits(&[4], &[4], &[])).unwrap();
    pool.add_users_bits(cid, &bits(&[], &[], &[8])).unwrap();
    assert_eq!(merged(&pool, cid), [7, 5, 8]);
    let tables = pool.access_tables(cid).unwrap();
    assert_eq!(tables.iter().map(|table| table.node).collect::<Vec<_>>(), [None, Some(b), Some(a)]);
    assert_eq!(tables[2].additions, 2);
    assert_eq!(tables[2].bits.accessed.len() as u64 * 64, 3 * CHUNK_BYTES / 4096);
    let info = pool.info().unwrap();
    assert_eq!(info.images[0].table_bytes, 3 * CHUNK_BYTES);
    assert_eq!(info.used_bytes, 6 * CHUNK_BYTES);
    // Another process sees the same, and the image is what it was.
    let again = Pool::open(&place.path()).unwrap();
    assert_eq!(merged(&again, cid), [7, 5, 8]);
    assert!(is_filled(&pool, &pool.find(cid).unwrap().extents, 7));
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_reset_ends_an_epoch_for_all_nodes_at_once() {
    let place = Place::new();
    let pool = place.pool(16);
    let cid = publish(&pool, 1, 7);
    let (a, b) = (node(&pool, "a", cid), node(&pool, "b", cid));
    let old = pool.epochs(cid).unwrap();
    pool.add_access(a, cid, old, &bits(&[1], &[1], &[])).unwrap();
    pool.add_access(b, cid, old, &bits(&[2], &[2], &[])).unwrap();
    pool.add_users_bits(cid, &bits(&[16], &[16], &[8])).unwrap();
    pool.reset_access(cid, false).unwrap();
    assert_eq!(merged(&pool, cid), [0, 19, 8]);
    // A clone that began before it adds nothing to what is accessed.
    pool.add_access(a, cid, old, &bits(&[32], &[32], &[])).unwrap();
    assert_eq!(merged(&pool, cid), [0, 51, 8]);
    let new = pool.epochs(cid).unwrap();
    pool.add_access(a, cid, new, &bits(&[64], &[], &[])).unwrap();
    assert_eq!(merged(&pool, cid), [64, 51, 8]);
    pool.reset_access(cid, true).unwrap();
    assert_eq!(merged(&pool, cid), [0, 0, 8]);
    pool.clear_hot(cid, &[8]).unwrap();
    assert_eq!(merged(&pool, cid), [0; 3]);
}

#[test]
fn tables_go_with_their_image_and_leave_nothing_to_the_next() {
    let place = Place::new();
    let pool = place.pool(8);
    let cid = publish(&pool, 1, 7);
    let node = node(&pool, "a", cid);
    pool.add_access(node, cid, Epochs::default(), &bits(&[1], &[1], &[])).unwrap();
    pool.add_users_bits(cid, &bits(&[], &[], &[8])).unwrap();
    pool.remove(cid).unwrap();
    assert!(matches!(pool.access_tables(cid), Err(PoolError::NoImage { .. })));
    assert!(matches!(pool.reset_access(cid, false), Err(PoolError::NoImage { .. })));
    // Clones that still run go on recording, and no other image gets the chunks.
    pool.add_access(node, cid, Epochs::default(), &bits(&[2], &[], &[])).unwrap();
    assert_eq!(pool.info().unwrap().used_bytes, 3 * CHUNK_BYTES);
    assert_eq!(pool.check().unwrap().findings, []);
    pool.unpin(node, cid).unwrap();
    assert_eq!(pool.info().unwrap().used_bytes, 0);
    assert_eq!(pool.check().unwrap().findings, []);
    let next = publish(&pool, 1, 7);
    assert_eq!(pool.access_tables(next).unwrap(), []);
    let denied = pool.add_access(node, next, Epochs::default(), &bits(&[1], &[], &[]));
    assert!(matches!(denied, Err(PoolError::NoImage { .. })), "without a pin");
}

#[test]
fn damaged_tables_are_reported_and_dropped_when_not_written() {
    let place = Place::new();
    let pool = place.pool(8);
    let cid = publish(&pool, 1, 7);
    let node = node(&pool, "a", cid);
    pool.add_access(node, cid, Epochs::default(), &bits(&[1], &[1], &[])).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(place.path()).unwrap();
    let table = (0..8 * CHUNK_BYTES / 4096)
        .map(|page| page * 4096)
        .find(|at| {
            let mut magic = [0; 8];
            file.read_exact_at(&mut magic, *at).unwrap();
            magic == *b"farforkT"
        })
        .unwrap();
    file.write_all_at(&[9], table + 48).unwrap();
    assert!(matches!(pool.access_tables(cid), Err(PoolError::DamagedTables { .. })));
    let denied = pool.add_access(node, cid, Epochs::default(), &bits(&[2], &[], &[]));
    assert!(matches!(denied, Err(PoolError::DamagedTables { .. })));
    let kept = Finding::DamagedTables { cid, is_dropped: false };
    assert_eq!(pool.check().unwrap().findings, std::slice::from_ref(&kept));
    assert!(kept.is_damage() && kept.to_string().contains("end its clones"));
    pool.unpin(node, cid).unwrap();
    let dropped = Finding::DamagedTables { cid, is_dropped: true };
    assert_eq!(pool.check().unwrap().findings, [dropped]);
    assert_eq!(pool.check().unwrap().findings, []);
    assert_eq!(pool.access_tables(cid).unwrap(), []);
    assert_eq!(pool.info().unwrap().used_bytes, CHUNK_BYTES);
}

#[test]
fn a_pool_without_room_says_so_and_loses_nothing() {
    let place = Place::new();
    let pool = place.pool(4);
    let cid = publish(&pool, 2, 7);
    let full = pool.add_users_bits(cid, &bits(&[], &[], &[8]));
    assert!(matches!(full, Err(PoolError::Full { .. })), "{full:?}");
    assert_eq!(pool.check().unwrap().findings, []);
    assert_eq!(pool.info().unwrap().used_bytes, 2 * CHUNK_BYTES);
}
