//! Where the processes of a clone wait for each other: counters on a page that they share.
//!
//! A process that fails marks all stages. The others then stop waiting and end.

use core::sync::atomic::{AtomicU32, Ordering};

use farfork_plan::{stage, window};
use linux_raw_sys::general as k;

use crate::call::{self, SysResult, syscall};
use crate::family;

/// How many processes have arrived at each stage.
type Stages = [AtomicU32; stage::COUNT];

/// Set in a count when a process has failed.
const FAILED: u32 = 1 << 31;

/// Maps the counters, before the first process forks others.
pub fn map() -> SysResult {
    let flags = k::MAP_SHARED | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE;
    let prot = k::PROT_READ | k::PROT_WRITE;
    // SAFETY: nothing else is mapped there; the kernel clears the page.
    unsafe { call::mmap(window::STAGES, farfork_types::PAGE_BYTES, prot, flags, -1, 0) }
}

fn stages() -> &'static Stages {
    // SAFETY: mapped by `map` before anything here is called, as long as the clone is made.
    unsafe { &*(window::STAGES as *const Stages) }
}

/// Arrives at a stage and waits until `count` processes have, if that is not 0.
pub fn meet(stage: u64, count: u64) {
    let arrived = &stages()[stage as usize];
    arrived.fetch_add(1, Ordering::AcqRel);
    wake(arrived);
    if count == 0 {
        return;
    }
    loop {
        let now = arrived.load(Ordering::Acquire);
        if now & FAILED != 0 {
            call::exit(call::EXIT_REPORTED)
        }
        if u64::from(now) >= count {
            return;
        }
        let args = [arrived.as_ptr() as u64, FUTEX_WAIT, u64::from(now), 0];
        // SAFETY: waits on a word that is shared with the others.
        let _ = unsafe { syscall(k::__NR_futex, args) };
    }
}

const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;

fn wake(word: &AtomicU32) {
    // SAFETY: wakes all that wait for the word.
    let _ = unsafe { syscall(k::__NR_futex, [word.as_ptr() as u64, FUTEX_WAKE, i32::MAX as u64]) };
}

/// Ends all processes that wait, now or later.
pub fn fail() {
    for arrived in stages() {
        arrived.fetch_or(FAILED, Ordering::AcqRel);
        wake(arrived);
    }
}

/// The last wait of all processes but the root: until the root has reported that the clone runs. A
/// process whose parent was stopped does not wait, as the process that continues it may wait here.
pub fn wait_until_running(is_stopped: bool) {
    if !is_stopped {
        let arrived = &stages()[stage::RUNNING as usize];
        while arrived.load(Ordering::Acquire) == 0 {
            let args = [arrived.as_ptr() as u64, FUTEX_WAIT, 0, 0];
            // SAFETY: waits on a word that is shared with the others.
            let _ = unsafe { syscall(k::__NR_futex, args) };
        }
        if arrived.load(Ordering::Acquire) & FAILED != 0 {
            call::exit(call::EXIT_REPORTED)
        }
    }
    leave();
}

/// Lets the other processes go on, in the root, once it has reported that the clone runs.
pub fn let_run() {
    if family::has_several() {
        meet(stage::RUNNING, 0);
        leave();
    }
}

/// Unmaps the page, which a running process does not need.
fn leave() {
    // SAFETY: nothing uses the page any more: failures are not reported from here on.
    let _ = unsafe { call::munmap(window::STAGES, farfork_types::PAGE_BYTES) };
}
