//! Files that dead processes have left at the paths of their Unix sockets.
//!
//! A process that may write a directory may put anything under any name there, at any moment. So a
//! file is looked at, asked and compared by a handle on itself, and removed from a directory that
//! is held.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::fs::{fstat, openat, openat2, statat, unlinkat};

/// Holds the directory `path`, which leads to it without symbolic links.
pub fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// Removes `name` from `directory` if it is a socket, belongs to user `owner` where one is given,
/// and no process has it. Returns whether it did.
pub fn remove_dead(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    owner: Option<u32>,
) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty())?;
    let found = fstat(&file)?;
    let is_socket = FileType::from_raw_mode(found.st_mode).is_socket();
    if !is_socket || owner.is_some_and(|owner| owner != found.st_uid) || !is_dead(&file) {
        return Ok(false);
    }
    let now = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) {
        return Ok(false);
    }
    unlinkat(directory, name, AtFlags::empty())?;
    Ok(true)
}

/// Whether no process has the socket behind a handle on its file. It tries to connect as a datagram
/// socket, which fails at a stream socket, so that a living server does not notice.
fn is_dead(file: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let answer = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::mknodat;

    #[test]
    fn only_sockets_of_dead_processes_are_removed() {
        let place = std::env::temp_dir().join(format!("farfork-socket-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let held = directory(&place).unwrap();
        let remove =
            |name: &str, owner| remove_dead(held.as_fd(), OsStr::new(name), owner).unwrap();
        fs::write(place.join("file"), "kept").unwrap();
        let living = UnixListener::bind(place.join("living")).unwrap();
        // Not what a listener leaves: a process that another test has just forked may have it, too.
        mknodat(&held, "dead", FileType::Socket, Mode::RUSR, 0).unwrap();
        symlink(place.join("dead"), place.join("link")).unwrap();
        assert!(!remove("file", None), "connecting to a file fails as with the dead");
        assert!(!remove("living", Some(own)));
        assert!(!remove("link", Some(own)), "it leads to what is dead");
        assert!(!remove("dead", Some(own + 1)), "of another user");
        assert!(remove("dead", Some(own)));
        assert!(remove_dead(held.as_fd(), OsStr::new("dead"), None).is_err());
        for (name, is_left) in [("file", true), ("living", true), ("dead", false)] {
            assert_eq!(place.join(name).exists(), is_left, "{name}");
        }
        drop(living);
        symlink(&place, place.join("loop")).unwrap();
        assert!(directory(&place.join("loop")).is_err(), "a symbolic link on the way");
        fs::remove_dir_all(&place).unwrap();
    }
}
