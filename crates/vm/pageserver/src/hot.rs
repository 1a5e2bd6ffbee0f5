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
use farfork_types::{PAGE_BYTES, end_of_run};

use crate::hotness::Withheld;
use crate::pagelog::PageLog;
use crate::sealed::{HEADER_WORDS, is_sealed, seal};

const MAGIC: u64 = u64::from_le_bytes(*b"farforkH");
/// Pages after which a batch is closed: within one, pages are filled in the order of their offsets, so that one call
/// fills neighbours.
const BATCH_PAGES: u64 = (1 << 20) / PAGE_BYTES;
/// Bytes of a block of the memory: the first page of one that is needed brings its neighbours in the block with it, however much
/// later these were needed. A call costs as much as copying some pages.
const BLOCK_BYTES: u64 = 128 << 10;

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
        ranges(&self.log().pages())
    }

    /// The same without those that a machine is to do without.
    pub(crate) fn ranges_but(&self, withheld: Option<Withheld>) -> Vec<Range<u64>> {
        let mut pages = self.log().pages();
        pages.retain(|page| !withheld.is_some_and(|withheld| withheld.has(*page)));
        ranges(&pages)
    }
}

/// Pages, in the order in which they were needed, as ranges of offsets in the memory: batches in this order.
pub(crate) fn ranges(pages: &[u32]) -> Vec<Range<u64>> {
    let pieces = pieces(pages);
    let mut is_taken = vec![false; pieces.len()];
    let (mut ranges, mut batch, mut in_batch) = (Vec::new(), Vec::new(), 0);
    for page in pages {
        let number = pieces.partition_point(|piece| piece.end <= u64::from(*page));
        if std::mem::replace(&mut is_taken[number], true) {
            continue;
        }
        in_batch += pieces[number].end - pieces[number].start;
        batch.push(number);
        if in_batch >= BATCH_PAGES {
            close(&mut batch, &pieces, &mut ranges);
            in_batch = 0;
        }
    }
    close(&mut batch, &pieces, &mut ranges);
    ranges
}

/// Pages that are neighbours within one block, in the order of their numbers.
fn pieces(pages: &[u32]) -> Vec<Range<u64>> {
    let mut sorted = pages.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut pieces = Vec::new();
    let mut rest = sorted.into_iter().map(u64::from).peekable();
    while let Some(first) = rest.next() {
        let follows = |at: u64| rest.next_if_eq(&(at / PAGE_BYTES)).is_some();
        let end = end_of_run(first * PAGE_BYTES, BLOCK_BYTES, u64::MAX, follows);
        pieces.push(first..end / PAGE_BYTES);
    }
    pieces
}

/// Adds the pieces of a batch in the order of their offsets, and leaves it empty.
fn close(batch: &mut Vec<usize>, pieces: &[Range<u64>], ranges: &mut Vec<Range<u64>>) {
    batch.sort_unstable();
    for number in batch.drain(..) {
        let (start, end) = (pieces[number].start * PAGE_BYTES, pieces[number].end * PAGE_BYTES);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
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
    use farfork_minivmm::Workload;

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
        // Blocks from 1888, 1856, … on: each batch ends with the block that makes it 256 pages or more.
        let batches = [1632..1901, 1376..1632, 1120..1376, 877..1120];
        assert_eq!(hot.ranges(), batches.map(|pages| page(pages.start)..page(pages.end)));
    }

    /// Two pages in turn, of two parts of the memory: neighbours of a block come with its first page, those of others later.
    #[test]
    fn neighbours_come_along_within_a_block() {
        let pages: Vec<u32> = (0..300).flat_map(|page| [page, 1000 + page]).collect();
        let page = |page: u64| page * PAGE_BYTES;
        let batches = [0..128, 1000..1152, 128..256, 1152..1280, 256..300, 1280..1300];
        assert_eq!(ranges(&pages), batches.map(|pages| page(pages.start)..page(pages.end)));
    }

    /// What real processes touched, in order: each page once, in fewer ranges than batches of twice the length have without
    /// blocks, and pages that were needed first in early ones.
    #[test]
    fn recorded_workloads_take_few_calls() {
        for name in Workload::names() {
            let workload = Workload::named(name, 256 << 20).unwrap();
            let pages: Vec<u32> = workload.accesses().iter().map(|step| step.page as u32).collect();
            let ranges = ranges(&pages);
            let pages_of = |range: &Range<u64>| range.start / PAGE_BYTES..range.end / PAGE_BYTES;
            let filled: Vec<u32> =
                ranges.iter().flat_map(pages_of).map(|page| page as u32).collect();
            let [mut one, mut other] = [filled.clone(), pages.clone()];
            one.sort_unstable();
            other.sort_unstable();
            assert!(one == other, "{name}");
            let follows = |batch: &mut [u32]| {
                batch.sort_unstable();
                1 + batch.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count()
            };
            let batches: usize = pages.clone().chunks_mut(512).map(follows).sum();
            let early = filled[..512].iter().filter(|page| pages[..512].contains(page)).count();
            println!("{name}: {} ranges, {batches} without blocks; {early} early", ranges.len());
            assert!(ranges.len() < batches, "{name}: {} ranges, not {batches}", ranges.len());
            assert!(
                early >= 200,
                "{name}: {early} of the first 512 pages are among the first filled"
            );
        }
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
