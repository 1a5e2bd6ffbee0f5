//! One process, the whole life of images.

mod common;

use std::os::fd::AsRawFd;

use common::{Place, is_filled, publish, register};
use farfork_pool::{Extent, ImageState, Pool, PoolError};
use farfork_types::{CHUNK_BYTES, Cid};

const NOBODY: Cid = Cid::NIL;

#[test]
fn an_image_is_invisible_until_it_is_published_and_after_it_is_removed() {
    let place = Place::new();
    let pool = place.pool(16);
    let mut writer = pool.begin().unwrap();
    let cid = writer.cid();
    let run = writer.allocate(2).unwrap()[0];
    writer.write(run.offset + 5, b"hello");
    assert!(matches!(pool.find(cid), Err(PoolError::NoImage { .. })));
    assert_eq!(writer.publish(4096).unwrap(), cid);

    let other = Pool::open(&place.path()).unwrap();
    let image = other.find(cid).unwrap();
    assert_eq!((image.root_len, image.extents.as_slice()), (4096, [run].as_slice()));
    assert_eq!(other.bytes(run.offset + 5, 5).unwrap(), b"hello");

    other.remove(cid).unwrap();
    assert!(matches!(pool.find(cid), Err(PoolError::NoImage { .. })));
    assert!(matches!(pool.remove(cid), Err(PoolError::NoImage { .. })));
    assert!(matches!(pool.find(NOBODY), Err(PoolError::NoImage { .. })));
    assert_eq!(pool.info().unwrap().used_bytes, 0);
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn what_was_reserved_in_vain_goes_back_clean() {
    let place = Place::new();
    let pool = place.pool(16);
    let free = pool.info().unwrap().free_bytes;
    let mut writer = pool.begin().unwrap();
    let (first, second) = (writer.allocate(2).unwrap()[0], writer.allocate(3).unwrap()[0]);
    writer.populate();
    writer.bytes_mut(second).fill(7);
    writer.keep(3).unwrap();
    assert_eq!(writer.extents(), [first, Extent { chunks: 1, ..second }]);
    assert_eq!(pool.info().unwrap().free_bytes, free - 3 * CHUNK_BYTES);
    assert_eq!(pool.check().unwrap().findings, []);
    writer.keep(9).unwrap();
    let root = writer.allocate(1).unwrap()[0];
    writer.put_first(root);
    writer.write(root.offset, b"root");
    let cid = writer.publish(4).unwrap();
    let image = pool.find(cid).unwrap();
    assert_eq!(image.extents, [root, first, Extent { chunks: 1, ..second }]);
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_writer_that_gives_up_leaves_nothing() {
    let place = Place::new();
    let pool = place.pool(16);
    let free = pool.info().unwrap().free_bytes;
    let mut writer = pool.begin().unwrap();
    writer.allocate(3).unwrap();
    let info = pool.info().unwrap();
    assert_eq!(info.free_bytes, free - 3 * CHUNK_BYTES);
    assert_eq!(info.images[0].state, ImageState::Writing);
    assert_eq!(info.images[0].bytes, 3 * CHUNK_BYTES);
    drop(writer);
    let info = pool.info().unwrap();
    assert_eq!((info.free_bytes, info.images.len()), (free, 0));
    let root = pool.begin().unwrap().publish(1);
    assert!(matches!(root, Err(PoolError::BadRoot { .. })));
    assert_eq!(pool.info().unwrap().images, []);
}

#[test]
fn chunks_come_zeroed_whatever_they_held() {
    let place = Place::new();
    let pool = place.pool(8);
    let all = (pool.info().unwrap().free_bytes / CHUNK_BYTES) as u32;
    for _ in 0..3 {
        let cid = publish(&pool, all, 0xa5);
        pool.remove(cid).unwrap();
        let mut writer = pool.begin().unwrap();
        let runs = writer.allocate(all).unwrap();
        assert!(is_filled(&pool, &runs, 0));
    }
}

#[test]
fn fragments_are_used_when_there_is_no_whole_run() {
    let place = Place::new();
    let pool = place.pool(12);
    let cids: Vec<_> = (0..10).map(|fill| publish(&pool, 1, fill)).collect();
    for index in [1, 3, 4, 5, 8] {
        pool.remove(cids[index]).unwrap();
    }
    let mut writer = pool.begin().unwrap();
    let lengths: Vec<_> = writer.allocate(4).unwrap().iter().map(|run| run.chunks).collect();
    assert_eq!(lengths.iter().sum::<u32>(), 4);
    assert_eq!(lengths.len(), 2);
    let cid = writer.publish(0).unwrap();
    assert_eq!(pool.find(cid).unwrap().extents.len(), 2);
    assert!(is_filled(&pool, &pool.find(cids[9]).unwrap().extents, 9));
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_full_pool_says_what_is_asked_and_what_is_free() {
    let place = Place::new();
    let pool = place.pool(6);
    let cid = publish(&pool, 3, 1);
    let mut writer = pool.begin().unwrap();
    let error = writer.allocate(2).unwrap_err();
    assert!(matches!(error, PoolError::Full { asked, free, .. }
        if asked == 2 * CHUNK_BYTES && free == CHUNK_BYTES));
    assert!(error.to_string().contains("farfork images rm"), "{error}");
    assert!(is_filled(&pool, &pool.find(cid).unwrap().extents, 1));
    assert_eq!(writer.allocate(1).unwrap().len(), 1);
}

#[test]
fn a_full_image_table_says_so() {
    let place = Place::new();
    let pool = place.pool(6);
    for _ in 0..farfork_pool::MAX_IMAGES {
        pool.begin().unwrap().publish(0).unwrap();
    }
    assert!(matches!(pool.begin(), Err(PoolError::TooManyImages { .. })));
}

#[test]
fn writers_of_one_process_do_not_take_each_other_for_dead() {
    let place = Place::new();
    let pool = place.pool(16);
    let mut one = pool.begin().unwrap();
    let run = one.allocate(2).unwrap()[0];
    let mut two = pool.begin().unwrap();
    let other = two.allocate(2).unwrap()[0];
    assert_eq!(pool.check().unwrap().findings, []);
    assert_ne!(run, other);
    one.publish(0).unwrap();
    two.publish(0).unwrap();
    assert_eq!(pool.check().unwrap().images, 2);
}

#[test]
fn threads_share_a_pool() {
    let place = Place::new();
    let pool = place.pool(40);
    std::thread::scope(|scope| {
        for fill in 1..5 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..20 {
                    let cid = publish(pool, 3, fill);
                    assert!(is_filled(pool, &pool.find(cid).unwrap().extents, fill));
                    pool.remove(cid).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.info().unwrap().used_bytes, 0);
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn clones_get_a_file_that_they_cannot_write() {
    let place = Place::new();
    let pool = place.pool(6);
    let fd = pool.open_read_only().unwrap();
    let fdinfo = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let flags = std::fs::read_to_string(fdinfo).unwrap();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    assert_eq!(u32::from_str_radix(flags, 8).unwrap() & 0o3, 0);
}

#[test]
fn what_lies_outside_of_the_data_is_not_read() {
    let place = Place::new();
    let pool = place.pool(6);
    for (offset, len) in [(0, 1), (5 * CHUNK_BYTES, CHUNK_BYTES + 1), (u64::MAX, 2)] {
        assert!(matches!(pool.bytes(offset, len), Err(PoolError::OutOfRange { .. })));
    }
}

#[test]
fn info_is_one_json_document() {
    let place = Place::new();
    let pool = place.pool(6);
    let cid = publish(&pool, 1, 1);
    let row = register(&pool, "here");
    let node = row.slot();
    pool.pin(node, cid).unwrap();
    let json = serde_json::to_value(pool.info().unwrap()).unwrap();
    assert_eq!(json["images"][0]["cid"], cid.to_string());
    assert_eq!(json["images"][0]["state"], "published");
    assert_eq!(json["images"][0]["pinned_by"][0], "here");
    assert_eq!(json["nodes"][0], "here");
    if place.mounted {
        assert_eq!((&json["medium"], &json["notes"]), (&"tmpfs".into(), &serde_json::json!([])));
    }
    pool.unpin(node, cid).unwrap();
}
