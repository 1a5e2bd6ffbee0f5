//! Files that are not pools or images, or no longer.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use farfork_pool::{Finding, ImageFile, Medium, Pool, PoolError, Quota};
use farfork_types::{CHUNK_BYTES, Cid};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::child::USER;
use crate::common::{Place, bits, is_root, pins, publish, publish_for, register};

fn open_error(path: &Path) -> PoolError {
    Pool::open(path).expect_err("the pool must not open")
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_pool_is_made_once_and_in_whole_chunks() {
    let place = Place::plain();
    let path = place.path();
    for size in [0, CHUNK_BYTES, 3 * CHUNK_BYTES, 10 * CHUNK_BYTES + 4096, u64::MAX] {
        let error = Pool::create(&path, size).unwrap_err();
        assert!(matches!(error, PoolError::BadSize { .. }));
        assert!(!path.exists());
    }
    let pool = place.small_pool(4);
    let again = Pool::create(&path, 4 * CHUNK_BYTES).unwrap_err();
    assert!(matches!(again, PoolError::NotEmpty { .. }), "{again}");
    assert_eq!(Pool::open(&path).unwrap().uuid(), pool.uuid());
    assert_eq!(pool.info().unwrap().size_bytes, 4 * CHUNK_BYTES);
    fs::create_dir(place.dir().join("below")).unwrap();
    let missing = Pool::create(&place.dir().join("none/pool"), 8 << 20).unwrap_err().to_string();
    assert!(missing.contains("check the path"), "{missing}");
}

#[test]
fn what_lies_in_a_directory_that_is_to_be_a_pool_stays() {
    for names in [&["images/picture"][..], &["new/letter"], &["a"], &["tables/a/b", "names/c"]] {
        let place = Place::plain();
        for name in names {
            let file = place.file(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "precious").unwrap();
        }
        let error = Pool::create(&place.path(), 8 << 20).unwrap_err();
        assert!(matches!(error, PoolError::NotEmpty { .. }), "{error}");
        let is_there = |name: &&str| fs::read(place.file(name)).unwrap() == b"precious";
        assert!(names.iter().all(is_there), "{names:?}");
    }
}

#[test]
fn a_pool_on_hugetlbfs_is_refused_and_what_is_there_stays() {
    let place = Place::plain();
    fs::create_dir(place.path()).unwrap();
    let flags = MountFlags::NOSUID;
    if let Err(error) = rustix::mount::mount("none", place.path(), "hugetlbfs", flags, None) {
        println!("skipped: mounting hugetlbfs: {error}");
        return;
    }
    fs::create_dir(place.file("images")).unwrap();
    let error = Pool::create(&place.path(), 8 << 20).unwrap_err().to_string();
    assert!(error.contains("hugetlbfs") && error.contains("huge=always"), "{error}");
    assert_eq!(place.list("."), ["images"]);
    rustix::mount::unmount(place.path(), UnmountFlags::DETACH).unwrap();
}

#[test]
fn what_is_no_pool_has_errors_of_its_own() {
    let place = Place::plain();
    let path = place.path();
    let missing = open_error(&path).to_string();
    assert!(missing.contains("check the path"), "{missing}");
    let not_a_pool = |what: &str| {
        let error = open_error(&path);
        assert!(matches!(error, PoolError::NotAPool { .. }), "{what}: {error}");
        let error = Pool::destroy(&path).unwrap_err();
        assert!(matches!(error, PoolError::NotAPool { .. }), "{what}: {error}");
        assert!(path.exists(), "{what}");
    };
    for content in [&b""[..], b"text", &[7; 8192], &[0; 8192]] {
        fs::write(&path, content).unwrap();
        not_a_pool("a file");
    }
    // Version 3 was one file.
    let mut old = vec![0; 8192];
    old[..12].copy_from_slice(b"farforkP\x03\0\0\0");
    fs::write(&path, &old).unwrap();
    let error = open_error(&path);
    assert!(matches!(error, PoolError::OldPool { .. }), "{error}");
    assert!(error.to_string().contains("farfork images export"), "{error}");
    assert!(Pool::create(&path, 8 << 20).is_err());
    assert_eq!(fs::read(&path).unwrap(), old);
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    not_a_pool("a pipe");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    not_a_pool("an empty directory");
    fs::create_dir(place.file("images")).unwrap();
    not_a_pool("another directory");
    let error = open_error(Path::new("/dev/null"));
    assert!(matches!(error, PoolError::NotAPool { .. }), "{error}");
}

#[test]
fn a_pool_is_found_by_a_link_to_it() {
    let place = Place::plain();
    let pool = place.pool();
    let link = place.dir().join("link");
    symlink(place.path(), &link).unwrap();
    assert_eq!(Pool::open(&link).unwrap().path(), pool.path());
}

#[test]
fn another_version_and_a_damaged_superblock_are_different_errors() {
    let place = Place::plain();
    let pool = place.pool();
    let block = place.file("superblock");
    let sound = fs::read(&block).unwrap();
    assert_eq!(sound.len(), 56);
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x41;
        fs::write(&block, &damaged).unwrap();
        let error = open_error(&place.path());
        let is_right = match at {
            0..8 => matches!(error, PoolError::NotAPool { .. }),
            8..12 => matches!(error, PoolError::OtherVersion { known: 4, .. }),
            _ => matches!(error, PoolError::DamagedSuperblock { .. }),
        };
        assert!(is_right, "byte {at}: {error}");
        assert!(pool.check().is_err(), "byte {at}");
    }
    for len in 0..sound.len() {
        fs::write(&block, &sound[..len]).unwrap();
        assert!(matches!(open_error(&place.path()), PoolError::DamagedSuperblock { .. }));
    }
    fs::write(&block, &sound).unwrap();
    assert_eq!(Pool::open(&place.path()).unwrap().check().unwrap().findings, []);
    fs::remove_file(&block).unwrap();
    symlink("/dev/zero", &block).unwrap();
    open_error(&place.path());
    fs::remove_file(&block).unwrap();
    nix::unistd::mkfifo(&block, nix::sys::stat::Mode::S_IRWXU).unwrap();
    open_error(&place.path());
    assert!(matches!(pool.begin(None).err(), Some(PoolError::Gone { .. })));
}

/// Something that happens to the file of an image.
type Harm<'a> = (&'a str, &'a dyn Fn(&Path));

/// Does harm to the file of an image; what finding it says then. Nothing else in the pool suffers from it.
fn harm(harm: &dyn Fn(&Path)) -> Result<ImageFile, PoolError> {
    let place = Place::new();
    let pool = place.pool();
    let (cid, sound) = (publish_for(Some(USER), &pool, 1, 7).unwrap(), publish(&pool, 1, 8));
    harm(&place.file(&format!("images/{cid}")));
    let found = pool.find(cid);
    let report = pool.check().unwrap();
    let is_bad =
        matches!(&report.findings[..], [Finding::BadImage { cid: bad, .. }] if *bad == cid);
    assert_eq!(is_bad, found.is_err(), "{:?}", report.findings);
    assert_eq!(report.is_sound(), found.is_ok());
    assert_eq!(pool.info().unwrap().images.len(), 2);
    pool.find(sound).unwrap();
    let _ = (pool.is_held(cid), pool.access_tables(cid), pool.user_info(USER).unwrap());
    pool.remove(publish(&pool, 1, 9)).unwrap();
    let is_directory = place.file(&format!("images/{cid}")).is_dir();
    assert_eq!(pool.remove(cid).is_err(), is_directory);
    pool.remove(sound).unwrap();
    crate::common::destroy(&place.path());
    found
}

#[test]
fn an_image_that_others_could_have_touched_is_not_used() {
    let link = |path: &Path| fs::hard_link(path, path.parent().unwrap().join("../link")).unwrap();
    let chown = |path: &Path| lchown(path, Some(1234), None).unwrap();
    let harms: [Harm; 5] = [
        ("a hard link", &link),
        ("other users may read", &|path| allow(path, 0o404)),
        ("other users may read", &|path| allow(path, 0o440)),
        ("other users may read", &|path| allow(path, 0o420)),
        ("another user", &chown),
    ];
    for (why, change) in harms {
        if why == "another user" && !is_root() {
            continue;
        }
        // A link in the pool's own directory would be in the way of its end.
        let change = |path: &Path| {
            change(path);
            let _ = fs::rename(path.parent().unwrap().join("../link"), path.with_extension("link"));
        };
        let place = Place::new();
        let pool = place.pool();
        let cid = publish(&pool, 1, 7);
        change(&place.file(&format!("images/{cid}")));
        let error = pool.find(cid).unwrap_err();
        assert!(matches!(&error, PoolError::UnsafeImage { .. }), "{why}: {error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(!pool.check().unwrap().is_sound());
        assert!(matches!(pool.is_held(cid), Err(PoolError::UnsafeImage { .. })));
        pool.remove(cid).unwrap();
    }
}

#[test]
fn what_takes_the_place_of_an_image_is_an_error_or_another_image() {
    let replace = |path: &Path, make: &dyn Fn(&Path)| {
        fs::remove_file(path).unwrap();
        make(path);
    };
    let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let socket = |path: &Path| drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let makers: [Harm; 5] = [
        ("link", &|path| symlink("/etc/passwd", path).unwrap()),
        ("dangling link", &|path| symlink("/none", path).unwrap()),
        ("pipe", &pipe),
        ("socket", &socket),
        ("directory", &|path| fs::create_dir(path).unwrap()),
    ];
    for (what, make) in makers {
        let error = harm(&|path| replace(path, make)).unwrap_err();
        assert!(matches!(error, PoolError::Misplaced { .. }), "{what}: {error}");
    }
    let other = |path: &Path| {
        fs::write(path, "other").unwrap();
        allow(path, 0o400);
    };
    let found = harm(&|path| replace(path, &other)).unwrap();
    assert_eq!((found.id.bytes, found.read(0, 5).unwrap()), (5, b"other".to_vec()));
}

#[test]
fn a_truncated_image_is_an_error_and_no_signal() {
    for len in [0, 1, 4096, CHUNK_BYTES - 1] {
        let cut = |path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(len);
        let found = harm(&|path| cut(path).unwrap()).unwrap();
        assert_eq!(found.id.bytes, len);
        assert!(matches!(found.read(0, CHUNK_BYTES), Err(PoolError::TruncatedImage { .. })));
    }
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 2, 7);
    let image = pool.find(cid).unwrap();
    let file = OpenOptions::new().write(true).open(place.file(&format!("images/{cid}"))).unwrap();
    file.set_len(CHUNK_BYTES).unwrap();
    assert_eq!(image.read(CHUNK_BYTES - 1, 1).unwrap(), [7]);
    assert!(matches!(image.read(CHUNK_BYTES - 1, 2), Err(PoolError::TruncatedImage { .. })));
    assert!(matches!(image.read_to(CHUNK_BYTES, &mut [0]), Err(PoolError::TruncatedImage { .. })));
    assert!(pool.copy(&image).is_err());
    // One that has grown is another file to those who compare.
    file.set_len(64 * CHUNK_BYTES).unwrap();
    assert_ne!(pool.find(cid).unwrap().id, image.id);
}

#[test]
fn names_that_are_none_of_the_pools_are_found_and_stay() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish_for(Some(USER), &pool, 1, 7).unwrap();
    let strays = [
        "images/letter".to_owned(),
        format!("images/{}", Cid::from_bytes([0xab; 16]).to_string().to_uppercase()),
        format!("images/{cid}.bak"),
        "nodes/letter".to_owned(),
        "nodes/1".to_owned(),
        "users/letter".to_owned(),
    ];
    strays.iter().for_each(|name| fs::write(place.file(name), "x").unwrap());
    fs::create_dir(place.file("new/box")).unwrap();
    fs::create_dir(place.file("users/.box")).unwrap();
    let mut found: Vec<String> =
        pool.check().unwrap().findings.iter().map(ToString::to_string).collect();
    found.sort();
    let mut expected: Vec<String> = strays.to_vec();
    expected.extend(["new/box".to_owned(), "users/.box".to_owned()]);
    expected.sort();
    let move_it = |name: &String| format!("{name} is none of the pool's files: move it elsewhere");
    assert_eq!(found, expected.iter().map(move_it).collect::<Vec<_>>());
    // All goes on beside them.
    assert_eq!(pool.images().unwrap(), [cid]);
    assert_eq!(pool.info().unwrap().images.len(), 1);
    drop(register(&pool, "n"));
    publish_for(Some(USER), &pool, 1, 7).unwrap();
    pool.remove(cid).unwrap();
    crate::common::destroy(&place.path());
}

#[test]
fn no_damage_to_a_node_goes_unnoticed() {
    let place = Place::new();
    let pool = place.pool();
    let row = register(&pool, "n");
    let path = place.file(&format!("nodes/{}", row.id()));
    drop(row);
    let sound = fs::read(&path).unwrap();
    assert_eq!(sound.len(), 256);
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x80;
        fs::write(&path, &damaged).unwrap();
        assert_eq!(pool.info().unwrap().nodes, [""; 0], "byte {at}");
        let gone = pool.forget_node("n", None);
        assert!(matches!(gone, Err(PoolError::NoNode { .. })), "byte {at}");
    }
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(pool.check().unwrap().findings, [Finding::DamagedNode { name }]);
    assert!(!path.exists());
    for damaged in [&sound[..255], &[]] {
        fs::write(&path, damaged).unwrap();
        assert!(!pool.check().unwrap().is_sound());
        // Its agent makes it anew, also without a check.
        fs::write(&path, damaged).unwrap();
        drop(register(&pool, "n"));
        assert_eq!(fs::read(&path).unwrap(), sound);
    }
    // Half a pin is none.
    fs::write(&path, [&sound[..], &[7; 15]].concat()).unwrap();
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn no_damage_to_a_limit_goes_unnoticed() {
    let place = Place::new();
    let pool = place.pool();
    let quota = Quota { bytes: 4 * CHUNK_BYTES, images: 9 };
    pool.set_quota(USER, quota).unwrap();
    let path = place.file("users/amy/quota");
    let sound = fs::read(&path).unwrap();
    assert_eq!(sound.len(), 32);
    let damaged = |what: &str| {
        let read = pool.quota(USER);
        assert!(matches!(read, Err(PoolError::DamagedQuota { .. })), "{what}");
        let info = pool.info().unwrap();
        assert!(info.notes.iter().any(|note| note.contains("limits of user amy")), "{what}");
        let denied = publish_for(Some(USER), &pool, 1, 7);
        assert!(matches!(denied, Err(PoolError::DamagedQuota { .. })), "{what}");
    };
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        damaged(&format!("byte {at}"));
    }
    for len in [0, 31] {
        fs::write(&path, &sound[..len]).unwrap();
        damaged(&format!("{len} bytes"));
    }
    let found = Finding::DamagedQuota { user: USER.to_owned() };
    assert_eq!(pool.check().unwrap().findings, [found]);
    publish(&pool, 1, 7);
    pool.set_quota(USER, quota).unwrap();
    assert!(pool.check().unwrap().is_sound());
    assert_eq!(pool.quota(USER).unwrap(), quota);
}

/// What everything says of a pool that is no longer.
fn demand_gone(pool: &Pool, cid: Cid) {
    let row_file = pins(pool, "n");
    let user = Quota::NONE;
    let name = ["a", "b", "c"];
    let answers = [
        pool.begin(None).map(drop),
        pool.find(cid).map(drop),
        pool.remove(cid),
        pool.info().map(drop),
        pool.check().map(drop),
        pool.set_name(name, cid).map(drop),
        pool.remove_name(name).map(drop),
        pool.named(name).map(drop),
        pool.names().map(drop),
        pool.register_node("n", &row_file).map(drop),
        pool.node_names().map(drop),
        pool.set_quota(USER, user),
        pool.access_tables(cid).map(drop),
        pool.add_users_bits(cid, &bits(&[], &[], &[1])),
        pool.reset_access(cid, true),
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        assert!(matches!(answer, Err(PoolError::Gone { .. })), "{number}: {answer:?}");
    }
    assert!(!pool.is_intact());
}

#[test]
fn a_deleted_pool_says_that_it_is_gone_also_when_another_took_its_place() {
    for place in [Place::new(), Place::plain()] {
        let pool = place.pool();
        let cid = publish(&pool, 1, 7);
        let row = register(&pool, "n");
        let mut writer = pool.begin(None).unwrap();
        writer.reserve(CHUNK_BYTES).unwrap();
        Pool::destroy_used(&place.path()).unwrap();
        demand_gone(&pool, cid);
        let next = place.pool();
        demand_gone(&pool, cid);
        assert!(matches!(pool.pin(&row, cid), Err(PoolError::Gone { .. })));
        assert!(matches!(writer.reserve(2 * CHUNK_BYTES), Err(PoolError::Gone { .. })));
        assert!(matches!(writer.publish(), Err(PoolError::Gone { .. })));
        assert_ne!(next.uuid(), pool.uuid());
        assert_eq!((next.images().unwrap(), next.check().unwrap().findings), (vec![], vec![]));
    }
}

#[test]
fn a_pool_that_was_moved_takes_no_images_and_shows_those_it_has() {
    let place = Place::plain();
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    let elsewhere = place.dir().join("elsewhere");
    let mut writer = pool.begin(None).unwrap();
    writer.reserve(CHUNK_BYTES).unwrap();
    fs::rename(place.path(), &elsewhere).unwrap();
    let next = place.pool();
    assert!(matches!(pool.begin(None), Err(PoolError::Gone { .. })));
    assert!(matches!(writer.publish(), Err(PoolError::Gone { .. })));
    assert!(matches!(pool.set_quota(USER, Quota::NONE), Err(PoolError::Gone { .. })));
    assert_eq!(pool.find(cid).unwrap().read(0, 1).unwrap(), [7]);
    assert_eq!(pool.images().unwrap(), [cid]);
    assert_eq!(next.images().unwrap(), []);
    assert_eq!(Pool::open(&elsewhere).unwrap().images().unwrap(), [cid]);
}

#[test]
fn a_pool_that_was_unmounted_takes_no_images() {
    let place = Place::new();
    if !place.is_mounted {
        return;
    }
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    rustix::mount::unmount(place.path(), UnmountFlags::DETACH).unwrap();
    assert!(matches!(pool.begin(None), Err(PoolError::Gone { .. })));
    assert!(matches!(pool.set_name(["a", "b", "c"], cid), Err(PoolError::Gone { .. })));
    assert_eq!(pool.find(cid).unwrap().read(0, 1).unwrap(), [7]);
    assert!(matches!(open_error(&place.path()), PoolError::NotAPool { .. }));
}

/// What is copied from a pool on a write is taken from where the writer runs.
#[test]
fn a_bound_mount_binds_nothing_but_the_pools_own_memory() {
    let place = Place::plain();
    let dir = place.dir().join("bound");
    fs::create_dir(&dir).unwrap();
    let options = c"size=64M,mpol=bind:0";
    if let Err(error) = rustix::mount::mount("none", &dir, "tmpfs", MountFlags::empty(), options) {
        println!("skipped: mounting a tmpfs with a memory policy needs root and NUMA: {error}");
        return;
    }
    allow(&dir, 0o700);
    let pool = Pool::create(&dir, 8 * CHUNK_BYTES).unwrap();
    let image = pool.find(publish(&pool, 2, 7)).unwrap();
    // A file beside it keeps the policy of the mount.
    let other = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("other"));
    let other = other.unwrap();
    other.write_all_at(&[0; 4096], 0).unwrap();
    let policies = [policy_of(image.file()), policy_of(&other)];
    fs::remove_file(dir.join("other")).unwrap();
    drop(image);
    crate::common::destroy(&dir);
    rustix::mount::unmount(&dir, UnmountFlags::DETACH).unwrap();
    assert_eq!(policies, ["default", "bind:0"]);
}

/// By which policy memory is taken for a private mapping of a file.
fn policy_of(file: &fs::File) -> String {
    let mut options = memmap2::MmapOptions::new();
    options.len(4096);
    #[allow(unsafe_code)] // reason: its bytes are not read
    // SAFETY: nothing is read from it or written to it.
    let map = unsafe { options.map_copy(file) }.unwrap();
    let start = format!("{:x} ", map.as_ptr() as usize);
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let line = maps.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

/// Lets a superblock name another medium, as if the pool had been made there.
fn made_on(place: &Place, medium: u32) {
    let block = place.file("superblock");
    let mut bytes = fs::read(&block).unwrap();
    bytes[48..52].copy_from_slice(&medium.to_le_bytes());
    bytes[12..16].fill(0);
    let sum = crc32c::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    fs::write(&block, &bytes).unwrap();
}

/// Numbers of media in a superblock.
const TMPFS: u32 = 1;
const HUGETLBFS: u32 = 2;
const DAX: u32 = 3;
const OTHER: u32 = 4;

#[test]
fn a_copy_of_a_pool_on_another_medium_is_refused() {
    let place = Place::plain();
    let pool = place.pool();
    let found = pool.medium();
    let own = if found == Medium::Tmpfs { TMPFS } else { OTHER };
    let strange = [TMPFS, HUGETLBFS, DAX, OTHER, 9].into_iter().filter(|medium| match own {
        TMPFS => *medium != TMPFS,
        _ => ![DAX, OTHER].contains(medium),
    });
    for medium in strange {
        made_on(&place, medium);
        let error = open_error(&place.path());
        assert!(matches!(error, PoolError::OtherMedium { .. }), "{medium}: {error}");
        let words = error.to_string();
        let named = words.contains(place.path().to_str().unwrap()) && words.contains("export");
        assert!(named, "{words}");
    }
    made_on(&place, own);
    assert_eq!(Pool::open(&place.path()).unwrap().uuid(), pool.uuid());
}

#[test]
fn a_dax_pool_that_is_mounted_without_dax_keeps_removed_images_for_pins() {
    let place = Place::plain();
    let pool = place.pool();
    if pool.medium() != Medium::Other {
        return println!("skipped: temporary files lie on {:?}", pool.medium());
    }
    assert!(!pool.is_shared_by_kernels() && pool.info().unwrap().notes.is_empty());
    made_on(&place, DAX);
    let pool = Pool::open(&place.path()).unwrap();
    assert!(pool.is_shared_by_kernels());
    let notes = pool.info().unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("mounted without DAX")), "{notes:?}");
    let row = register(&pool, "n");
    let cid = publish(&pool, 1, 7);
    pool.pin(&row, cid).unwrap();
    pool.remove(cid).unwrap();
    assert_eq!(place.list("removed"), [cid.to_string()]);
    pool.unpin(&row, cid).unwrap();
    assert_eq!(place.list("removed"), [""; 0]);
}

#[test]
fn what_stands_in_the_place_of_a_file_of_the_pool_is_named() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish_for(Some(USER), &pool, 1, 7).unwrap();
    let quota = Quota { bytes: 1 << 40, images: 9 };
    pool.set_quota(USER, quota).unwrap();
    pool.add_users_bits(cid, &bits(&[1], &[], &[])).unwrap();
    let row_file = pins(&pool, "n");
    let node = format!("nodes/{}", register(&pool, "n").id());
    let table = format!("tables/{cid}/users");
    let demand = |what: &str, name: &str, done: Result<(), PoolError>| {
        let error = done.expect_err(what);
        assert!(matches!(error, PoolError::Misplaced { .. }), "{what}: {error}");
        let words = error.to_string();
        let path = place.file(name);
        assert!(words.contains(path.to_str().unwrap()), "{what}: {words}");
        assert!(words.contains("is a directory") && words.contains("pool check"), "{words}");
        let found = pool.check().unwrap();
        assert!(found.findings.contains(&Finding::Stray { name: name.to_owned() }), "{found:?}");
        assert!(path.join("precious").exists(), "{what}");
    };
    for name in [&node, &table, &"users/amy/quota".to_owned()] {
        let (path, aside) = (place.file(name), place.file("aside"));
        fs::rename(&path, &aside).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("precious"), "x").unwrap();
        if *name == node {
            demand("register", name, pool.register_node("n", &row_file).map(drop));
            demand("info", name, pool.info().map(drop));
        } else if *name == table {
            demand("read", name, pool.access(cid).map(drop));
            demand("write", name, pool.add_users_bits(cid, &bits(&[2], &[], &[])));
        } else {
            demand("read", name, pool.quota(USER).map(drop));
            demand("write", name, pool.set_quota(USER, quota));
            demand("publish", name, publish_for(Some(USER), &pool, 1, 7).map(drop));
            assert!(pool.info().unwrap().notes.iter().any(|note| note.contains("quota")));
        }
        fs::remove_file(path.join("precious")).unwrap();
        fs::remove_dir(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        assert_eq!(pool.check().unwrap().findings, [], "{name}");
    }
    fs::write(place.file("users/bob"), "x").unwrap();
    let error = pool.set_quota("bob", quota).unwrap_err();
    assert!(matches!(error, PoolError::Misplaced { found: "a file", .. }), "{error}");
}
