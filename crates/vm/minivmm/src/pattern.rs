//! What the memory of a guest holds.

use crate::memory::PAGE_BYTES;
use crate::processor::RESERVED_PAGES;

/// Pages of zeros and pages of words that differ from page to page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Bytes of memory: a power of two, from 4 MiB to 4 GiB.
    pub memory_bytes: u64,
    /// How many of a thousand pages are zeros.
    pub zero_permille: u64,
    /// Pages of zeros come in groups of so many.
    pub group_pages: u64,
    /// Two guests with different seeds have no page in common but those of zeros.
    pub seed: u64,
}

impl Pattern {
    /// Whether a page is zeros, apart from pages that the guest runs from.
    pub fn is_zeros(&self, page: u64) -> bool {
        let group = page / self.group_pages.max(1);
        page < RESERVED_PAGES || mix(group ^ self.seed << 32) % 1000 < self.zero_permille
    }

    /// Pages of the memory.
    pub fn pages(&self) -> u64 {
        self.memory_bytes / PAGE_BYTES
    }

    /// A word of a page, apart from pages that the guest runs from.
    pub fn word(&self, page: u64, word: u64) -> u64 {
        match self.is_zeros(page) {
            true => 0,
            false => mix(page << 16 ^ word ^ self.seed << 40) | 1,
        }
    }
}

/// Spreads the bits of a number over all of another.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
