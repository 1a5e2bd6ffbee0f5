//! Pseudo-terminals whose masters are in the image.

use serde::{Deserialize, Serialize};

/// Bytes of the kernel's `struct termios2`.
pub const SETTINGS_BYTES: usize = 44;

/// A pseudo-terminal; a clone's has a number of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Terminal {
    /// `struct termios2`.
    pub settings: Vec<u8>,
    /// Rows, columns, and both in pixels.
    pub size: [u16; 4],
    /// Whether the slave cannot be opened yet (`unlockpt`).
    pub is_locked: bool,
    /// Whether the master reads in packets (`TIOCPKT`).
    pub is_packet: bool,
    /// Whether the slave cannot be opened again (`TIOCEXCL`).
    pub is_exclusive: bool,
    /// Whether the slave was open once and no longer is.
    pub is_hung_up: bool,
    /// Session that it controls, by the id of the process of the image that leads it and has a
    /// slave open; 0 for none. The kernel gives a terminal to the leader, and to what the leader
    /// forks from then on.
    pub session: u32,
    /// Process group in its foreground; 0 for the one that its session's leader is in.
    pub foreground: u32,
    /// User, group and permission bits of the slave, if it is open.
    pub access: Option<(u32, u32, u32)>,
}
