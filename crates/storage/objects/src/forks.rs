//! What a forked child can use although threads of its parent, which it does not have, were in the middle of something.
//!
//! A lock that such a thread held is never released in the child. So what a child goes on with has no lock
//! ([`Replaced`]), and what it begins anew has a lock of its own ([`PerProcess`]).
#![allow(unsafe_code)] // reason: values that are shared without a lock

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of each process. A forked child begins with another one.
pub(crate) struct PerProcess<T>(AtomicPtr<Own<T>>);

struct Own<T> {
    process: u32,
    value: Mutex<T>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// That of this process.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let process = std::process::id();
        loop {
            let found = self.0.load(Ordering::Acquire);
            // SAFETY: null, or from below, and never freed.
            if let Some(own) = unsafe { found.as_ref() }
                && own.process == process
            {
                return own.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            // Left behind when another thread is faster, which happens once in a process at most.
            let own = Box::leak(Box::new(Own { process, value: Mutex::default() }));
            let _ = self.0.compare_exchange(found, own, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// A value that is replaced now and then, and read without a lock. What was replaced stays in memory until the end of this,
/// as another thread may be reading it.
pub(crate) struct Replaced<T>(AtomicPtr<Entry<T>>);

struct Entry<T> {
    value: T,
    older: *mut Entry<T>,
}

// SAFETY: entries are shared references, and freed by the last owner.
unsafe impl<T: Send + Sync> Send for Replaced<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Replaced<T> {}

impl<T> Default for Replaced<T> {
    fn default() -> Replaced<T> {
        Replaced(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T> Replaced<T> {
    /// The newest value.
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or from below, and not freed before `self` is dropped.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }.map(|entry| &entry.value)
    }

    /// Replaces it.
    pub(crate) fn set(&self, value: T) {
        let entry = Box::leak(Box::new(Entry { value, older: ptr::null_mut() }));
        let mut older = self.0.load(Ordering::Acquire);
        loop {
            entry.older = older;
            match self.0.compare_exchange(older, entry, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(other) => older = other,
            }
        }
    }
}

impl<T> Drop for Replaced<T> {
    fn drop(&mut self) {
        let mut next = *self.0.get_mut();
        while !next.is_null() {
            // SAFETY: leaked in `set`, and no other reference is left.
            let entry = unsafe { Box::from_raw(next) };
            next = entry.older;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_newest_value_is_read_and_all_are_dropped_at_the_end() {
        let (replaced, value) = (Replaced::default(), Arc::new(()));
        assert!(replaced.get().is_none());
        for number in 0..3 {
            replaced.set((number, Arc::clone(&value)));
            assert_eq!(replaced.get().map(|newest| newest.0), Some(number));
        }
        assert_eq!(Arc::strong_count(&value), 4);
        drop(replaced);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_process_has_one_value() {
        static VALUE: PerProcess<Vec<u8>> = PerProcess::new();
        VALUE.lock().push(1);
        VALUE.lock().push(2);
        assert_eq!(*VALUE.lock(), [1, 2]);
    }
}
