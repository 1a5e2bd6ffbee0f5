//! The process, group or thread that an open file signals (`F_SETOWN`, `F_SETSIG`).
#![allow(unsafe_code)] // reason: no crate we use has F_GETOWN_EX and F_GETSIG

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

const F_GETSIG: libc::c_int = 11;
const F_GETOWN_EX: libc::c_int = 16;
const F_OWNER_PID: libc::c_int = 1;
const F_OWNER_GROUP: libc::c_int = 2;

/// What is signalled, by its id here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalTarget {
    /// A process.
    Process(i32),
    /// A process group.
    Group(i32),
    /// A thread, or nothing.
    Other,
}

/// What an open file signals.
pub fn target(file: impl AsFd) -> Result<SignalTarget, Errno> {
    // struct f_owner_ex: type, pid.
    let mut owner = [0 as libc::c_int; 2];
    // SAFETY: the kernel writes two ints to `owner`.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), F_GETOWN_EX, owner.as_mut_ptr()) };
    check(result).map(|_| match owner {
        [_, 0] => SignalTarget::Other,
        [F_OWNER_PID, pid] => SignalTarget::Process(pid),
        [F_OWNER_GROUP, group] => SignalTarget::Group(group),
        _ => SignalTarget::Other,
    })
}

/// The signal that is sent, 0 for `SIGIO` without further data.
pub fn signal(file: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: takes no argument.
    check(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), F_GETSIG) })
}

fn check(result: libc::c_int) -> Result<u32, Errno> {
    u32::try_from(result).map_err(|_| Errno::from_raw_os_error(nix::errno::Errno::last_raw()))
}
