//! Locks that survive a panic.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex. What it guards is valid after every step, so that a panic of another thread does no harm.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// The guard of a lock, whether or not a thread has panicked that held it.
pub fn unpoisoned<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
