//! The observer, and the accesses of emulated threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use farfork_caches::Observer;
use farfork_sys::sync::locked;

static OBSERVER: Mutex<Option<Observer>> = Mutex::new(None);
/// Whether accesses are recorded now. A process does most of its work before, without the lock.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// The observer. `None` before the first order.
pub fn observer() -> MutexGuard<'static, Option<Observer>> {
    locked(&OBSERVER)
}

/// Sets whether accesses are recorded.
pub fn follow(is_followed: bool) {
    IS_FOLLOWED.store(is_followed, Ordering::Release);
}

/// Records a read or write of an emulated thread.
pub fn access(address: u64, bytes: u64, is_write: bool) {
    if IS_FOLLOWED.load(Ordering::Acquire)
        && let Some(observer) = &mut *observer()
    {
        observer.access(address, bytes, is_write);
    }
}

/// Records that an emulated thread executes these lines.
pub fn fetch(first: u64, count: u64) {
    if IS_FOLLOWED.load(Ordering::Acquire)
        && let Some(observer) = &mut *observer()
    {
        observer.fetch(first, count);
    }
}
