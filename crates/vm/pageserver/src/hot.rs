//! Pages that machines of a snapshot were seen to need.
//!
//! ```text
//!  word   0    header, magic "farforkH" (`sealed`)
//!         8    one bit for each page of the snapshot's memory
//! ```
//! The holder adds pages when a machine has ended. Servers read them when they take a new machine.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use farfork_sys::shared_words::SharedWords;
use farfork_types::PAGE_BYTES;

use crate::sealed::{HEADER_WORDS, is_sealed, seal};

const MAGIC: u64 = u64::from_le_bytes(*b"farforkH");

/// Pages of a snapshot, in memory that holder and servers share.
#[derive(Debug)]
pub(crate) struct HotPages(SharedWords);

impl HotPages {
    /// A new file for the pages of a memory, with none in it.
    pub(crate) fn create(memory_bytes: u64) -> io::Result<File> {
        let pages = memory_bytes / PAGE_BYTES;
        let file = SharedWords::create("farfork-hot", words_for(pages))?;
        seal(&SharedWords::map(&file, words_for(pages))?, MAGIC, pages);
        Ok(file)
    }

    /// Maps such a file. `InvalidInput` if it is that of another memory.
    pub(crate) fn open(file: impl AsFd, memory_bytes: u64) -> io::Result<HotPages> {
        let pages = memory_bytes / PAGE_BYTES;
        let words = SharedWords::map(file, words_for(pages))?;
        match is_sealed(&words, MAGIC, pages) {
            true => Ok(HotPages(words)),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Adds pages. Bits beyond the memory are left out.
    pub(crate) fn add(&self, bits: &[u64]) {
        for (word, bits) in self.0[HEADER_WORDS..].iter().zip(bits) {
            word.fetch_or(*bits, Ordering::Relaxed);
        }
    }

    /// Whether it has no pages.
    pub(crate) fn is_empty(&self) -> bool {
        self.0[HEADER_WORDS..].iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Its pages, as ranges of offsets in the memory.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (index, word) in self.0[HEADER_WORDS..].iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            for bit in (0..64).filter(|bit| word >> bit & 1 != 0) {
                let start = (index as u64 * 64 + bit) * PAGE_BYTES;
                match ranges.last_mut() {
                    Some(last) if last.end == start => last.end += PAGE_BYTES,
                    _ => ranges.push(start..start + PAGE_BYTES),
                }
            }
        }
        ranges
    }
}

fn words_for(pages: u64) -> usize {
    HEADER_WORDS + pages.div_ceil(64) as usize
}

/// What is left to fill of a machine's hot pages.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    ranges: Vec<Range<u64>>,
    next: usize,
}

impl Replay {
    pub(crate) fn of(ranges: Vec<Range<u64>>) -> Replay {
        Replay { ranges, next: 0 }
    }

    /// The next range.
    pub(crate) fn next(&self) -> Option<Range<u64>> {
        self.ranges.get(self.next).cloned()
    }

    /// Notes that the next range is there up to an offset.
    pub(crate) fn is_there(&mut self, offset: u64) {
        while let Some(range) = self.ranges.get_mut(self.next) {
            range.start = range.start.max(offset.min(range.end));
            if range.start < range.end {
                return;
            }
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 200 * PAGE_BYTES;

    #[test]
    fn pages_become_ranges() {
        let file = HotPages::create(MEMORY).unwrap();
        let [holder, server] = [0; 2].map(|_| HotPages::open(&file, MEMORY).unwrap());
        assert!(server.is_empty() && server.ranges().is_empty());
        holder.add(&[1 << 63 | 5, 3, 0, 1 << 7, !0, !0]);
        let pages = |range: &Range<u64>| range.start / PAGE_BYTES..range.end / PAGE_BYTES;
        let ranges: Vec<_> = server.ranges().iter().map(pages).collect();
        assert_eq!(ranges, [0..1, 2..3, 63..66, 199..200]);
        assert!(HotPages::open(&file, MEMORY + PAGE_BYTES).is_err());
        assert!(HotPages::open(crate::Ledger::create(MEMORY).unwrap(), MEMORY).is_err());
    }

    #[test]
    fn a_replay_ends() {
        let mut replay = Replay::of(vec![0..4, 8..10, 20..30]);
        replay.is_there(2);
        assert_eq!(replay.next(), Some(2..4));
        replay.is_there(9);
        assert_eq!(replay.next(), Some(9..10));
        replay.is_there(99);
        assert_eq!(replay.next(), None);
    }
}
