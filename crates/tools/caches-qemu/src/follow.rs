//! The observer, and what emulated threads tell it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_caches::Observer;

static OBSERVER: Mutex<Option<Observer>> = Mutex::new(None);
/// Whether accesses mean anything now; most of what a process does is before.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// The observer, which there is from its first order on.
pub fn observer() -> MutexGuard<'static, Option<Observer>> {
    OBSERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says whether accesses mean anything from now on.
pub fn follow(is_followed: bool) {
    IS_FOLLOWED.store(is_followed, Ordering::Release);
}

/// An emulated thread reads or writes.
pub fn access(address: u64, bytes: u64, is_write: bool) {
    if IS_FOLLOWED.load(Ordering::Acquire)
        && let Some(observer) = &mut *observer()
    {
        observer.access(address, bytes, is_write);
    }
}

/// An emulated thread executes what is in these lines.
pub fn fetch(first: u64, count: u64) {
    if IS_FOLLOWED.load(Ordering::Acquire)
        && let Some(observer) = &mut *observer()
    {
        observer.fetch(first, count);
    }
}
