//! The state of a pseudo-terminal, read at its master or its slave.
#![allow(unsafe_code)] // reason: no crate we use has these ioctls

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// `TCGETS2`.
const GET_SETTINGS: libc::Ioctl = 0x802c_542a;
/// `TIOCGPTLCK`.
const GET_LOCK: libc::Ioctl = 0x8004_5439;
/// `TIOCGPKT`.
const GET_PACKET: libc::Ioctl = 0x8004_5438;
/// `TIOCGEXCL`.
const GET_EXCLUSIVE: libc::Ioctl = 0x8004_5440;

/// `struct termios2`.
pub fn settings(terminal: impl AsFd) -> Result<[u8; 44], Errno> {
    ask(terminal, GET_SETTINGS)
}

/// Rows, columns, and both in pixels.
pub fn size(terminal: impl AsFd) -> Result<[u16; 4], Errno> {
    ask(terminal, libc::TIOCGWINSZ)
}

/// Whether the slave of this master is locked.
pub fn is_locked(master: impl AsFd) -> Result<bool, Errno> {
    ask::<i32>(master, GET_LOCK).map(|value| value != 0)
}

/// Whether this master is in packet mode.
pub fn is_packet(master: impl AsFd) -> Result<bool, Errno> {
    ask::<i32>(master, GET_PACKET).map(|value| value != 0)
}

/// Whether this slave cannot be opened again.
pub fn is_exclusive(slave: impl AsFd) -> Result<bool, Errno> {
    ask::<i32>(slave, GET_EXCLUSIVE).map(|value| value != 0)
}

/// Session that the slave of this master controls, and the group in its foreground, as seen here.
pub fn session(master: impl AsFd) -> Result<Option<(i32, i32)>, Errno> {
    let master = master.as_fd();
    match ask::<i32>(master, libc::TIOCGSID) {
        Err(Errno::NOTTY) => Ok(None),
        session => Ok(Some((session?, ask(master, libc::TIOCGPGRP)?))),
    }
}

/// What `request` writes, which must be as long as `T`.
fn ask<T: Plain>(terminal: impl AsFd, request: libc::Ioctl) -> Result<T, Errno> {
    let mut answer = T::ZERO;
    let fd = terminal.as_fd().as_raw_fd();
    // SAFETY: the callers give a request that writes a `T`.
    match unsafe { libc::ioctl(fd, request, &raw mut answer) } {
        0 => Ok(answer),
        _ => Err(Errno::from_raw_os_error(nix::errno::Errno::last_raw())),
    }
}

/// Types for which every bit pattern is a value.
trait Plain {
    const ZERO: Self;
}

impl Plain for i32 {
    const ZERO: i32 = 0;
}

impl Plain for [u8; 44] {
    const ZERO: [u8; 44] = [0; 44];
}

impl Plain for [u16; 4] {
    const ZERO: [u16; 4] = [0; 4];
}
