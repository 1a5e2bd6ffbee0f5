//! Where the threads of a process wait for each other before any of them runs the parent's code.
//!
//! ```text
//!  first thread   await_others ─► its ops, joined_ops, "running" ─► filters of all ─► open
//!  the others     their ops ─► arrive ──────────────────────────────────────────────► pass
//!
//!  where threads have filters of their own, or filters forbid to wait:
//!
//!  first thread   await_others ─► its ops, joined_ops, "running" ─► open ─► filters ─► leave
//!  the others     their ops ─► arrive ──────────────────────────────► pass ─► filters ─► leave
//! ```
//! They share memory. A thread that runs first can make the others use their rights: those of the
//! agent, or calls that a filter is to forbid. So no thread passes before all have their ids, and no
//! thread leaves before all have their filters.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as k;

use crate::call::syscall;

/// Counters of one process; each fork starts with its own.
pub struct Gate {
    /// Threads, but for the first, that have run their ops.
    arrived: AtomicU32,
    /// 1 once these may go on.
    opened: AtomicU32,
    /// How many threads leave together, 0 if none has filters.
    leaving: AtomicU32,
    /// Threads that have their filters.
    confined: AtomicU32,
}

/// The gate of this process.
pub static GATE: Gate = Gate {
    arrived: AtomicU32::new(0),
    opened: AtomicU32::new(0),
    leaving: AtomicU32::new(0),
    confined: AtomicU32::new(0),
};

impl Gate {
    /// Counts the calling thread. The last of `others` wakes the first thread.
    pub fn arrive(&self, others: u32) {
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == others {
            wake(&self.arrived, 1);
        }
    }

    /// Waits in the first thread until all `others` have arrived.
    pub fn await_others(&self, others: u32) {
        loop {
            let arrived = self.arrived.load(Ordering::Acquire);
            if arrived >= others {
                return;
            }
            wait(&self.arrived, arrived);
        }
    }

    /// Lets `others` pass. They leave together if any thread `has_filters` to install.
    pub fn open(&self, others: u32, has_filters: bool) {
        if others == 0 {
            return;
        }
        self.leaving.store(if has_filters { others + 1 } else { 0 }, Ordering::Relaxed);
        self.opened.store(1, Ordering::Release);
        wake(&self.opened, others);
    }

    /// Waits until the gate is open.
    pub fn pass(&self) {
        while self.opened.load(Ordering::Acquire) == 0 {
            wait(&self.opened, 0);
        }
    }

    /// Waits until every thread has its filters. The filters may forbid every call, so a thread that
    /// `has_filters` spins. All threads are awake since the gate was opened, so this is short.
    pub fn leave(&self, has_filters: bool) {
        let leaving = self.leaving.load(Ordering::Relaxed);
        if leaving == 0 {
            return;
        }
        self.confined.fetch_add(1, Ordering::AcqRel);
        while self.confined.load(Ordering::Acquire) < leaving {
            if has_filters {
                spin_loop();
            } else {
                // SAFETY: lets others run.
                let _ = unsafe { syscall(k::__NR_sched_yield, []) };
            }
        }
    }
}

const FUTEX_WAIT_PRIVATE: u64 = 128;
const FUTEX_WAKE_PRIVATE: u64 = 129;

fn wait(word: &AtomicU32, seen: u32) {
    // SAFETY: waits on a word of this program.
    let _ = unsafe {
        syscall(k::__NR_futex, [word.as_ptr() as u64, FUTEX_WAIT_PRIVATE, u64::from(seen), 0])
    };
}

fn wake(word: &AtomicU32, waiters: u32) {
    // SAFETY: wakes waiters on a word of this program.
    let _ = unsafe {
        syscall(k::__NR_futex, [word.as_ptr() as u64, FUTEX_WAKE_PRIVATE, u64::from(waiters)])
    };
}
