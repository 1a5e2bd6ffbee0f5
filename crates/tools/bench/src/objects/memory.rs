//! Bytes that an allocator takes beside its objects (the paper, figure 9 (b)).
#![allow(unsafe_code)] // reason: forks

use std::io::{Read, Write};

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use super::allocators::{Allocator, touch};

/// Bytes of each object beyond the 64 that were asked for, of so many that are all written. In a process of its own, by its
/// resident memory.
pub(super) fn overhead<A: Allocator>(objects: usize, make: impl FnOnce() -> A) -> Option<f64> {
    let (mut from, mut to) = std::io::pipe().ok()?;
    // SAFETY: the other threads of this program have ended, and the child never returns.
    match unsafe { fork() }.ok()? {
        ForkResult::Parent { child } => {
            drop(to);
            let mut bytes = [0; 8];
            let read = from.read_exact(&mut bytes);
            let _ = waitpid(child, None);
            read.ok().map(|()| f64::from_le_bytes(bytes))
        }
        ForkResult::Child => {
            if let Some(bytes) = measure(objects, make) {
                let _ = to.write_all(&bytes.to_le_bytes());
            }
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(0) }
        }
    }
}

fn measure<A: Allocator>(objects: usize, make: impl FnOnce() -> A) -> Option<f64> {
    let mut allocator = make();
    let before = resident_bytes()?;
    for number in 0..objects {
        touch(allocator.allocate(64), number as u64);
    }
    let taken = resident_bytes()?.saturating_sub(before);
    Some(taken as f64 / objects as f64 - 64.0)
}

/// Of this process, shared memory too.
fn resident_bytes() -> Option<u64> {
    let pages: u64 =
        std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}
