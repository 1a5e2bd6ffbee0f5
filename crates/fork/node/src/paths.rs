//! Where a node keeps its socket and its pins.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use farfork_pool::Pool;

use crate::error::NodeError;

/// Name of the node when none is given.
pub const DEFAULT_NODE: &str = "local";

/// Most bytes of a node's name: a pool has room for so many, and so has a socket's path.
const LONGEST: usize = 40;

/// Demands that `name` can name a node, and files.
///
/// # Errors
/// [`NodeError::BadName`].
pub fn check_name(name: &str) -> Result<(), NodeError> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= LONGEST
        && name.bytes().all(is_fit);
    if is_name {
        Ok(())
    } else {
        Err(NodeError::BadName { name: name.to_owned(), longest: LONGEST })
    }
}

/// Directory for everything of this machine's nodes: `$FARFORK_RUN`, or a place that goes with
/// the machine's uptime. Without root, one of the user's own.
pub fn run_directory() -> PathBuf {
    let uid = rustix::process::geteuid();
    match (env::var_os("FARFORK_RUN"), env::var_os("XDG_RUNTIME_DIR")) {
        (Some(given), _) => PathBuf::from(given),
        _ if uid.is_root() => PathBuf::from("/run/farfork"),
        (None, Some(user)) => PathBuf::from(user).join("farfork"),
        (None, None) => shared_memory(uid.as_raw()).join("run"),
    }
}

/// The embedded pool: for root a tmpfs is mounted there, for others it lies in shared memory.
pub fn embedded_pool() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() || env::var_os("FARFORK_RUN").is_some() {
        return run_directory().join("pool/embedded");
    }
    shared_memory(uid.as_raw()).join("embedded")
}

fn shared_memory(uid: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/farfork-{uid}"))
}

/// Makes the directory that agents listen in, or the embedded pool lies in. In shared memory, where every
/// user may make a directory of this name, it must be this user's.
pub fn make_run_directory(directory: &Path) -> io::Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let own = shared_memory(uid);
    if directory.starts_with(&own) {
        make_private(&own, uid)?;
    }
    fs::create_dir_all(directory)
}

/// Demands that the directory of `path` in shared memory is this user's. To be called before anything
/// there is trusted: every user may make a directory of this name, with a pool and a socket in it. A
/// directory that does not exist is accepted.
///
/// # Errors
/// It belongs to another user, or is open to others; it cannot be examined.
pub fn demand_own(path: &Path) -> io::Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let own = shared_memory(uid);
    if !path.starts_with(&own) {
        return Ok(());
    }
    match check_private(&own, uid) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        checked => checked,
    }
}

fn make_private(directory: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check_private(directory, uid),
    }
}

/// In a sticky directory, as `/dev/shm`, no other user can replace what was checked.
fn check_private(directory: &Path, uid: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!(
        "{} belongs to another user, or is open to others; remove it, or set FARFORK_RUN to a \
         directory of your own",
        directory.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Mode of a directory that is made for a pool at `path`: in a user's own place in shared memory, others have
/// no access.
pub fn directory_mode(path: &Path) -> u32 {
    let own = shared_memory(rustix::process::geteuid().as_raw());
    if path.starts_with(own) { 0o700 } else { 0o777 }
}

/// Makes an empty file for a lock, or empties it. A process that may open such a file can hold its lock, even without
/// writing, so only its owner may open it.
pub fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // An earlier version made it for all to read.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Socket of the agent of `node`.
pub fn socket(node: &str) -> PathBuf {
    run_directory().join(format!("{node}.sock"))
}

/// Directory for the containers of the ghosts of `node`.
pub fn ghosts(node: &str) -> PathBuf {
    ghosts_beside(&socket(node))
}

/// That of the node whose agent listens at `socket`.
pub fn ghosts_beside(socket: &Path) -> PathBuf {
    socket.with_extension("ghosts")
}

/// Directory for the pins of `node`.
pub fn pins(node: &str) -> PathBuf {
    run_directory().join(format!("{node}.pins"))
}

/// Name of the file with the pins of images of `pool`.
pub fn pool_name(pool: &Pool) -> String {
    pool.uuid().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// File that the agent of `node` locks as long as it lives. The file stays when the agent has exited.
pub fn lock(node: &str) -> PathBuf {
    run_directory().join(format!("{node}.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_directory_of_others_is_not_used() {
        let uid = rustix::process::geteuid().as_raw();
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("own");
        make_private(&own, uid).unwrap();
        make_private(&own, uid).unwrap();
        let refused = make_private(&own, uid + 1).unwrap_err();
        assert!(refused.to_string().contains("FARFORK_RUN"), "{refused}");
        fs::set_permissions(&own, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(make_private(&own, uid).is_err());
        fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).unwrap();
        let link = place.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(make_private(&link, uid).is_err());
    }

    #[test]
    fn a_lock_is_its_owners_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("n.lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        for is_there in [true, false] {
            lock_file(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{is_there}");
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn paths_elsewhere_or_missing_are_accepted() {
        let own = shared_memory(rustix::process::geteuid().as_raw());
        for path in [Path::new("/"), Path::new("/dev/shm/farfork-x/run"), &own.with_extension("x")]
        {
            demand_own(path).unwrap();
        }
    }

    #[test]
    fn names_of_nodes_cannot_leave_a_directory() {
        for name in ["local", "n2", "rack-7.host_3", "0"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "n".repeat(LONGEST + 1);
        for name in ["", ".", "..", "../x", "a/b", "-n", "a b", "caf\u{e9}", "a\0", &long] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
