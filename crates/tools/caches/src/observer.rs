//! Follows the accesses of one process.

use std::collections::BTreeMap;

use crate::cache::{Cache, Geometry, LINE_BYTES};
use crate::pages::{PAGE_BYTES, Page, Pages};
use crate::{ByKind, Misses, PageMisses, Phase, Seen};

/// Caches of a core of CXLfork's machine (Intel Sapphire Rapids, section 6).
const L1_DATA: Geometry = Geometry { bytes: 48 << 10, ways: 12 };
const L1_CODE: Geometry = Geometry { bytes: 32 << 10, ways: 8 };
const L2: Geometry = Geometry { bytes: 2 << 20, ways: 16 };
/// Associativity of a last-level cache.
const LAST_WAYS: u32 = 16;

/// Follows one process.
#[derive(Debug)]
pub struct Observer {
    phase: Phase,
    data: Cache,
    code: Cache,
    second: Cache,
    last: Vec<Cache>,
    pages: Pages,
    /// Misses by page, once they were asked for.
    by_page: Option<BTreeMap<u64, u64>>,
    seen: Seen,
}

impl Observer {
    /// An observer with last-level caches of these sizes. Each is modelled independently.
    pub fn new(sizes: &[u64]) -> Observer {
        let last = |&bytes: &u64| Cache::new(Geometry { bytes, ways: LAST_WAYS });
        let level = |&bytes: &u64| Misses { bytes, ..Misses::default() };
        let seen = Seen { levels: sizes.iter().map(level).collect(), ..Seen::default() };
        Observer {
            phase: Phase::default(),
            data: Cache::new(L1_DATA),
            code: Cache::new(L1_CODE),
            second: Cache::new(L2),
            last: sizes.iter().map(last).collect(),
            pages: Pages::default(),
            by_page: None,
            seen,
        }
    }

    /// Changes what accesses are used for.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Marks the moment of the checkpoint. These pages are in the image.
    pub fn checkpoint(&mut self, pages: impl IntoIterator<Item = u64>) {
        self.pages.begin_image(pages);
        self.seen.learned_pages = self.pages.count(|page| page.is_learned);
        self.seen.learned_in_image = self.pages.count(|page| page.is_learned && page.is_in_image);
    }

    /// Empties all caches.
    pub fn clear_caches(&mut self) {
        let caches = [&mut self.data, &mut self.code, &mut self.second];
        caches.into_iter().chain(&mut self.last).for_each(Cache::clear);
    }

    /// The counts since the last call of this.
    pub fn take(&mut self) -> Seen {
        let mut rest = Seen {
            accesses: 0,
            fetches: 0,
            touched: ByKind::default(),
            first_written: ByKind::default(),
            ..self.seen.clone()
        };
        rest.levels.iter_mut().for_each(|level| level.misses = ByKind::default());
        std::mem::replace(&mut self.seen, rest)
    }

    /// The same with the misses by page, which are counted from the first call of this on.
    pub fn take_pages(&mut self) -> Seen {
        let by_page = self.by_page.replace(BTreeMap::new()).unwrap_or_default();
        let pages = by_page.into_iter().map(|(page, misses)| PageMisses { page, misses });
        Seen { pages: pages.collect(), ..self.take() }
    }

    /// Records a read or write of `bytes` at an address.
    pub fn access(&mut self, address: u64, bytes: u64, is_write: bool) {
        let lines = address / LINE_BYTES..=(address + bytes.max(1) - 1) / LINE_BYTES;
        match self.phase {
            Phase::Ignored => {}
            Phase::Learning => lines.for_each(|line| self.learn(line)),
            Phase::Measured => {
                self.seen.accesses += 1;
                lines.for_each(|line| self.reach(line, is_write, false));
            }
        }
    }

    /// Records the fetch of `count` lines of instructions, from line `first` on.
    pub fn fetch(&mut self, first: u64, count: u64) {
        let lines = first..first + count;
        match self.phase {
            Phase::Ignored => {}
            Phase::Learning => lines.for_each(|line| self.learn(line)),
            Phase::Measured => {
                self.seen.fetches += count;
                lines.for_each(|line| self.reach(line, false, true));
            }
        }
    }

    fn learn(&mut self, line: u64) {
        let number = page_of(line);
        let page = self.pages.get(number);
        if !page.is_learned {
            self.pages.set(number, Page { is_learned: true, ..page });
        }
    }

    fn reach(&mut self, line: u64, is_write: bool, is_code: bool) {
        let number = page_of(line);
        let mut page = self.pages.get(number);
        if !page.is_touched || (is_write && !page.is_written) {
            if !page.is_touched {
                page.kind().count(&mut self.seen.touched);
            }
            if is_write {
                page.kind().count(&mut self.seen.first_written);
            }
            page = Page { is_touched: true, is_written: page.is_written || is_write, ..page };
            self.pages.set(number, page);
        }
        let first = if is_code { &mut self.code } else { &mut self.data };
        if first.use_line(line) || self.second.use_line(line) {
            return;
        }
        let mut is_missed = false;
        for (cache, level) in self.last.iter_mut().zip(&mut self.seen.levels) {
            is_missed = !cache.use_line(line);
            if is_missed {
                page.kind().count(&mut level.misses);
            }
        }
        if let Some(by_page) = self.by_page.as_mut().filter(|_| is_missed) {
            *by_page.entry(number).or_default() += 1;
        }
    }
}

fn page_of(line: u64) -> u64 {
    line / (PAGE_BYTES / LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: u64 = 4 << 20;
    const LARGE: u64 = 64 << 20;

    fn measured(learned: &[u64], image: &[u64]) -> Observer {
        let mut observer = Observer::new(&[LARGE, SMALL]);
        observer.access(77 * PAGE_BYTES, 8, true);
        observer.enter(Phase::Learning);
        learned.iter().for_each(|page| observer.access(page * PAGE_BYTES, 8, false));
        observer.checkpoint(image.iter().copied());
        observer.enter(Phase::Measured);
        observer
    }

    fn kinds(own: u64, written: u64, accessed: u64, unaccessed: u64) -> ByKind {
        ByKind { own, written, accessed, unaccessed }
    }

    #[test]
    fn misses_are_counted_by_kind_of_page() {
        let mut observer = measured(&[1, 2, 9], &[1, 2, 3, 77]);
        for page in [1, 2, 3, 4] {
            observer.access(page * PAGE_BYTES, 8, false);
        }
        // Each access is in another line, and the first one is the first write to the page.
        observer.access(2 * PAGE_BYTES + 64, 8, true);
        observer.access(2 * PAGE_BYTES + 128, 8, false);
        observer.access(77 * PAGE_BYTES, 8, true);
        observer.access(PAGE_BYTES, 8, false);
        let seen = observer.take();
        assert_eq!(seen.levels[0].misses, kinds(1, 3, 2, 1));
        assert_eq!(seen.levels[0].misses, seen.levels[1].misses);
        assert_eq!(seen.touched, kinds(1, 0, 2, 2));
        assert_eq!(seen.first_written, kinds(0, 0, 1, 1));
        assert_eq!((seen.accesses, seen.fetches), (8, 0));
        assert_eq!((seen.learned_pages, seen.learned_in_image), (3, 2));
    }

    #[test]
    fn counts_start_anew_after_a_query() {
        let mut observer = measured(&[], &[1]);
        observer.access(PAGE_BYTES, 8, true);
        observer.take();
        observer.access(PAGE_BYTES, 8, true);
        let seen = observer.take();
        assert_eq!(seen.accesses, 1);
        assert_eq!(seen.levels[0], Misses { bytes: LARGE, misses: ByKind::default() });
        assert_eq!((seen.touched, seen.first_written), (ByKind::default(), ByKind::default()));
    }

    #[test]
    fn misses_are_counted_by_page_once_they_are_asked_for() {
        let mut observer = measured(&[], &[]);
        observer.access(PAGE_BYTES, 8, true);
        assert_eq!(observer.take_pages().pages, []);
        observer.access(3 * PAGE_BYTES, 8, true);
        observer.access(3 * PAGE_BYTES + 64, 8, false);
        observer.access(2 * PAGE_BYTES, 8, false);
        observer.access(PAGE_BYTES, 8, false);
        let counted: Vec<_> =
            observer.take_pages().pages.iter().map(|p| (p.page, p.misses)).collect();
        assert_eq!(counted, [(2, 1), (3, 2)]);
        assert_eq!(observer.take_pages().pages, []);
    }

    #[test]
    fn data_that_fits_only_the_larger_cache_misses_the_smaller_one() {
        let mut observer = measured(&[], &[]);
        for round in 0..2 {
            for line in 0..(2 * SMALL / LINE_BYTES) {
                observer.access(line * LINE_BYTES, 8, false);
            }
            let missed: Vec<u64> = observer.take().levels.iter().map(|l| l.misses.own).collect();
            let all = 2 * SMALL / LINE_BYTES;
            assert_eq!(missed, if round == 0 { [all, all] } else { [0, all] });
        }
        observer.clear_caches();
        observer.access(0, 8, false);
        assert_eq!(observer.take().levels[0].misses.own, 1);
    }

    #[test]
    fn an_access_may_be_in_two_lines_and_code_has_a_cache_of_its_own() {
        let mut observer = measured(&[], &[]);
        observer.access(LINE_BYTES - 4, 8, false);
        observer.fetch(8, 3);
        let seen = observer.take();
        assert_eq!((seen.levels[0].misses.own, seen.fetches), (5, 3));
        // The line is in the second level, which data and code share.
        observer.access(8 * LINE_BYTES, 1, false);
        assert_eq!(observer.take().levels[0].misses.own, 0);
    }

    #[test]
    fn nothing_is_counted_before_the_measured_phase() {
        let mut observer = Observer::new(&[LARGE]);
        observer.access(0, 8, true);
        observer.fetch(8, 3);
        observer.enter(Phase::Learning);
        observer.fetch(8, 3);
        let seen = observer.take();
        assert_eq!((seen.accesses, seen.fetches, seen.levels[0].misses), (0, 0, ByKind::default()));
    }
}
