//! Read-ahead: pages that a guest is about to touch, as far as its last faults show.

use std::ops::Range;

use farfork_types::PAGE_BYTES;

/// Bytes that are filled ahead of a guest that walks through its memory.
pub(crate) const MOST_BYTES: u64 = 2 << 20;
/// Bytes of an answer that a thread waits for.
const ANSWER_BYTES: u64 = 64 << 10;
/// Bytes that are filled ahead before new faults are looked for.
const STEP_BYTES: u64 = 256 << 10;

/// What to fill before a fault asks for it. A guest that jumps gets one page; each fault that goes on where
/// the last one ended doubles the range.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    window: u64,
    range: Range<u64>,
}

impl Ahead {
    /// Bytes to answer the fault of the page at `address` with, after which so many bytes of its region
    /// follow.
    pub(crate) fn answer(&mut self, address: u64, rest: u64) -> u64 {
        // A guest that is faster than the read-ahead faults within the range.
        let goes_on = self.window > 0 && (self.range.start..=self.range.end).contains(&address);
        self.window = match goes_on {
            true => (self.window * 2).min(MOST_BYTES),
            false => PAGE_BYTES,
        };
        let end = address + self.window.min(rest);
        self.range = address..end;
        (end - address).min(ANSWER_BYTES)
    }

    /// The next part to fill.
    pub(crate) fn next(&self) -> Option<(u64, u64)> {
        let bytes = (self.range.end - self.range.start).min(STEP_BYTES);
        (bytes > 0).then_some((self.range.start, bytes))
    }

    /// Notes that what lies before `address` is there.
    pub(crate) fn is_there(&mut self, address: u64) {
        self.range.start = self.range.start.max(address).min(self.range.end);
    }

    /// Gives up what is not filled yet.
    pub(crate) fn stop(&mut self) {
        self.range.start = self.range.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: u64 = 1 << 30;

    #[test]
    fn jumps_get_one_page_and_walks_ever_more() {
        let mut ahead = Ahead::default();
        for address in [0x10_0000, 0x50_0000, 0x2000] {
            assert_eq!(ahead.answer(address, REST), PAGE_BYTES);
            ahead.is_there(address + PAGE_BYTES);
            assert_eq!(ahead.next(), None);
        }
        let mut address = 0x3000;
        for step in 1..20 {
            let answered = ahead.answer(address, REST);
            let window = (PAGE_BYTES << step).min(MOST_BYTES);
            assert_eq!(answered, window.min(ANSWER_BYTES));
            address += answered;
            ahead.is_there(address);
            while let Some((start, bytes)) = ahead.next() {
                assert_eq!(start, address);
                address += bytes;
                ahead.is_there(address);
            }
        }
        assert_eq!(ahead.answer(0x100_0000_0000, REST), PAGE_BYTES);
    }

    #[test]
    fn a_range_ends_with_its_region_and_can_be_given_up() {
        let mut ahead = Ahead::default();
        ahead.answer(0, REST);
        ahead.is_there(PAGE_BYTES);
        assert_eq!(ahead.answer(PAGE_BYTES, PAGE_BYTES), PAGE_BYTES);
        ahead.answer(PAGE_BYTES * 2, REST);
        assert!(ahead.next().is_some());
        ahead.stop();
        assert_eq!(ahead.next(), None);
    }
}
