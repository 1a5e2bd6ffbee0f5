//! Descriptors that a program inherited from its parent.
#![allow(unsafe_code)] // reason: close_range acts on descriptors by number

use std::io;

/// Marks every descriptor from `first` on close-on-exec, so that programs started from here do not
/// hold inherited pipes open (Linux 5.11).
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: nothing is closed in this process.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the programs that this process executes inherit the descriptor `fd`.
pub fn keep_on_exec(fd: i32) -> io::Result<()> {
    // SAFETY: only a flag is changed.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
