//! The reply to a process that has asked to be prepared itself, and waits.
//!
//! ```text
//!  0    magic     by which the process asks
//!  8    state     0: it waits · 1: it has been prepared · 2: it is a clone of the seed
//!  16   text      zero-terminated, 112 bytes at most; of state 1 only
//! ```
//! The process knows the address and looks at the state again and again. A clone is what the process was while it
//! waited; its shadow is the only place where state 2 is ever written, while it is stopped. Numbers are
//! little-endian. Invariant: state 1 is written last, when nothing can fail any more but the keeper itself.

use farfork_sys::{memory, ptrace};

use crate::error::{CheckpointError, doing};

/// By which a process asks.
const MAGIC: [u8; 8] = *b"ffreply1";
const STATE: u64 = 8;
const TEXT: u64 = 16;
const TEXT_BYTES: usize = 112;
const IS_PREPARED: u64 = 1;
const IS_CLONE: u64 = 2;

/// Where a process waits, and what it gets.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Where in its memory, a multiple of 8.
    pub address: u64,
    /// Handle of the seed.
    pub text: String,
}

impl Reply {
    /// Whether the stopped process waits for it.
    pub(super) fn check(&self, pid: i32) -> Result<(), CheckpointError> {
        let mut found = [0; TEXT as usize];
        let read = memory::read(pid, self.address, &mut found);
        let waits = read.is_ok_and(|bytes| bytes == found.len())
            && found[..8] == MAGIC
            && found[8..] == [0; 8]
            && self.address.is_multiple_of(8)
            && self.text.len() < TEXT_BYTES;
        match waits {
            true => Ok(()),
            false => Err(CheckpointError::Changed { pid, what: "stopped waiting for a reply" }),
        }
    }

    /// Gives it to the process and to its shadow, both of which are stopped.
    pub(super) fn give(&self, pid: i32, shadow: i32) -> Result<(), CheckpointError> {
        let poke = |pid: i32, offset: u64, bytes: &[u8]| {
            let written = ptrace::poke(pid, self.address + offset, bytes);
            written.map_err(doing(pid, "write the reply to the memory"))
        };
        let mut text = self.text.clone().into_bytes();
        text.resize(TEXT_BYTES, 0);
        poke(shadow, STATE, &IS_CLONE.to_le_bytes())?;
        poke(pid, TEXT, &text)?;
        poke(pid, STATE, &IS_PREPARED.to_le_bytes())
    }
}
