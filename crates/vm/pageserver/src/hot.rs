//! Pages that machines of a snapshot were seen to need, in the order in which they were needed.
//!
//! ```text
//!  word   0    header, magic "farforkH" (`sealed`)
//!         8    log of pages (`pagelog`)
//! ```
//! The holder adds pages when a machine has ended; when pages are to go, it sends servers another file. Servers read them when they take a new machine.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use farfork_sys::shared_words::SharedWords;
use farfork_types::PAGE_BYTES;

use crate::hotness::Withheld;
use crate::pagelog::PageLog;
use crate::sealed::{HEADER_WORDS, is_sealed, seal};

const MAGIC: u64 = u64::from_le_bytes(*b"farforkH");
/// Pages of a batch: within one, pages are filled in the order of their offsets, so that one call fills
/// neighbours.
const BATCH_PAGES: usize = (2 << 20) / PAGE_BYTES as usize;

/// Pages of a snapshot, in memory that holder and servers share.
#[derive(Debug)]
pub(crate) struct HotPages {
    words: SharedWords,
    pages: u64,
}

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
            true => Ok(HotPages { words, pages }),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn log(&self) -> PageLog<'_> {
        PageLog::of(&self.words[HEADER_WORDS..], self.pages)
    }

    /// Adds pages that are not there yet. Those beyond the memory are left out.
    pub(crate) fn add(&self, pages: &[u32]) {
        pages.iter().for_each(|page| self.log().add(u64::from(*page)));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.log().count()
    }

    /// Its pages, as [`ranges`].
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        ranges(self.log().pages())
    }

    /// The same without those that a machine is to do without.
    pub(crate) fn ranges_but(&self, withheld: Option<Withheld>) -> Vec<Range<u64>> {
        let mut pages = self.log().pages();
        pages.retain(|page| !withheld.is_some_and(|withheld| withheld.has(*page)));
        ranges(pages)
    }
}

/// Pages, in the order in which they were needed, as ranges of offsets in the memory: batches in this order.
pub(crate) fn ranges(mut pages: Vec<u32>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for batch in pages.chunks_mut(BATCH_PAGES) {
        batch.sort_unstable();
        for page in batch {
            let start = u64::from(*page) * PAGE_BYTES;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += PAGE_BYTES,
                _ => ranges.push(start..start + PAGE_BYTES),
            }
        }
    }
    ranges
}

fn words_for(pages: u64) -> usize {
    HEADER_WORDS + PageLog::words_for(pages)
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
        let Some(range) = self.ranges.get_mut(self.next) else { return };
        range.start = range.start.max(offset.min(range.end));
        self.next += usize::from(range.start == range.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 2000 * PAGE_BYTES;

    #[test]
    fn pages_become_ranges() {
        let file = HotPages::create(MEMORY).unwrap();
        let [holder, server] = [0; 2].map(|_| HotPages::open(&file, MEMORY).unwrap());
        assert!(server.count() == 0 && server.ranges().is_empty());
        holder.add(&[64, 63, 0, 2, 65, 1999, 2000, u32::MAX]);
        let pages = |range: &Range<u64>| range.start / PAGE_BYTES..range.end / PAGE_BYTES;
        let ranges: Vec<_> = server.ranges().iter().map(pages).collect();
        assert_eq!((server.count(), ranges), (6, vec![0..1, 2..3, 63..66, 1999..2000]));
        assert!(HotPages::open(&file, MEMORY + PAGE_BYTES).is_err());
        assert!(HotPages::open(crate::Ledger::create(MEMORY).unwrap(), MEMORY).is_err());
    }

    #[test]
    fn what_was_needed_first_is_in_an_earlier_batch() {
        let hot = HotPages::open(HotPages::create(MEMORY).unwrap(), MEMORY).unwrap();
        let needed: Vec<u32> = (0..1024).map(|page| 1900 - page).collect();
        hot.add(&needed);
        let page = |page: u64| page * PAGE_BYTES;
        assert_eq!(hot.ranges(), [page(1389)..page(1901), page(877)..page(1389)]);
    }

    #[test]
    fn a_replay_ends() {
        let mut replay = Replay::of(vec![20..30, 0..4, 8..10]);
        replay.is_there(22);
        assert_eq!(replay.next(), Some(22..30));
        replay.is_there(30);
        assert_eq!(replay.next(), Some(0..4));
        replay.is_there(4);
        replay.is_there(9);
        assert_eq!(replay.next(), Some(9..10));
        replay.is_there(99);
        assert_eq!(replay.next(), None);
    }
}
