//! Pools of other users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use farfork_pool::{Pool, PoolError, TRUSTED_OWNER};

use crate::child::{KINDS, Orders, was_killed};
use crate::common::{Place, is_root, publish};
use crate::crash::chown_all;

const OTHER: u32 = 1234;

#[test]
fn a_pool_that_others_may_write_to_is_refused_and_a_new_one_is_not_left_so() {
    let place = Place::plain();
    for mode in [0o770, 0o702, 0o720] {
        fs::create_dir(place.path()).unwrap();
        let allow = |mode| fs::set_permissions(place.path(), fs::Permissions::from_mode(mode));
        let is_refused = |tried: Result<Pool, PoolError>| {
            let error = tried.unwrap_err();
            assert!(matches!(error, PoolError::Exposed { .. }), "{mode:o}: {error}");
            assert!(error.to_string().contains("chmod 700"), "{error}");
        };
        allow(mode).unwrap();
        drop(place.pool());
        assert_eq!(fs::metadata(place.path()).unwrap().mode() & 0o777, 0o700);
        allow(mode).unwrap();
        is_refused(Pool::open(&place.path()));
        allow(0o755).unwrap();
        crate::common::destroy(&place.path());
    }
}

#[test]
fn a_pool_with_a_directory_of_others_is_refused() {
    let place = Place::plain();
    publish(&place.pool(), 1, 7);
    for name in ["images", "names", "tables", "users", "nodes", "new", "removed"] {
        let path = place.path().join(name);
        if !path.exists() {
            fs::create_dir(&path).unwrap();
        }
        let allow = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let is_refused = || {
            let error = Pool::open(&place.path()).unwrap_err();
            assert!(matches!(error, PoolError::ExposedRoom { .. }), "{name}: {error}");
            assert!(error.to_string().contains("chmod 700"), "{error}");
        };
        allow(0o777);
        is_refused();
        allow(0o700);
        if is_root() {
            lchown(&path, Some(OTHER), None).unwrap();
            is_refused();
            lchown(&path, Some(0), None).unwrap();
        }
        Pool::open(&place.path()).unwrap();
    }
}

#[test]
fn a_pool_of_another_user_is_used_only_if_that_user_is_trusted() {
    if !is_root() {
        return;
    }
    for kind in KINDS {
        let place = Place::plain();
        publish(&place.pool(), 1, 7);
        chown_all(&place.path(), OTHER);
        let error = Pool::open(&place.path()).unwrap_err();
        assert!(matches!(error, PoolError::ForeignOwner { owner: OTHER, .. }), "{error}");
        assert!(error.to_string().contains("FARFORK_POOL_OWNER=1234"), "{error}");
        let denied = Pool::destroy(&place.path());
        assert!(matches!(denied, Err(PoolError::ForeignOwner { .. })));
        let path = place.path();
        let run = |trusted: &str| {
            let orders = Orders { kind, ..Orders::new("publish and find", &path) };
            let mut command = orders.command();
            command.stderr(std::process::Stdio::null());
            command.env(TRUSTED_OWNER, trusted).status().unwrap()
        };
        for trusted in ["", "0", "1235", "x"] {
            assert!(!run(trusted).success(), "{trusted}");
        }
        assert!(!was_killed(run("1234")));
        assert_eq!(place.list("images").len(), 2);
        demand_owner(&path);
    }
}

/// All that lies in a pool belongs to its owner, so that they can use it as before.
fn demand_owner(path: &Path) {
    let found = fs::symlink_metadata(path).unwrap();
    // A link can be read, and removed by the owner of its directory.
    assert!(found.is_symlink() || found.uid() == OTHER, "{}", path.display());
    if found.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| demand_owner(&entry.unwrap().path()));
    }
}

#[test]
fn no_pool_is_made_in_a_directory_of_another_user() {
    if !is_root() {
        return;
    }
    let place = Place::plain();
    fs::create_dir(place.path()).unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    lchown(place.path(), Some(OTHER), Some(OTHER)).unwrap();
    let error = Pool::create(&place.path(), 8 << 20).unwrap_err();
    assert!(matches!(error, PoolError::ForeignOwner { .. }), "{error}");
    assert_eq!(place.list("."), [""; 0]);
    assert_eq!(fs::metadata(place.path()).unwrap().mode() & 0o777, 0o755);
}

#[test]
fn no_pool_takes_a_directory_that_all_users_share() {
    let before = fs::metadata("/dev/shm").unwrap().mode();
    let refused = Pool::create(std::path::Path::new("/dev/shm"), Pool::SMALLEST_BYTES);
    let error = refused.unwrap_err();
    assert!(
        matches!(error, PoolError::Unsuitable { .. } | PoolError::ForeignOwner { .. }),
        "{error}"
    );
    assert_eq!(fs::metadata("/dev/shm").unwrap().mode(), before);
}
