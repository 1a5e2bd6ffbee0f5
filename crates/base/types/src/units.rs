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

/// Where the run of pages ends that starts at the address or offset `page` and that `comes_with` accepts, page by page: within
/// the block of `block` bytes around it, and before `edge`. Without blocks (0) it is that page alone; otherwise `block`
/// is a power of two. One page costs a fault or a call; its neighbours then cost a copy each.
pub fn end_of_run(
    page: u64,
    block: u64,
    edge: u64,
    mut comes_with: impl FnMut(u64) -> bool,
) -> u64 {
    let mut end = page + PAGE_BYTES;
    if block != 0 {
        let edge = edge.min(align_down(page, block).saturating_add(block));
        while end < edge && comes_with(end) {
            end += PAGE_BYTES;
        }
    }
    end
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

    #[test]
    fn a_run_ends_with_its_block_its_edge_or_what_does_not_come_with_it() {
        let page = |number: u64| number * PAGE_BYTES;
        let end = |first: u64, block: u64, edge: u64, last: u64| {
            end_of_run(page(first), page(block), page(edge), |at| at <= page(last)) / PAGE_BYTES
        };
        assert_eq!(end(3, 16, 100, 99), 16);
        assert_eq!(end(16, 16, 100, 99), 32);
        assert_eq!(end(3, 16, 9, 99), 9);
        assert_eq!(end(3, 16, 100, 6), 7);
        assert_eq!(end(15, 16, 100, 99), 16);
        assert_eq!(end(3, 0, 100, 99), 4);
        // The page itself is never left out, wherever the edge is.
        assert_eq!(end(3, 16, 2, 99), 4);
        let top = u64::MAX - u64::MAX % page(16);
        assert_eq!(end_of_run(top, page(16), u64::MAX, |_| false), top + PAGE_BYTES);
    }
}
