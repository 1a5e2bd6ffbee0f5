//! Caches of processors.
#![allow(unsafe_code)] // reason: instructions for which there is no safe function

use std::arch::x86_64::{_mm_clflush, _mm_mfence};

/// Bytes that caches keep together.
pub const LINE_BYTES: usize = 64;

/// Takes memory out of the caches of all processors, so that the next read of it reads memory. No
/// byte of it changes.
pub fn evict<T>(memory: &[T]) {
    let start = memory.as_ptr().cast::<u8>();
    for offset in (0..size_of_val(memory)).step_by(LINE_BYTES) {
        // SAFETY: the byte lies in `memory`, which may be read; the instruction asks for no more.
        unsafe { _mm_clflush(start.add(offset)) };
    }
    // SAFETY: every processor of this architecture has the instruction, which touches no memory.
    unsafe { _mm_mfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_evicted_is_as_it_was() {
        for words in [0, 1, 7, 8, 9, 4096_u64] {
            let memory: Vec<u64> = (0..words).map(|word| word.wrapping_mul(0x9e37)).collect();
            let before = memory.clone();
            evict(&memory);
            assert_eq!(memory, before);
        }
    }
}
