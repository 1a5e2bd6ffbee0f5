//! `fork()`.
//!
//! ```text
//!  before   all locks, so that no thread is in the middle of a change; a region stays mapped in the child
//!  child    region ─► a private copy of what the process has there, at the same addresses; then says so to the parent
//!  parent   waits for that; opens the locks
//! ```
//! Memory of the process is copied by the kernel, as any other. A region is shared memory: with it, the child would change its parent's
//! objects. So it gets a copy, and is a client of no region. Programs that it executes open the region themselves.
//! A child that is made without these functions (`clone`, `_Fork`) does not have the region at all.
#![allow(unsafe_code)] // reason: functions that `fork` calls

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::lock::Lock;
use crate::refusal::{print, refuse};
use crate::{arenas, internal, spaces};

const NONE: i32 = -1;
/// Through which a child says that it has its copy. Used by the thread that forks, under all locks.
static READS: AtomicI32 = AtomicI32::new(NONE);
static WRITES: AtomicI32 = AtomicI32::new(NONE);

/// Has `fork` call the functions below.
pub(crate) fn register() {
    // SAFETY: they allocate nothing before the locks are open again.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// In their order.
fn locks() -> impl DoubleEndedIterator<Item = &'static Lock> {
    arenas::locks().chain([spaces::lock(), internal::lock()])
}

fn take(place: &AtomicI32) -> Option<OwnedFd> {
    let number = place.swap(NONE, Ordering::Relaxed);
    // SAFETY: stored by `before`, and taken once.
    (number != NONE).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

unsafe extern "C" fn before() {
    locks().for_each(Lock::take);
    if spaces::are_private() {
        return;
    }
    if let Ok((reads, writes)) = pipe_with(PipeFlags::CLOEXEC) {
        READS.store(reads.into_raw_fd(), Ordering::Relaxed);
        WRITES.store(writes.into_raw_fd(), Ordering::Relaxed);
    }
    for memory in spaces::all() {
        let _ = memory.keep_in_child(true);
    }
}

unsafe extern "C" fn in_parent() {
    if !spaces::are_private() {
        for memory in spaces::all() {
            let _ = memory.keep_in_child(false);
        }
        drop(take(&WRITES));
        if let Some(reads) = take(&READS) {
            // Its end, if the child is dead, or was never made.
            while rustix::io::read(&reads, &mut [0; 1]) == Err(Errno::INTR) {}
        }
    }
    locks().rev().for_each(Lock::release);
}

unsafe extern "C" fn in_child() {
    locks().rev().for_each(Lock::open);
    if spaces::are_private() {
        return;
    }
    // Kept open: with no reader left, as when the parent is dead, a write would end this process.
    let (_reads, writes) = (take(&READS), take(&WRITES));
    let Some(writes) = writes else {
        refuse(format_args!(
            "cannot fork: no descriptor is left to copy the region's objects; raise RLIMIT_NOFILE"
        ))
    };
    for memory in spaces::all() {
        if let Err(refused) = memory.make_private() {
            print(format_args!("{refused}"));
            // SAFETY: ends the child.
            unsafe { libc::_exit(127) };
        }
    }
    let _ = rustix::io::write(&writes, &[1]);
}
