//! The memory of this library itself.
#![allow(unsafe_code)] // reason: an allocator for Rust

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;

use dlmalloc::Dlmalloc;

use crate::lock::Lock;

/// Rust's allocator in this library.
struct Internal {
    lock: Lock,
    heap: UnsafeCell<Dlmalloc>,
}

// SAFETY: the heap is used under the lock.
unsafe impl Sync for Internal {}

#[global_allocator]
static INTERNAL: Internal = Internal { lock: Lock::new(), heap: UnsafeCell::new(Dlmalloc::new()) };

impl Internal {
    fn with<T>(&self, action: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        let _held = self.lock.hold();
        // SAFETY: under the lock; the heap asks nothing but the kernel, so that this does not nest.
        action(unsafe { &mut *self.heap.get() })
    }
}

// SAFETY: as `Dlmalloc` promises.
unsafe impl GlobalAlloc for Internal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        self.with(|heap| unsafe { heap.free(place, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's.
        self.with(|heap| unsafe { heap.realloc(place, layout.size(), layout.align(), bytes) })
    }
}

/// The lock, which a fork takes.
pub(crate) fn lock() -> &'static Lock {
    &INTERNAL.lock
}
