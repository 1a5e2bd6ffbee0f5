//! Mount namespaces, and attributes of mounts.
#![allow(unsafe_code)] // reason: mount_setattr has no wrapper

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Gives this thread a mount namespace of its own. What it mounts there is seen nowhere else.
///
/// # Errors
/// This process may not do so.
pub fn own_namespace() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    Ok(())
}

/// Makes the mount at `point` and all mounts below it read-only, in this thread's mount namespace
/// (Linux 5.12). Device files stay usable, and so do sockets.
///
/// # Errors
/// Nothing is mounted at `point`, or this process may not change it.
pub fn make_read_only(point: &Path) -> io::Result<()> {
    let point = CString::new(point.as_os_str().as_bytes())?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the kernel reads a path that ends in a zero byte, and a structure of the size that is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            point.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_an_error() {
        let missing = make_read_only(Path::new("/nowhere/at/all")).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    }
}
