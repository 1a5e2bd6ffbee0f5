//! One process, the whole life of images.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use farfork_pool::{ImageState, ImageWriter, Pool, PoolError};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};
use memmap2::MmapOptions;

use crate::common::{Place, await_used, is_filled, publish, register, used};

#[test]
fn an_image_is_invisible_until_it_is_published_and_after_it_is_removed() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        let before = used(&pool);
        let mut writer = pool.begin(None).unwrap();
        let cid = writer.cid();
        writer.reserve(2 * CHUNK_BYTES).unwrap();
        writer.bytes_mut(5..10).copy_from_slice(b"hello");
        assert!(matches!(pool.find(cid), Err(PoolError::NoImage { .. })));
        assert_eq!(pool.images().unwrap(), []);
        assert_eq!(writer.publish().unwrap().0, cid);

        let other = Pool::open(&place.path()).unwrap();
        let image = other.find(cid).unwrap();
        assert_eq!((image.id.cid, image.id.bytes), (cid, 2 * CHUNK_BYTES));
        assert_eq!(image.read(5, 5).unwrap(), b"hello");
        assert_eq!(other.images().unwrap(), [cid]);
        let past = [(2 * CHUNK_BYTES, 1), (0, 2 * CHUNK_BYTES + 1), (u64::MAX, 2)];
        for (offset, len) in past {
            assert!(matches!(image.read(offset, len), Err(PoolError::TruncatedImage { .. })));
        }
        other.remove(cid).unwrap();
        assert!(matches!(pool.find(cid), Err(PoolError::NoImage { .. })));
        assert!(matches!(pool.remove(cid), Err(PoolError::NoImage { .. })));
        assert!(matches!(pool.find(Cid::NIL), Err(PoolError::NoImage { .. })));
        assert_eq!(image.read(5, 5).unwrap(), b"hello");
        drop(image);
        await_used(&pool, before);
        assert_eq!(pool.check().unwrap().findings, []);
    }
}

#[test]
fn a_published_image_can_be_read_by_its_owner_only_and_written_by_nobody() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    let image = pool.find(cid).unwrap();
    let found = image.file().metadata().unwrap();
    assert_eq!(found.permissions().mode() & 0o7777, 0o400);
    assert_eq!((image.id.device, image.id.inode), (found.dev(), found.ino()));
    assert_eq!(image.id.created_unix_s, found.mtime() as u64);
    let fdinfo = format!("/proc/self/fdinfo/{}", image.file().as_raw_fd());
    let flags = std::fs::read_to_string(fdinfo).unwrap();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    assert_eq!(u32::from_str_radix(flags, 8).unwrap() & 0o3, 0);
    assert_eq!(std::fs::metadata(place.path()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn an_image_is_held_until_its_writer_lets_go() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        let mut writer = pool.begin(None).unwrap();
        writer.reserve(CHUNK_BYTES).unwrap();
        let (cid, held) = writer.publish().unwrap();
        let other = Pool::open(&place.path()).unwrap();
        assert!(pool.is_held(cid).unwrap());
        assert!(other.is_held(cid).unwrap());
        drop(held);
        assert!(!other.is_held(cid).unwrap());
        assert!(matches!(pool.is_held(Cid::NIL), Err(PoolError::NoImage { .. })));
    }
}

#[test]
fn an_image_is_written_in_a_named_file_where_there_are_no_others() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool().with_named_files();
        let before = used(&pool);
        let mut writer = pool.begin(None).unwrap();
        writer.reserve(2 * CHUNK_BYTES).unwrap();
        writer.bytes_mut(0..2 * CHUNK_BYTES).fill(7);
        assert_eq!(place.list("new").len(), 1);
        // Other writers, and a check, leave it alone.
        drop(pool.begin(None).unwrap());
        assert_eq!(pool.check().unwrap().findings, []);
        let (cid, held) = writer.publish().unwrap();
        assert_eq!(place.list("new"), [""; 0]);
        assert!(pool.is_held(cid).unwrap());
        assert!(is_filled(&pool.find(cid).unwrap(), 2, 7));
        drop(held);
        assert!(!pool.is_held(cid).unwrap());
        pool.remove(cid).unwrap();
        drop(pool.begin(None).unwrap());
        assert_eq!(place.list("new"), [""; 0]);
        await_used(&pool, before);
    }
}

/// What a clone does with an image.
fn map(pool: &Pool, cid: Cid) -> memmap2::Mmap {
    let image = pool.find(cid).unwrap();
    #[allow(unsafe_code)] // reason: see SAFETY
    // SAFETY: no process writes to the file or truncates it.
    unsafe { MmapOptions::new().map(image.file()) }.unwrap()
}

#[test]
fn a_mapping_outlives_the_removal_and_the_pool_and_its_memory_comes_back_with_it() {
    let place = Place::new();
    let pool = place.pool();
    let before = used(&pool);
    let cid = publish(&pool, 3, 7);
    let map = map(&pool, cid);
    pool.remove(cid).unwrap();
    let info = pool.info().unwrap();
    assert_eq!(info.images, []);
    if place.is_mounted {
        assert_eq!(info.used_bytes, before + 3 * CHUNK_BYTES);
        assert!(info.unlisted_bytes >= 3 * CHUNK_BYTES);
    }
    assert!(map.iter().all(|byte| *byte == 7));
    drop(map);
    await_used(&pool, before);

    let map = self::map(&pool, publish(&pool, 1, 9));
    crate::common::destroy(&place.path());
    assert!(map.iter().all(|byte| *byte == 9));
}

#[test]
fn what_a_process_maps_of_a_removed_image_is_known_as_its() {
    let place = Place::new();
    let pool = place.pool();
    let (cid, other) = (publish(&pool, 1, 7), publish(&pool, 1, 8));
    let open = |cid| std::fs::File::open(place.file(&format!("images/{cid}"))).unwrap();
    let (published, removed) = (open(cid), open(other));
    pool.remove(other).unwrap();
    assert!(pool.image_of(published.try_clone().unwrap(), cid).unwrap().is_some());
    assert!(pool.image_of(published, other).unwrap().is_none());
    // Elsewhere any process may have made the file.
    assert_eq!(pool.image_of(removed, other).unwrap().is_some(), place.is_mounted);
    let file = tempfile::tempfile().unwrap();
    assert!(pool.image_of(file, cid).unwrap().is_none());
}

#[test]
fn what_was_reserved_in_vain_goes_back() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        let before = used(&pool);
        let mut writer = pool.begin(None).unwrap();
        writer.reserve(CHUNK_BYTES + 1).unwrap();
        assert_eq!(writer.bytes(), 2 * CHUNK_BYTES);
        writer.reserve(8 * CHUNK_BYTES).unwrap();
        writer.populate();
        assert_eq!(writer.taken().unwrap(), 8 * CHUNK_BYTES);
        writer.bytes_mut(0..8 * CHUNK_BYTES).fill(7);
        // The first page, a chunk with a hole before it, and a small hole that stays.
        let kept =
            [0..100, 4 * CHUNK_BYTES..5 * CHUNK_BYTES - 8192, 5 * CHUNK_BYTES..5 * CHUNK_BYTES + 1];
        assert_eq!(ImageWriter::file_bytes(&kept), 5 * CHUNK_BYTES + PAGE_BYTES);
        writer.keep(&kept).unwrap();
        let taken = 2 * PAGE_BYTES + CHUNK_BYTES;
        assert_eq!(writer.taken().unwrap(), taken);
        let cid = writer.publish().unwrap().0;
        let image = pool.find(cid).unwrap();
        assert_eq!(image.id.bytes, 5 * CHUNK_BYTES + PAGE_BYTES);
        assert_eq!(image.read(99, 1).unwrap(), [7]);
        assert_eq!(image.read(PAGE_BYTES, 2).unwrap(), [0, 0]);
        assert_eq!(image.read(4 * CHUNK_BYTES, 2).unwrap(), [7, 7]);
        await_used(&pool, before + taken);
        assert_eq!(pool.info().unwrap().images[0].bytes, taken);
        pool.remove(cid).unwrap();
        drop(image);
        await_used(&pool, before);
    }
}

#[test]
fn memory_comes_zeroed_whatever_it_held() {
    let place = Place::of(16 << 20);
    let pool = place.pool();
    let before = used(&pool);
    for _ in 0..3 {
        pool.remove(publish(&pool, 7, 0xa5)).unwrap();
        await_used(&pool, before);
        let mut writer = pool.begin(None).unwrap();
        writer.reserve(7 * CHUNK_BYTES).unwrap();
        assert!(writer.bytes_mut(0..7 * CHUNK_BYTES).iter().all(|byte| *byte == 0));
        drop(writer);
        await_used(&pool, before);
    }
}

#[test]
fn a_writer_that_gives_up_leaves_nothing() {
    for named in [false, true] {
        let place = Place::new();
        let pool = if named { place.pool().with_named_files() } else { place.pool() };
        let before = used(&pool);
        let mut writer = pool.begin(None).unwrap();
        writer.reserve(3 * CHUNK_BYTES).unwrap();
        let info = pool.info().unwrap();
        if place.is_mounted {
            assert_eq!(info.used_bytes, before + 3 * CHUNK_BYTES);
            assert!(info.unlisted_bytes >= 3 * CHUNK_BYTES);
        }
        assert_eq!(info.images, []);
        drop(writer);
        await_used(&pool, before);
        assert_eq!(pool.check().unwrap().findings, []);
        assert_eq!(place.list("new"), [""; 0]);
    }
}

#[test]
fn threads_share_a_pool() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool().with_named_files();
        let before = used(&pool);
        std::thread::scope(|scope| {
            for fill in 1..5 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..10 {
                        let cid = publish(pool, 2, fill);
                        assert!(is_filled(&pool.find(cid).unwrap(), 2, fill));
                        pool.remove(cid).unwrap();
                    }
                });
            }
        });
        await_used(&pool, before);
        assert_eq!(pool.check().unwrap().findings, []);
    }
}

#[test]
fn info_is_one_json_document() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 1, 1);
    let row = register(&pool, "here");
    pool.pin(&row, cid).unwrap();
    let json = serde_json::to_value(pool.info().unwrap()).unwrap();
    assert_eq!(json["images"][0]["cid"], cid.to_string());
    assert_eq!(json["images"][0]["state"], "published");
    assert_eq!(json["images"][0]["bytes"], CHUNK_BYTES);
    assert_eq!(json["images"][0]["pinned_by"][0], "here");
    assert_eq!(json["nodes"][0], "here");
    let bytes = |name: &str| json[name].as_u64().unwrap();
    assert_eq!(bytes("size_bytes"), bytes("used_bytes") + bytes("free_bytes"));
    if place.is_mounted {
        assert_eq!((&json["medium"], &json["notes"]), (&"tmpfs".into(), &serde_json::json!([])));
        assert_eq!(bytes("size_bytes"), 128 << 20);
    }
    assert_eq!(pool.info().unwrap().images[0].state, ImageState::Published);
}

#[test]
fn a_pool_in_use_is_destroyed_by_force_only() {
    let place = Place::plain();
    let pool = place.pool();
    let cid = publish(&pool, 1, 1);
    let row = register(&pool, "busy");
    pool.pin(&row, cid).unwrap();
    let error = Pool::destroy(&place.path()).unwrap_err().to_string();
    assert!(error.contains("node busy runs clones"), "{error}");
    pool.unpin(&row, cid).unwrap();
    let writer = pool.begin(None).unwrap();
    let error = Pool::destroy(&place.path()).unwrap_err();
    assert!(matches!(&error, PoolError::InUse { users, .. } if users.contains("written")));
    drop(writer);
    pool.pin(&row, cid).unwrap();
    Pool::destroy_used(&place.path()).unwrap();
    assert!(!place.path().exists());
    assert!(matches!(pool.find(cid), Err(PoolError::Gone { .. })));
}

#[test]
fn a_destroyed_pool_leaves_an_empty_mount() {
    let place = Place::new();
    let pool = place.pool();
    publish(&pool, 1, 1);
    pool.set_name(["a", "b", "c"], Cid::NIL).unwrap();
    drop(register(&pool, "n"));
    crate::common::destroy(&place.path());
    assert_eq!(place.path().exists(), place.is_mounted);
    assert_eq!(place.list("."), [""; 0]);
    // Where there was one, another can be made.
    assert_eq!(place.pool().images().unwrap(), []);
}
