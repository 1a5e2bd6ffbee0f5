//! Files that are not pools, or no longer.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use common::{Place, pins, publish, register};
use farfork_pool::{Pool, PoolError, mount_tmpfs};
use farfork_types::CHUNK_BYTES;
use rustix::mount::MountFlags;

/// Overwrites bytes of a file.
fn scribble(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn open_error(path: &Path) -> PoolError {
    Pool::open(path).expect_err("the pool must not open")
}

#[test]
fn a_pool_is_made_once_for_its_owner_and_in_whole_chunks() {
    let place = Place::new();
    let path = place.path();
    for size in [0, CHUNK_BYTES, 2 * CHUNK_BYTES, 10 * CHUNK_BYTES + 4096] {
        assert!(matches!(Pool::create(&path, size), Err(PoolError::BadSize { .. })));
        assert!(!path.exists());
    }
    place.pool(6);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = Pool::create(&path, 6 * CHUNK_BYTES).err().unwrap();
    assert!(again.to_string().contains("File exists"), "{again}");
    Pool::open(&path).unwrap();
}

#[test]
fn files_that_are_not_pools_have_errors_of_their_own() {
    let place = Place::new();
    let path = place.path();
    let missing = open_error(&path).to_string();
    assert!(missing.contains("check the path"), "{missing}");
    fs::write(&path, b"text").unwrap();
    assert!(matches!(open_error(&path), PoolError::NotAPool { .. }));
    fs::write(&path, [7; 8192]).unwrap();
    assert!(matches!(open_error(&path), PoolError::NotAPool { .. }));
    fs::write(&path, [0; 8192]).unwrap();
    assert!(matches!(open_error(&path), PoolError::Unfinished { .. }));
    assert!(matches!(open_error(place.dir()), PoolError::NotAPool { .. }));
    fs::remove_file(&path).unwrap();
}

#[test]
fn another_version_and_a_damaged_superblock_are_different_errors() {
    let place = Place::new();
    drop(place.pool(6));
    let path = place.path();
    scribble(&path, 16, &[9]);
    assert!(matches!(open_error(&path), PoolError::DamagedSuperblock { .. }));
    scribble(&path, 8, &77u32.to_le_bytes());
    let error = open_error(&path);
    assert!(matches!(error, PoolError::OtherVersion { found: 77, known: 3, .. }));
    assert!(error.to_string().contains("format version 77, this farfork reads 3"));
}

#[test]
fn a_truncated_pool_is_an_error_and_no_sigbus() {
    let place = Place::new();
    let pool = place.pool(8);
    let cid = publish(&pool, 1, 1);
    let mut writer = pool.begin().unwrap();
    let file = OpenOptions::new().write(true).open(place.path()).unwrap();
    let pins = pins(&pool, "n");
    for len in [5 * CHUNK_BYTES, 4096] {
        file.set_len(len).unwrap();
        let cut = |error: PoolError| {
            assert!(matches!(error, PoolError::Truncated { found, .. } if found == len));
        };
        cut(open_error(&place.path()));
        cut(pool.find(cid).unwrap_err());
        cut(pool.remove(cid).unwrap_err());
        cut(pool.begin().err().unwrap());
        cut(writer.allocate(1).unwrap_err());
        cut(pool.check().unwrap_err());
        cut(pool.info().unwrap_err());
        cut(pool.bytes(5 * CHUNK_BYTES, 1).unwrap_err());
        cut(pool.register_node("n", &pins).unwrap_err());
        cut(pool.open_read_only().unwrap_err());
    }
    file.set_len(0).unwrap();
    assert!(matches!(open_error(&place.path()), PoolError::NotAPool { .. }));
    drop(writer);
}

#[test]
fn a_deleted_pool_says_that_it_is_gone() {
    let place = Place::new();
    let pool = place.pool(6);
    let cid = publish(&pool, 1, 1);
    fs::rename(place.path(), place.dir().join("elsewhere")).unwrap();
    assert!(matches!(pool.begin(), Err(PoolError::Gone { .. })));
    pool.find(cid).unwrap();
    fs::rename(place.dir().join("elsewhere"), place.path()).unwrap();
    Pool::destroy(&place.path()).unwrap();
    for error in [pool.begin().err(), pool.find(cid).err(), pool.open_read_only().err()] {
        assert!(matches!(error, Some(PoolError::Gone { .. })));
    }
}

#[test]
fn a_pool_that_was_unmounted_takes_no_images() {
    let place = Place::new();
    if !place.mounted {
        println!("skipped: mounting a tmpfs needs root");
        return;
    }
    let pool = place.pool(6);
    let cid = publish(&pool, 1, 1);
    rustix::mount::unmount(place.dir(), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(matches!(pool.begin(), Err(PoolError::Gone { .. })));
    pool.find(cid).unwrap();
}

#[test]
fn a_medium_smaller_than_its_pool_is_reported_and_nothing_is_lost() {
    let place = Place::new();
    let dir = place.dir().join("small");
    fs::create_dir(&dir).unwrap();
    if let Err(error) = mount_tmpfs(&dir, 5 * CHUNK_BYTES) {
        println!("skipped: {error}");
        return;
    }
    let path = dir.join("pool");
    let pool = Pool::create(&path, 64 * CHUNK_BYTES).unwrap();
    let mut writer = pool.begin().unwrap();
    let error = writer.allocate(8).unwrap_err();
    assert!(matches!(error, PoolError::MediumFull { .. }), "{error}");
    assert_eq!(pool.info().unwrap().used_bytes, 0);
    writer.allocate(2).unwrap();
    drop(writer);
    Pool::destroy(&path).unwrap();
    // The tables alone of a pool of 2 TiB take more than the mount has.
    let none = Pool::create(&dir.join("none"), CHUNK_BYTES << 20).err().unwrap();
    assert!(matches!(none, PoolError::MediumFull { .. }), "{none}");
    assert!(!dir.join("none").exists());
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_damaged_record_is_found_by_find_and_by_check() {
    let place = Place::new();
    let pool = place.pool(8);
    let (sound, damaged) = (publish(&pool, 1, 1), publish(&pool, 2, 2));
    let slot = pool.find(damaged).unwrap().slot.index() as u64;
    scribble(&place.path(), 0x3000 + slot * 64 + 24, &[0xff]);
    assert!(matches!(pool.find(damaged), Err(PoolError::DamagedImage { .. })));
    let report = pool.check().unwrap();
    assert!(!report.is_sound());
    assert_eq!((report.images, report.findings.len()), (1, 1));
    pool.find(sound).unwrap();
    pool.remove(damaged).unwrap();
    assert!(pool.check().unwrap().is_sound());
}

#[test]
fn check_finds_chunks_without_owner_and_data_in_free_ones() {
    let place = Place::new();
    let pool = place.pool(8);
    scribble(&place.path(), 0x93000 + 5 * 16, &[1, 0, 0, 0, 7]);
    assert_eq!(pool.check().unwrap().findings.len(), 1);
    scribble(&place.path(), 6 * CHUNK_BYTES, b"secret");
    let findings = pool.check().unwrap().findings;
    if place.mounted {
        assert_eq!(findings.len(), 1, "{findings:?}");
    }
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn a_pool_in_use_is_not_destroyed() {
    let place = Place::new();
    let pool = place.pool(6);
    let cid = publish(&pool, 1, 1);
    let row = register(&pool, "busy");
    let node = row.slot();
    pool.pin(node, cid).unwrap();
    let error = Pool::destroy(&place.path()).unwrap_err().to_string();
    assert!(error.contains("node busy runs clones"), "{error}");
    pool.unpin(node, cid).unwrap();
    let writer = pool.begin().unwrap();
    assert!(matches!(Pool::destroy(&place.path()), Err(PoolError::InUse { .. })));
    drop(writer);
    Pool::destroy(&place.path()).unwrap();
    assert!(!place.path().exists());
}

#[test]
fn pipes_and_other_devices_are_not_even_opened() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&pipe, Path::new("/dev/null")] {
        assert!(matches!(Pool::open(path), Err(PoolError::NotAPool { .. })), "{}", path.display());
    }
    let error = Pool::create(Path::new("/dev/null"), 64 << 20).unwrap_err().to_string();
    assert!(error.contains("none whose memory is mapped directly"), "{error}");
}

#[test]
fn a_pool_in_use_is_destroyed_by_force() {
    let place = Place::new();
    let pool = place.pool(6);
    let cid = publish(&pool, 1, 1);
    pool.pin(register(&pool, "lost").slot(), cid).unwrap();
    Pool::destroy_used(&place.path()).unwrap();
    assert!(!place.path().exists());
    assert!(matches!(pool.find(cid), Err(PoolError::Gone { .. })));
}

#[test]
fn a_pool_on_hugetlbfs_is_refused_and_nothing_is_left_there() {
    let dir = tempfile::tempdir().unwrap();
    if let Err(error) =
        rustix::mount::mount("none", dir.path(), "hugetlbfs", MountFlags::NOSUID, None)
    {
        println!("skipped: mounting hugetlbfs: {error}");
        return;
    }
    let path = dir.path().join("pool");
    let error = Pool::create(&path, 6 * CHUNK_BYTES).err().unwrap().to_string();
    assert!(error.contains("hugetlbfs") && error.contains("huge=always"), "{error}");
    assert!(!path.exists());
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// Found while its fuzz target was written: the chain of an image's extents led back into itself, and its count was large.
/// What is copied from such a pool on a write is taken from where the writer runs.
#[test]
fn a_bound_mount_binds_nothing_but_the_pools_own_memory() {
    let place = Place::new();
    let dir = place.dir().join("bound");
    fs::create_dir(&dir).unwrap();
    let options = c"size=64M,mpol=bind:0";
    if let Err(error) = rustix::mount::mount("none", &dir, "tmpfs", MountFlags::empty(), options) {
        println!("skipped: mounting a tmpfs with a memory policy needs root and NUMA: {error}");
        return;
    }
    let path = dir.join("pool");
    let pool = Pool::create(&path, 8 * CHUNK_BYTES).unwrap();
    publish(&pool, 2, 7);
    // A file beside it keeps the policy of the mount.
    let other = fs::File::create_new(dir.join("other")).unwrap();
    other.set_len(CHUNK_BYTES).unwrap();
    let policies = [(&path, 8), (&dir.join("other"), 1)].map(|(path, chunks)| {
        let file = OpenOptions::new().read(true).open(path).unwrap();
        (0..chunks).map(|chunk| policy_at(&file, chunk * CHUNK_BYTES)).collect::<Vec<_>>()
    });
    drop(pool);
    Pool::destroy(&path).unwrap();
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(policies, [vec!["default".to_owned(); 8], vec!["bind:0".to_owned()]]);
}

/// By which policy memory is taken for a private mapping of a file, from an offset on.
fn policy_at(file: &fs::File, offset: u64) -> String {
    let mut options = memmap2::MmapOptions::new();
    options.offset(offset).len(4096);
    #[allow(unsafe_code)] // reason: its bytes are not read
    // SAFETY: nothing is read from it or written to it.
    let map = unsafe { options.map_copy(file) }.unwrap();
    let start = format!("{:x} ", map.as_ptr() as usize);
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let line = maps.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

#[test]
fn a_chain_of_extents_without_an_end_is_damage() {
    let place = Place::new();
    let pool = place.pool(8);
    let cid = publish(&pool, 2, 7);
    let image = pool.find(cid).unwrap();
    let chunk = image.extents[0].offset / CHUNK_BYTES;
    scribble(&place.path(), 0x3000 + image.slot.index() as u64 * 64 + 52, &u32::MAX.to_le_bytes());
    scribble(&place.path(), 0x93000 + chunk * 16 + 12, &(chunk as u32).to_le_bytes());
    let begun = std::time::Instant::now();
    assert!(matches!(pool.find(cid), Err(PoolError::DamagedImage { .. })));
    assert!(!pool.check().unwrap().is_sound());
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}
