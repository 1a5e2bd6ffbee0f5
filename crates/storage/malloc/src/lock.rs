//! A lock that allocates nothing, and that a forked child can open.
#![allow(unsafe_code)] // reason: asks the C library whether there are other threads

use std::ffi::c_char;
use std::ptr::addr_of;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

unsafe extern "C" {
    /// Not 0 while the process has one thread (GNU C library 2.32). Changes while no lock is held: by `pthread_create` and the like.
    static __libc_single_threaded: c_char;
}

/// Looks before a thread sleeps.
const LOOKS: u32 = 100;
const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and perhaps a thread sleeps until it is free.
const AWAITED: u32 = 2;

/// A lock.
pub(crate) struct Lock(AtomicU32);

/// A held lock.
pub(crate) struct Held<'a>(Option<&'a Lock>);

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes it, until the result is dropped. A thread that is alone needs no lock.
    #[inline]
    pub(crate) fn hold(&self) -> Held<'_> {
        // SAFETY: a variable of the C library.
        let is_alone = unsafe { addr_of!(__libc_single_threaded).read_volatile() } != 0;
        if is_alone {
            return Held(None);
        }
        self.take();
        Held(Some(self))
    }

    /// Takes it, until [`Lock::release`].
    #[inline]
    pub(crate) fn take(&self) {
        let taken = self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.0.load(Ordering::Relaxed) == FREE
                && self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            // Whatever it returns, the lock is looked at again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    /// Gives it back.
    #[inline]
    pub(crate) fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Opens it in a forked child, where no thread waits for it.
    pub(crate) fn open(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            lock.release();
        }
    }
}
