//! Memory for what the C library allocates while this library is at work: when it starts, and when it opens files. It is little, and
//! is never given back.
#![allow(unsafe_code)] // reason: memory without a type

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{ALIGNMENT, huge};

const BYTES: usize = 64 << 10;

/// Objects, each after a granule that has its size.
#[repr(align(16))]
struct Early(UnsafeCell<[u8; BYTES]>);

// SAFETY: each byte is handed out once.
unsafe impl Sync for Early {}

static EARLY: Early = Early(UnsafeCell::new([0; BYTES]));
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Allocates an object; its bytes are 0.
pub(crate) fn allocate(alignment: usize, bytes: usize) -> Option<NonNull<u8>> {
    let needed = bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(ALIGNMENT)?;
    if alignment > ALIGNMENT || needed > BYTES {
        return huge::allocate(alignment, bytes);
    }
    let at = NEXT.fetch_add(needed, Ordering::Relaxed);
    if at > BYTES - needed {
        // What does not fit is lost for others, too.
        NEXT.store(BYTES, Ordering::Relaxed);
        return huge::allocate(alignment, bytes);
    }
    let start = EARLY.0.get().cast::<u8>();
    // SAFETY: within the memory, and handed out once.
    unsafe {
        start.add(at).cast::<usize>().write(bytes);
        Some(NonNull::new_unchecked(start.add(at + ALIGNMENT)))
    }
}

/// Bytes of the object, if it is one of these.
pub(crate) fn usable_bytes(object: NonNull<u8>) -> Option<usize> {
    let offset = object.addr().get().wrapping_sub(EARLY.0.get().addr());
    // SAFETY: the size of the object is before it.
    (offset < BYTES).then(|| unsafe { object.as_ptr().sub(ALIGNMENT).cast::<usize>().read() })
}
