//! Which pages of a guest's memory are stored, and where.

use std::collections::HashSet;

use farfork_types::{CHUNK_BYTES, PAGE_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::scan::{WINDOW_PAGES, Windows};

/// Neighbouring pages that are stored beside each other.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Run {
    /// Offset of the first page in the guest's memory, as the memory file has it.
    pub offset: u64,
    /// Where it lies in the data of the image.
    pub place: u64,
    /// Bytes of all pages.
    pub bytes: u64,
}

const _: () = assert!(size_of::<Run>() == 24);

impl Run {
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }
}

/// What lies at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many bytes of zeros, which are not stored.
    Zeros(u64),
    /// Stored pages.
    Stored {
        /// Where the first lies in the data.
        place: u64,
        /// Bytes up to the end of the run.
        bytes: u64,
    },
}

impl Extent {
    /// Bytes up to its end.
    pub fn bytes(&self) -> u64 {
        match self {
            Extent::Zeros(bytes) | Extent::Stored { bytes, .. } => *bytes,
        }
    }
}

/// The runs of a guest's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    memory_bytes: u64,
    stored_bytes: u64,
    runs: Vec<Run>,
}

impl PageMap {
    /// Arranges the pages that are not zeros: whole windows without a page of `hot` first, each in a chunk of its
    /// own, then pages of `hot` in this order, then all others. So few chunks have hot pages.
    pub(super) fn arrange(windows: &Windows, hot: &[u32]) -> PageMap {
        let is_stored = |page: &u64| windows.has(*page);
        let mut taken: HashSet<u64> = HashSet::new();
        let hot = hot.iter().map(|page| u64::from(*page));
        let hot: Vec<u64> = hot.filter(|page| is_stored(page) && taken.insert(*page)).collect();
        let split: HashSet<u64> = hot.iter().map(|page| page / WINDOW_PAGES).collect();
        let (mut placed, mut next) = (Vec::new(), 0);
        let mut place = |offset: u64, bytes: u64| {
            placed.push(Run { offset, place: next, bytes });
            next += bytes;
        };
        let is_whole =
            |window: &usize| windows.is_whole(*window) && !split.contains(&(*window as u64));
        for window in (0..windows.count()).filter(is_whole) {
            place(window as u64 * CHUNK_BYTES, CHUNK_BYTES);
        }
        hot.iter().for_each(|page| place(page * PAGE_BYTES, PAGE_BYTES));
        for window in (0..windows.count()).filter(|window| !is_whole(window)) {
            let pages = windows.pages(window).map(|page| window as u64 * WINDOW_PAGES + page);
            pages
                .filter(|page| !taken.contains(page))
                .for_each(|page| place(page * PAGE_BYTES, PAGE_BYTES));
        }
        placed.sort_unstable_by_key(|run| run.offset);
        let mut runs = Vec::new();
        placed.into_iter().for_each(|run| push(&mut runs, run));
        PageMap { memory_bytes: windows.memory_bytes, stored_bytes: next, runs }
    }

    /// Takes runs that were read.
    ///
    /// # Errors
    /// What does not hold.
    pub(super) fn checked(memory_bytes: u64, runs: Vec<Run>) -> Result<PageMap, &'static str> {
        if memory_bytes == 0 || !memory_bytes.is_multiple_of(PAGE_BYTES) {
            return Err("its memory does not have whole pages");
        }
        let mut end = 0;
        for run in &runs {
            if !(run.offset | run.place | run.bytes).is_multiple_of(PAGE_BYTES) || run.bytes == 0 {
                return Err("a run of pages is not aligned");
            }
            if run.offset < end {
                return Err("its runs of pages overlap");
            }
            end = run
                .end()
                .filter(|end| *end <= memory_bytes)
                .ok_or("a run ends after its memory")?;
        }
        let mut places: Vec<(u64, u64)> = runs.iter().map(|run| (run.place, run.bytes)).collect();
        places.sort_unstable();
        let mut stored_bytes = 0;
        for (place, bytes) in places {
            if place != stored_bytes {
                return Err("the places of its pages overlap or leave a gap");
            }
            // No overflow: all runs together are no longer than the memory.
            stored_bytes += bytes;
        }
        Ok(PageMap { memory_bytes, stored_bytes, runs })
    }

    /// Bytes of the guest's memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Bytes of the pages that are stored.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Chunks that the data takes.
    pub fn chunks(&self) -> u64 {
        self.stored_bytes.div_ceil(CHUNK_BYTES)
    }

    /// The runs, in the order of their offsets.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// What lies at `offset`, which lies in the memory.
    pub fn at(&self, offset: u64) -> Extent {
        let next = self.runs.partition_point(|run| run.offset <= offset);
        if let Some(run) = next.checked_sub(1).map(|index| self.runs[index]) {
            let into = offset - run.offset;
            if into < run.bytes {
                return Extent::Stored { place: run.place + into, bytes: run.bytes - into };
            }
        }
        let end = self.runs.get(next).map_or(self.memory_bytes, |run| run.offset);
        Extent::Zeros(end.saturating_sub(offset))
    }
}

/// Adds a run, or lengthens the last by it.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last)
            if last.offset + last.bytes == run.offset && last.place + last.bytes == run.place =>
        {
            last.bytes += run.bytes;
        }
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn windows(pages: &[bool]) -> Windows {
        let mut windows = Windows::of_zeros(pages.len() as u64 * PAGE_BYTES);
        for (page, stored) in pages.iter().enumerate().filter(|(_, stored)| **stored) {
            assert!(stored);
            windows.add(page as u64);
        }
        windows
    }

    proptest! {
        #[test]
        fn every_page_has_a_place_of_its_own_or_is_zeros(
            runs in prop::collection::vec((any::<bool>(), 1usize..700), 1..12),
            hot in prop::collection::vec(0u32..4000, 0..60),
        ) {
            let pages: Vec<bool> =
                runs.iter().flat_map(|(stored, count)| vec![*stored; *count]).collect();
            let map = PageMap::arrange(&windows(&pages), &hot);
            let read = PageMap::checked(map.memory_bytes(), map.runs().to_vec());
            prop_assert_eq!(read.as_ref(), Ok(&map));
            let mut places = std::collections::BTreeSet::new();
            for (page, stored) in pages.iter().enumerate() {
                let offset = page as u64 * PAGE_BYTES;
                match map.at(offset) {
                    Extent::Zeros(bytes) => prop_assert!(!stored && bytes > 0),
                    Extent::Stored { place, bytes } => {
                        prop_assert!(*stored && bytes > 0 && places.insert(place));
                        let window = page / 512 * 512;
                        let is_whole = pages.get(window..window + 512)
                            .is_some_and(|window| window.iter().all(|stored| *stored))
                            && !hot.iter().any(|page| *page as usize / 512 * 512 == window);
                        prop_assert!(!is_whole || (place % CHUNK_BYTES) == (offset % CHUNK_BYTES));
                    }
                }
            }
            prop_assert_eq!(places.len() as u64 * PAGE_BYTES, map.stored_bytes());
            // Hot pages are neighbours, in their order.
            let mut seen = std::collections::BTreeSet::new();
            let stored = |page: &&u32| pages.get(**page as usize) == Some(&true);
            let places: Vec<u64> = hot.iter().filter(stored).filter(|page| seen.insert(**page))
                .map(|page| match map.at(u64::from(*page) * PAGE_BYTES) {
                    Extent::Stored { place, .. } => place,
                    Extent::Zeros(_) => u64::MAX,
                })
                .collect();
            prop_assert!(places.windows(2).all(|pair| pair[1] == pair[0] + PAGE_BYTES));
        }
    }

    #[test]
    fn runs_that_lie_are_refused() {
        let run = |offset: u64, place: u64, bytes: u64| Run {
            offset: offset * PAGE_BYTES,
            place: place * PAGE_BYTES,
            bytes: bytes * PAGE_BYTES,
        };
        let refused = [
            vec![run(0, 0, 0)],
            vec![run(0, 1, 1)],
            vec![run(0, 0, 9)],
            vec![run(2, 0, 1), run(1, 1, 1)],
            vec![run(0, 0, 2), run(1, 2, 1)],
            vec![run(0, 0, 2), run(2, 1, 1)],
            vec![run(0, 0, 1), run(2, 2, 1)],
            vec![Run { offset: 1, place: 0, bytes: PAGE_BYTES }],
            vec![Run { offset: u64::MAX - 4095, place: 0, bytes: PAGE_BYTES }],
        ];
        for runs in refused {
            assert!(PageMap::checked(8 * PAGE_BYTES, runs.clone()).is_err(), "{runs:?}");
        }
        assert!(PageMap::checked(8 * PAGE_BYTES, vec![run(0, 1, 1), run(3, 0, 1)]).is_ok());
        assert!(PageMap::checked(0, Vec::new()).is_err());
        assert!(PageMap::checked(4097, Vec::new()).is_err());
    }
}
