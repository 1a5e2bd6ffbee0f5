//! Whom an open file signals (`F_SETOWN`, `F_SETSIG`).
#![allow(unsafe_code)] // reason: no crate we use has F_GETOWN_EX and F_GETSIG

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

const F_GETSIG: libc::c_int = 11;
const F_GETOWN_EX: libc::c_int = 16;
const F_OWNER_PID: libc::c_int = 1;

/// The process that is signalled, as seen here; nothing if it is a thread, a group, or nobody.
pub fn process(file: impl AsFd) -> Result<Option<i32>, Errno> {
    // struct f_owner_ex: type, pid.
    let mut owner = [0 as libc::c_int; 2];
    // SAFETY: the kernel writes two ints to `owner`.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), F_GETOWN_EX, owner.as_mut_ptr()) };
    let [kind, pid] = owner;
    check(result).map(|_| (kind == F_OWNER_PID && pid != 0).then_some(pid))
}

/// The signal that is sent, 0 for `SIGIO` without further data.
pub fn signal(file: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: takes no argument.
    check(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), F_GETSIG) })
}

fn check(result: libc::c_int) -> Result<u32, Errno> {
    u32::try_from(result).map_err(|_| Errno::from_raw_os_error(nix::errno::Errno::last_raw()))
}
