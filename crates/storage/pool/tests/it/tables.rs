//! Side tables: what is learnt about the pages of an image that is sealed.

use std::fs;

use farfork_pool::{Epochs, Finding, NodeId, PageBits, Pool, PoolError, failpoint};
use farfork_types::Cid;

use crate::common::{Place, await_used, bits, is_filled, publish, register, used};

/// The first words of all tables, merged: accessed, dirtied, hot.
fn merged(pool: &Pool, cid: Cid) -> [u64; 3] {
    let PageBits { accessed, dirtied, hot } = pool.access(cid).unwrap();
    [accessed, dirtied, hot].map(|set| set.first().copied().unwrap_or(0))
}

fn node(pool: &Pool, name: &str) -> NodeId {
    register(pool, name).id()
}

#[test]
fn each_node_and_the_users_have_a_table_and_readers_merge_them() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 3, 7);
    assert_eq!(pool.access_tables(cid).unwrap(), []);
    assert_eq!(pool.access_version(cid).unwrap(), 0);
    let (a, b) = (node(&pool, "a"), node(&pool, "b"));
    let before = used(&pool);
    pool.add_access(a, cid, Epochs::default(), &bits(&[1], &[1], &[])).unwrap();
    pool.add_access(b, cid, Epochs::default(), &bits(&[2], &[], &[])).unwrap();
    pool.add_access(a, cid, Epochs::default(), &bits(&[4], &[4], &[])).unwrap();
    pool.add_users_bits(cid, &bits(&[], &[], &[8])).unwrap();
    assert_eq!(merged(&pool, cid), [7, 5, 8]);
    let tables = pool.access_tables(cid).unwrap();
    let additions = |node: Option<NodeId>| {
        tables.iter().find(|table| table.node == node).map(|table| table.additions)
    };
    assert_eq!([Some(a), Some(b), None].map(additions), [Some(2), Some(1), Some(1)]);
    assert_eq!(tables.len(), 3);
    let info = pool.info().unwrap();
    assert_eq!(info.images[0].table_bytes, 3 * 4096);
    if place.is_mounted {
        await_used(&pool, before + 3 * 4096);
    }
    // Another process sees the same, and the image is what it was.
    let again = Pool::open(&place.path()).unwrap();
    assert_eq!(merged(&again, cid), [7, 5, 8]);
    assert!(is_filled(&pool.find(cid).unwrap(), 3, 7));
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_reset_ends_an_epoch_for_all_nodes_at_once() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    let (a, b) = (node(&pool, "a"), node(&pool, "b"));
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
fn whoever_has_read_the_tables_sees_that_they_changed() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    let a = node(&pool, "a");
    let mut seen = vec![pool.access_version(cid).unwrap()];
    let changes: [&dyn Fn(); 4] = [
        &|| pool.add_access(a, cid, Epochs::default(), &bits(&[1], &[], &[])).unwrap(),
        &|| pool.add_users_bits(cid, &bits(&[], &[], &[1])).unwrap(),
        &|| pool.clear_hot(cid, &[1]).unwrap(),
        &|| pool.reset_access(cid, true).unwrap(),
    ];
    for change in changes {
        change();
        let version = pool.access_version(cid).unwrap();
        assert_eq!(version, pool.access_version(cid).unwrap());
        assert!(!seen.contains(&version), "{seen:?}, {version}");
        seen.push(version);
    }
}

#[test]
fn tables_go_with_their_image() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        let node = node(&pool, "a");
        let before = used(&pool);
        let cid = publish(&pool, 1, 7);
        pool.add_access(node, cid, Epochs::default(), &bits(&[1], &[1], &[])).unwrap();
        pool.add_users_bits(cid, &bits(&[], &[], &[8])).unwrap();
        pool.remove(cid).unwrap();
        let late = pool.add_access(node, cid, Epochs::default(), &bits(&[2], &[], &[]));
        for denied in [
            pool.access_tables(cid).map(drop),
            pool.reset_access(cid, false),
            pool.add_users_bits(cid, &PageBits::default()),
            late,
        ] {
            assert!(matches!(denied, Err(PoolError::NoImage { .. })));
        }
        assert_eq!(place.list("tables"), [""; 0]);
        await_used(&pool, before);
        assert_eq!(pool.check().unwrap().findings, []);
    }
}

#[test]
fn a_removal_at_any_step_of_a_note_leaves_no_table() {
    let place = Place::new();
    let pool = place.pool();
    let node = node(&pool, "a");
    for step in 0.. {
        let cid = publish(&pool, 1, 7);
        let path = place.path();
        let removal = move || Pool::open(&path).unwrap().remove(cid).unwrap();
        failpoint::happen_after(step, Some(Box::new(removal)));
        let noted = pool.add_access(node, cid, Epochs::default(), &bits(&[1], &[], &[]));
        if failpoint::happen_after(0, None) {
            noted.unwrap();
            assert!(step > 2, "{step}");
            return;
        }
        assert!(matches!(noted, Err(PoolError::NoImage { .. })), "step {step}: {noted:?}");
        assert_eq!((place.list("tables"), place.list("new")), (vec![], vec![]), "step {step}");
        assert_eq!(pool.check().unwrap().findings, [], "step {step}");
    }
}

#[test]
fn damaged_tables_are_reported_and_dropped() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    let node = node(&pool, "a");
    let path = |writer: &str| place.file(&format!("tables/{cid}/{writer}"));
    for writer in ["users", &node.to_string()] {
        pool.add_access(node, cid, Epochs::default(), &bits(&[1], &[1], &[])).unwrap();
        pool.add_users_bits(cid, &bits(&[], &[], &[8])).unwrap();
        let sound = fs::read(path(writer)).unwrap();
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x80;
            fs::write(path(writer), &damaged).unwrap();
            let read = pool.access_tables(cid);
            assert!(matches!(read, Err(PoolError::DamagedTables { .. })), "{writer}, byte {at}");
            let _ = (pool.access_version(cid), pool.epochs(cid), pool.info().unwrap());
            let denied = pool.add_access(node, cid, Epochs::default(), &bits(&[2], &[], &[]));
            assert!(matches!(denied, Err(PoolError::DamagedTables { .. })), "{writer}, byte {at}");
        }
        for damaged in [&sound[..sound.len() - 1], &sound[..100], &[]] {
            fs::write(path(writer), damaged).unwrap();
            assert!(matches!(pool.access_tables(cid), Err(PoolError::DamagedTables { .. })));
        }
        let report = pool.check().unwrap();
        assert_eq!(report.findings, [Finding::DamagedTables { cid }]);
        assert!(!report.is_sound());
        assert_eq!(pool.check().unwrap().findings, []);
        assert_eq!(pool.access_tables(cid).unwrap(), []);
    }
}

#[test]
fn what_lies_among_the_tables_and_is_none_goes_with_a_check() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    let table = place.file(&format!("tables/{cid}"));
    fs::write(&table, "x").unwrap();
    fs::write(place.file("tables/stray"), "x").unwrap();
    fs::create_dir(place.file("tables/another")).unwrap();
    assert_eq!(pool.info().unwrap().images.len(), 1);
    let mut findings = pool.check().unwrap().findings;
    findings.sort_by_key(|finding| (finding.is_damage(), finding.to_string()));
    let lost = |name: &str| Finding::LostTables { name: name.into() };
    let expected = [lost("another"), lost("stray"), Finding::DamagedTables { cid }];
    assert_eq!(findings, expected);
    assert_eq!(pool.check().unwrap().findings, []);
    pool.add_users_bits(cid, &bits(&[], &[], &[8])).unwrap();
    pool.remove(cid).unwrap();
    assert_eq!(place.list("tables"), [""; 0]);
}

#[test]
fn the_order_of_accesses_grows_and_ends_with_its_epoch() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    assert_eq!(pool.access_order(cid).unwrap(), [0; 0]);
    pool.add_access_order(cid, &[7, 3, 7]).unwrap();
    pool.add_access_order(cid, &[3, 1]).unwrap();
    assert_eq!(pool.access_order(cid).unwrap(), [7, 3, 1]);
    assert_eq!((pool.access_tables(cid).unwrap(), pool.access_version(cid).unwrap()), (vec![], 0));
    assert_eq!(pool.check().unwrap().findings, []);
    pool.reset_access(cid, false).unwrap();
    assert_eq!(pool.access_order(cid).unwrap(), [0; 0]);
    pool.add_access_order(cid, &[5]).unwrap();
    assert_eq!(pool.access_order(cid).unwrap(), [5]);
    fs::write(place.path().join(format!("tables/{cid}/order")), [1; 80]).unwrap();
    let damaged = pool.access_order(cid).unwrap_err();
    assert!(matches!(damaged, PoolError::DamagedTables { .. }), "{damaged}");
    assert_eq!(pool.check().unwrap().findings, [Finding::DamagedTables { cid }]);
    assert_eq!(pool.access_order(cid).unwrap(), [0; 0]);
    pool.add_access_order(cid, &[5]).unwrap();
    pool.remove(cid).unwrap();
    assert!(!place.path().join(format!("tables/{cid}")).exists());
    assert!(matches!(pool.add_access_order(cid, &[1]), Err(PoolError::NoImage { .. })));
}
