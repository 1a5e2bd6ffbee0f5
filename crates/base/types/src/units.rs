//! Sizes that the whole system agrees on.

/// Bytes of a base page.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes of a chunk, the unit in which the pool is handed out: one huge page of x86-64, so that
/// the kernel can map a chunk with a single page-middle-directory entry.
pub const CHUNK_BYTES: u64 = 2 << 20;

/// Rounds `value` down to a multiple of `unit`, a power of two.
pub const fn align_down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}

/// Rounds `value` up to a multiple of `unit`, a power of two.
pub const fn align_up(value: u64, unit: u64) -> u64 {
    align_down(value + unit - 1, unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_multiples_and_moves_the_rest() {
        assert_eq!(align_down(CHUNK_BYTES, CHUNK_BYTES), CHUNK_BYTES);
        assert_eq!(align_up(CHUNK_BYTES, CHUNK_BYTES), CHUNK_BYTES);
        assert_eq!(align_down(CHUNK_BYTES + 1, PAGE_BYTES), CHUNK_BYTES);
        assert_eq!(align_up(1, PAGE_BYTES), PAGE_BYTES);
    }
}
