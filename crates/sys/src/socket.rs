//! Socket options that no crate we use wraps.
#![allow(unsafe_code)] // reason: setsockopt and getsockopt take untyped memory

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Where the next `MSG_PEEK` reads in a queue: `SO_PEEK_OFF`, -1 for always at its head.
pub fn peek_offset(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    integer_option(socket, libc::SO_PEEK_OFF)
}

/// Whether the receiver asked for its senders' credentials with every message.
pub fn passes_credentials(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(integer_option(socket, libc::SO_PASSCRED)? != 0)
}

fn integer_option(socket: BorrowedFd<'_>, option: i32) -> Result<i32, Errno> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    check(result).map(|()| value)
}

/// Sets what [`peek_offset`] tells. It belongs to the socket, not to the descriptor: whoever sets
/// it on another process's socket puts the old value back.
pub fn set_peek_offset(socket: BorrowedFd<'_>, offset: i32) -> Result<(), Errno> {
    // SAFETY: the kernel reads four bytes of `offset`.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const offset).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    })
}

fn check(result: i32) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(nix::errno::Errno::last_raw())) }
}
