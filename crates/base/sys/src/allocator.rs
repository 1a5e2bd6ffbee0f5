//! Settings of the C library's allocator, which is Rust's default one, too.
#![allow(unsafe_code)] // reason: mallopt is a C function

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_get_a_mapping_after_larger_ones_were_freed() {
        return_large_blocks();
        let block = |bytes: usize| vec![1_u8; bytes];
        drop(block(8 << 20));
        // A mapping has a header of 16 bytes. Blocks in a heap lie anywhere in their pages.
        let some: Vec<Vec<u8>> = (0..8).map(|number| block((1 << 20) + 16 * number)).collect();
        assert!(some.iter().all(|block| block.as_ptr().addr() % 4096 == 16));
    }
}
