//! Pages in the order in which they were added, each once, in memory that outlives its writer.
//!
//! ```text
//!  word   0    bits: one for each page of the memory
//!              count of entries
//!              entries: number of a page and 1, two in a word, the first in the low half
//! ```
//! There is one writer at a time. It sets the bit, then writes the entry, then the count. A writer that is killed
//! between these leaves a page that has its bit and no entry: such pages follow all others.

use std::sync::atomic::{AtomicU64, Ordering};

/// A log in shared words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageLog<'a> {
    words: &'a [AtomicU64],
    pages: u64,
}

impl<'a> PageLog<'a> {
    /// Words of a log for so many pages.
    pub(crate) fn words_for(pages: u64) -> usize {
        (pages.div_ceil(64) + 1 + pages.div_ceil(2)) as usize
    }

    /// The log at the start of `words`, which has at least [`words_for`](PageLog::words_for) of them.
    pub(crate) fn of(words: &'a [AtomicU64], pages: u64) -> PageLog<'a> {
        PageLog { words, pages }
    }

    fn count_at(&self) -> usize {
        self.pages.div_ceil(64) as usize
    }

    /// Pages that have an entry.
    pub(crate) fn count(&self) -> u64 {
        self.words[self.count_at()].load(Ordering::Acquire).min(self.pages)
    }

    /// Adds a page, unless it is there or is not a page of the memory.
    pub(crate) fn add(&self, page: u64) {
        if page >= self.pages {
            return;
        }
        let bit = 1 << (page % 64);
        if self.words[page as usize / 64].fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let count = self.count();
        if count < self.pages {
            let word = &self.words[self.count_at() + 1 + count as usize / 2];
            let half = 32 * (count % 2);
            // A writer that was killed may have left an entry that does not count.
            let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << half);
            word.store(others | (page + 1) << half, Ordering::Relaxed);
            self.words[self.count_at()].store(count + 1, Ordering::Release);
        }
    }

    /// All pages, in order.
    pub(crate) fn pages(&self) -> Vec<u32> {
        let mut bits: Vec<u64> =
            (0..self.count_at()).map(|word| self.words[word].load(Ordering::Relaxed)).collect();
        let mut pages = Vec::new();
        for index in 0..self.count() {
            let word = &self.words[self.count_at() + 1 + index as usize / 2];
            let entry = word.load(Ordering::Relaxed) >> (32 * (index % 2)) & 0xffff_ffff;
            if let Some(page) = entry.checked_sub(1).filter(|page| *page < self.pages) {
                bits[page as usize / 64] &= !(1 << (page % 64));
                pages.push(page as u32);
            }
        }
        for (index, word) in (0u32..).zip(bits) {
            let rest = (0..64).filter(|bit| word >> bit & 1 != 0).map(|bit| index * 64 + bit);
            pages.extend(rest);
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pages: u64) -> Vec<AtomicU64> {
        (0..PageLog::words_for(pages)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn pages_come_back_in_order_and_once() {
        let words = words(130);
        let log = PageLog::of(&words, 130);
        [129, 5, 64, 5, 130, 0, 129].into_iter().for_each(|page| log.add(page));
        assert_eq!((log.pages(), log.count()), (vec![129, 5, 64, 0], 4));
        (0..130).for_each(|page| log.add(page));
        assert_eq!((log.pages().len(), log.count()), (130, 130));
    }

    #[test]
    fn the_layout_is_as_drawn() {
        let words = words(130);
        PageLog::of(&words, 130).add(64);
        PageLog::of(&words, 130).add(2);
        let found: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        assert_eq!((found.len(), &found[..5]), (3 + 1 + 65, &[4, 1, 0, 2, 65 | 3 << 32][..]));
    }

    /// Killed after each of the three stores.
    #[test]
    fn a_writer_may_be_killed_anywhere() {
        let words = words(130);
        let log = PageLog::of(&words, 130);
        log.add(70);
        words[0].fetch_or(1 << 9, Ordering::Relaxed);
        assert_eq!(log.pages(), [70, 9]);
        words[4].fetch_or(10 << 32, Ordering::Relaxed);
        assert_eq!(log.pages(), [70, 9]);
        log.add(1);
        assert_eq!(log.pages(), [70, 1, 9]);
    }
}
