//! Pools, media and users that have no room left.

use std::fs;

use farfork_pool::{Pool, PoolError, Quota, mount_tmpfs};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::child::USER;
use crate::common::{Place, await_used, is_filled, publish, publish_for, used};

#[test]
fn a_full_pool_says_what_is_asked_and_what_is_free() {
    let place = Place::plain();
    let pool = place.small_pool(4);
    let cid = publish(&pool, 3, 1);
    let mut writer = pool.begin(None).unwrap();
    let error = writer.reserve(2 * CHUNK_BYTES).unwrap_err();
    assert!(matches!(error, PoolError::Full { asked, free, .. }
        if asked == 2 * CHUNK_BYTES && free == CHUNK_BYTES));
    assert!(error.to_string().contains("farfork images rm"), "{error}");
    assert_eq!(writer.taken().unwrap(), 0);
    // What a writer has itself counts, too.
    writer.reserve(CHUNK_BYTES).unwrap();
    assert!(matches!(writer.reserve(2 * CHUNK_BYTES), Err(PoolError::Full { .. })));
    writer.bytes_mut(0..CHUNK_BYTES).fill(2);
    let other = writer.publish().unwrap().0;
    assert!(is_filled(&pool.find(cid).unwrap(), 3, 1));
    assert!(is_filled(&pool.find(other).unwrap(), 1, 2));
    assert_eq!(pool.info().unwrap().free_bytes, 0);
    pool.remove(cid).unwrap();
    publish(&pool, 3, 1);
}

#[test]
fn of_two_writers_the_second_to_publish_finds_the_pool_full() {
    let place = Place::plain();
    let pool = place.small_pool(4);
    let writers = [(); 2].map(|()| {
        let mut writer = pool.begin(Some(USER)).unwrap();
        writer.reserve(3 * CHUNK_BYTES).unwrap();
        writer
    });
    let [first, second] = writers.map(|writer| writer.publish());
    let cid = first.unwrap().0;
    assert!(matches!(second, Err(PoolError::Full { asked, free, .. })
        if asked == 3 * CHUNK_BYTES && free == CHUNK_BYTES));
    assert_eq!(pool.images().unwrap(), [cid]);
    assert_eq!(used(&pool), 3 * CHUNK_BYTES);
    assert_eq!(place.list("users/amy"), [cid.to_string()]);
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_full_mount_is_a_full_pool() {
    let place = Place::of(8 << 20);
    if !place.is_mounted {
        return;
    }
    // However large it was to be: the mount is what limits it.
    let pool = place.small_pool(64);
    let before = used(&pool);
    let cid = publish(&pool, 2, 1);
    let mut writer = pool.begin(None).unwrap();
    writer.reserve(CHUNK_BYTES).unwrap();
    let error = writer.reserve(2 * CHUNK_BYTES).unwrap_err();
    assert!(matches!(error, PoolError::Full { asked: CHUNK_BYTES, .. }), "{error}");
    drop(writer);
    await_used(&pool, before + 2 * CHUNK_BYTES);
    pool.remove(cid).unwrap();
    await_used(&pool, before);
}

#[test]
fn a_medium_smaller_than_its_pool_is_reported_and_nothing_is_left() {
    let place = Place::plain();
    let small = place.dir().join("small");
    fs::create_dir(&small).unwrap();
    if let Err(error) = mount_tmpfs(&small, 10 << 20) {
        println!("skipped: {error}");
        return;
    }
    let path = small.join("pool");
    let pool = Pool::create(&path, 64 * CHUNK_BYTES).unwrap();
    let before = used(&pool);
    let mut writer = pool.begin(None).unwrap();
    writer.reserve(CHUNK_BYTES).unwrap();
    writer.bytes_mut(0..CHUNK_BYTES).fill(1);
    let error = writer.reserve(8 * CHUNK_BYTES).unwrap_err();
    assert!(matches!(error, PoolError::MediumFull { asked, .. } if asked == 7 * CHUNK_BYTES));
    assert!(error.to_string().contains("enlarge the mount"), "{error}");
    // What the writer had is as it was, and so is the rest of the medium.
    assert_eq!(writer.taken().unwrap(), CHUNK_BYTES);
    assert!(writer.bytes_mut(0..CHUNK_BYTES).iter().all(|byte| *byte == 1));
    writer.reserve(4 * CHUNK_BYTES).unwrap();
    drop(writer);
    // A process that another test has forked has the file open until it executes its program.
    await_used(&pool, before);
    // More than half of what the medium has: what an image has taken is not asked of it again.
    let cid = publish(&pool, 4, 7);
    assert!(is_filled(&pool.find(cid).unwrap(), 4, 7));
    drop(pool);
    crate::common::destroy(&path);
    rustix::mount::unmount(&small, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_publication_that_the_medium_refuses_leaves_nothing() {
    let place = Place::of(64 << 20);
    if !place.is_mounted {
        return;
    }
    let pool = place.pool();
    let before = used(&pool);
    let mut writer = pool.begin(Some(USER)).unwrap();
    writer.reserve(CHUNK_BYTES).unwrap();
    // Neither a directory nor a link can be made any more.
    let inodes = rustix::fs::statvfs(place.path()).unwrap();
    let limit = format!("nr_inodes={}", inodes.f_files - inodes.f_ffree);
    remount(&place, &limit);
    let error = writer.publish().unwrap_err();
    assert!(
        matches!(&error, PoolError::Io { source, .. }
        if source.kind() == std::io::ErrorKind::StorageFull),
        "{error}"
    );
    assert!(error.to_string().contains("enlarge the mount"), "{error}");
    remount(&place, "nr_inodes=1000");
    assert_eq!((pool.images().unwrap(), place.list("users")), (vec![], vec![]));
    await_used(&pool, before);
    publish(&pool, 1, 7);
}

fn remount(place: &Place, options: &str) {
    let options = std::ffi::CString::new(options).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount_remount(place.path(), flags, options.as_c_str()).unwrap();
}

#[test]
fn users_have_what_they_may_have() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        assert_eq!(pool.quota(USER).unwrap(), Quota::NONE);
        let first = publish_for(Some(USER), &pool, 1, 7).unwrap();
        let quota = Quota { bytes: 4 * CHUNK_BYTES, images: 2 };
        pool.set_quota(USER, quota).unwrap();
        assert_eq!(Pool::open(&place.path()).unwrap().quota(USER).unwrap(), quota);
        let over = |chunks, why: &str| {
            let error = publish_for(Some(USER), &pool, chunks, 7).unwrap_err();
            assert!(matches!(error, PoolError::OverQuota { .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
            // No other user notices.
            pool.remove(publish_for(Some("bob"), &pool, chunks, 7).unwrap()).unwrap();
        };
        over(4, "over the limit of 8388608");
        let second = publish_for(Some(USER), &pool, 3, 7).unwrap();
        over(1, "2 images are all");
        let info = pool.user_info(USER).unwrap();
        assert_eq!((info.images, info.bytes), (2, 4 * CHUNK_BYTES));
        assert_eq!((info.quota_images, info.quota_bytes), (Some(2), Some(4 * CHUNK_BYTES)));
        let shown = pool.info().unwrap();
        let is_amys = |image: &&farfork_pool::ImageInfo| image.user.as_deref() == Some(USER);
        assert_eq!(shown.images.iter().filter(is_amys).count(), 2);
        pool.remove(first).unwrap();
        assert_eq!(pool.user_info(USER).unwrap().bytes, 3 * CHUNK_BYTES);
        pool.remove(second).unwrap();
        pool.set_quota(USER, Quota::NONE).unwrap();
        assert_eq!(pool.user_info(USER).unwrap().quota_images, None);
        publish_for(Some(USER), &pool, 5, 7).unwrap();
        assert_eq!(pool.check().unwrap().findings, []);
    }
}

#[test]
fn a_user_whose_image_became_too_large_meanwhile_is_refused_at_publication() {
    let place = Place::new();
    let pool = place.pool();
    let mut writer = pool.begin(Some(USER)).unwrap();
    writer.reserve(3 * CHUNK_BYTES).unwrap();
    pool.set_quota(USER, Quota { bytes: 2 * CHUNK_BYTES, images: 9 }).unwrap();
    let before = used(&pool) - if place.is_mounted { 3 * CHUNK_BYTES } else { 0 };
    assert!(matches!(writer.publish(), Err(PoolError::OverQuota { .. })));
    assert_eq!(place.list("users/amy"), ["quota"]);
    await_used(&pool, before);
    // What it gives back before does not count.
    pool.set_quota(USER, Quota { bytes: 3 * CHUNK_BYTES, images: 9 }).unwrap();
    let mut writer = pool.begin(Some(USER)).unwrap();
    writer.reserve(3 * CHUNK_BYTES).unwrap();
    pool.set_quota(USER, Quota { bytes: 2 * CHUNK_BYTES, images: 9 }).unwrap();
    let kept = 0..2 * CHUNK_BYTES;
    writer.keep(std::slice::from_ref(&kept)).unwrap();
    writer.publish().unwrap();
}

#[test]
fn racing_writers_of_one_user_never_have_more_than_the_user_may() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        for (quota, most) in [
            (Quota { bytes: u64::MAX, images: 3 }, 3),
            (Quota { bytes: 5 * CHUNK_BYTES, images: 99 }, 5),
        ] {
            pool.set_quota(USER, quota).unwrap();
            let published = std::thread::scope(|scope| {
                let writer = || {
                    let pool = Pool::open(&place.path()).unwrap();
                    (0..4).filter(|_| publish_or_over(&pool)).count()
                };
                let threads = [(); 4].map(|()| scope.spawn(writer));
                threads.map(|thread| thread.join().unwrap()).iter().sum::<usize>()
            });
            assert_eq!((published, pool.images().unwrap().len()), (most, most));
            let remove = |cid: Cid| pool.remove(cid).unwrap();
            pool.images().unwrap().into_iter().for_each(remove);
        }
    }
}

fn publish_or_over(pool: &Pool) -> bool {
    match publish_for(Some(USER), pool, 1, 7) {
        Ok(_) => true,
        Err(PoolError::OverQuota { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn names_of_users_and_nodes_are_names_of_files() {
    let place = Place::new();
    let pool = place.pool();
    for user in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", &"a".repeat(201)] {
        assert!(matches!(pool.begin(Some(user)), Err(PoolError::BadUser { .. })), "{user:?}");
        let denied = pool.set_quota(user, Quota::NONE);
        assert!(matches!(denied, Err(PoolError::BadUser { .. })), "{user:?}");
    }
    let longest = "a".repeat(200);
    publish_for(Some(&longest), &pool, 1, 7).unwrap();
    assert_eq!(pool.users().unwrap(), [longest]);
    let holders = crate::common::pins(&pool, "n");
    for name in ["", &"n".repeat(89)] {
        let error = pool.register_node(name, &holders).unwrap_err();
        assert!(matches!(error, PoolError::BadNodeName { .. }));
    }
    drop(pool.register_node("../n ä", &holders).unwrap());
    assert_eq!(pool.info().unwrap().nodes, ["../n ä"]);
}
