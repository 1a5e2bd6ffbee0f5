//! Settings of the C library's allocator, which is Rust's default one, too.
#![allow(unsafe_code)] // reason: mallopt and malloc_trim are C functions

use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};

/// Blocks from this size on get a mapping of their own.
const LARGE_BYTES: c_int = 128 << 10;
/// Heaps for threads. By default there are eight for each processor.
const MOST_HEAPS: c_int = 4;

/// Gives freed memory back to the system early. To be called before other threads start.
///
/// Blocks of 128 KiB or more get a mapping of their own, which ends when they are freed. Without a
/// fixed threshold the C library raises it to the largest block freed so far, up to 32 MiB. Then such
/// blocks lie in heaps, and one small block behind them keeps them resident.
pub fn return_large_blocks() {
    for (setting, value) in [
        (M_MMAP_THRESHOLD, LARGE_BYTES),
        (M_TRIM_THRESHOLD, LARGE_BYTES),
        (M_ARENA_MAX, MOST_HEAPS),
    ] {
        // SAFETY: mallopt takes two numbers, and locks the allocator while it changes a setting. If it
        // refuses one, the setting stays as it is.
        unsafe { libc::mallopt(setting, value) };
    }
}

/// Returns free pages of all heaps to the system; returns whether there were any. It takes about a
/// millisecond for each 100 MiB, and other threads wait for their heap meanwhile.
pub fn trim() -> bool {
    // SAFETY: malloc_trim takes a number of bytes to keep at the end of the main heap, and locks each
    // heap.
    unsafe { libc::malloc_trim(0) != 0 }
}
