//! Regions of users: limited, shown, found by checks, whole or not there.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use farfork_pool::{Finding, Pool, PoolError, Quota};
use farfork_types::CHUNK_BYTES;

use crate::child::USER;
use crate::common::{Place, await_true, await_used, destroy, publish_for, used};
use crate::crash::kill_at_every_step;

const PAGES: u64 = CHUNK_BYTES + 3 * 4096;

fn create(pool: &Pool, name: &str, bytes: u64) -> Result<PathBuf, PoolError> {
    let mut writer = pool.begin(Some(USER))?;
    writer.reserve_region(bytes)?.write_all_at(b"region", 0).unwrap();
    writer.publish_region(name)
}

/// The file is opened for writing, and belongs to the user's processes from then on; not if it belongs to others.
#[test]
fn a_region_is_granted_to_one_user_id() {
    let place = Place::new();
    let pool = place.pool();
    let own = rustix::process::geteuid().as_raw();
    assert!(pool.grant_region(USER, "points", own).unwrap().is_none(), "it does not exist");
    let path = create(&pool, "points", PAGES).unwrap();
    let file = pool.grant_region(USER, "points", own).unwrap().unwrap();
    file.write_all_at(b"word", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap()[..6], *b"wordon");
    let error = pool.grant_region(USER, "../points", own).unwrap_err();
    assert!(matches!(error, PoolError::BadRegionName { .. }), "{error}");
    if own != 0 {
        return;
    }
    for _ in 0..2 {
        pool.grant_region(USER, "points", 2_000_000_007).unwrap().unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (2_000_000_007, 0o600));
    }
    let error = pool.grant_region(USER, "points", 2_000_000_008).unwrap_err();
    let words = format!("user id 2000000007; run `chown 0 {}`", path.display());
    assert!(error.to_string().contains(&words), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().uid(), 2_000_000_007);
}

#[test]
fn regions_count_towards_what_a_user_may_have() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        let before = pool.info().unwrap();
        let image = publish_for(Some(USER), &pool, 1, 7).unwrap();
        pool.set_quota(USER, Quota { bytes: 4 * CHUNK_BYTES, images: 1 }).unwrap();
        let path = create(&pool, "points", PAGES).unwrap();
        assert_eq!(path, pool.region_path(USER, "points").unwrap());
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.mode() & 0o777), (PAGES, 0o600));
        let info = pool.user_info(USER).unwrap();
        assert_eq!((info.images, info.bytes, info.regions.len()), (1, CHUNK_BYTES, 1));
        assert_eq!(info.regions[0].name, "points");
        assert!(info.region_bytes() >= PAGES && info.region_bytes() <= 2 * CHUNK_BYTES);
        // One more is too much, and so is an image; other users do not notice.
        let error = create(&pool, "more", 2 * CHUNK_BYTES).unwrap_err();
        assert!(matches!(error, PoolError::OverQuota { .. }), "{error}");
        assert!(error.to_string().contains("1 images and 1 regions are over the limit"), "{error}");
        pool.set_quota(USER, Quota { bytes: 4 * CHUNK_BYTES, images: 9 }).unwrap();
        let error = publish_for(Some(USER), &pool, 2, 7).unwrap_err();
        assert!(matches!(error, PoolError::OverQuota { .. }), "{error}");
        pool.remove(publish_for(Some("bob"), &pool, 2, 7).unwrap()).unwrap();
        // A process that another test has just forked has bob's image open for a moment.
        let taken = || before.free_bytes - pool.info().unwrap().free_bytes;
        let is_right = |taken: u64| (CHUNK_BYTES + PAGES..4 * CHUNK_BYTES).contains(&taken);
        let is_so = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            is_right(taken())
        });
        assert!(is_so, "{}", taken());
        let shown = pool.info().unwrap();
        assert!(shown.unlisted_bytes <= before.unlisted_bytes + CHUNK_BYTES, "{shown:?}");
        assert_eq!(pool.check().unwrap().findings, []);
        assert_eq!(fs::read(&path).unwrap()[..6], *b"region");
        pool.remove(image).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(pool.check().unwrap().findings, []);
        assert_eq!(place.list("users/amy"), ["quota"]);
    }
}

#[test]
fn what_cannot_be_a_region_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let pool = place.pool();
    let before = used(&pool);
    for name in ["", ".", "..", "a/b", "-x", "a b"] {
        let error = create(&pool, name, PAGES).unwrap_err();
        assert!(matches!(error, PoolError::BadRegionName { .. }), "{error}");
        assert!(pool.region_path(USER, name).is_err());
    }
    assert!(matches!(pool.region_path("../bob", "a"), Err(PoolError::BadUser { .. })));
    assert!(matches!(create(&pool, "huge", 1 << 40), Err(PoolError::Full { .. })));
    await_used(&pool, before);
    create(&pool, "points", PAGES).unwrap();
    let error = create(&pool, "points", PAGES).unwrap_err();
    assert!(error.to_string().contains("exists; delete it first"), "{error}");
    assert_eq!(pool.regions(USER).unwrap().len(), 1);
    // What is not a region is found, and stays.
    fs::create_dir(place.file("users/amy/regions/odd")).unwrap();
    let stray = Finding::Stray { name: "users/amy/regions/odd".to_owned() };
    assert_eq!(pool.check().unwrap().findings, [stray]);
    fs::remove_dir(place.file("users/amy/regions/odd")).unwrap();
}

#[test]
fn a_pool_whose_regions_are_used_is_not_destroyed() {
    let place = Place::plain();
    let pool = place.pool();
    let path = create(&pool, "points", PAGES).unwrap();
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    // As a client of the region does.
    let lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: (1 << 62) + 7,
        l_len: 1,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    // Before that, processes that other tests have just forked may have the file open that was written.
    let refused = || Pool::destroy(&place.path()).unwrap_err().to_string();
    await_true("programs use it", || refused().contains("programs use region amy/points"));
    drop(file);
    destroy(&place.path());
    assert!(!place.path().exists());
}

#[test]
fn a_region_whose_maker_dies_is_whole_or_invisible() {
    let observe = |pool: &Pool, _| {
        let regions = pool.regions(USER).unwrap();
        for region in &regions {
            let path = pool.region_path(USER, &region.name).unwrap();
            assert_eq!(fs::read(&path).unwrap()[..6], *b"region");
        }
        format!("{} regions", regions.len())
    };
    kill_at_every_step("region", observe, &["0 regions", "1 regions"]);
}
