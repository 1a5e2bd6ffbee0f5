//! Which pages are worth filling before a machine asks for them, as far as the last recorded machines show.
//!
//! ```text
//!  history of a page   1 h h h h h h h h     a leading one, then at most eight observations, the newest last:
//!                                            1 the machine asked for the page, 0 it did not
//!  hot                 hits * 4 >= observations * level
//! ```
//! A machine shows for each page that it was not given in advance whether it needs it. So each machine has to do without a
//! few of the hot pages, other ones than the machine before: of these it shows whether they are still needed. The level
//! is 1 and rises, to 4 at most, as far as is necessary for the hot pages to fit into what a server keeps in memory. Pages
//! that each machine needs stay hot, however many they are: a server reads again those that it cannot keep.

use std::collections::BTreeMap;

/// Observations of a page that count.
const OBSERVATIONS: u32 = 8;
/// A page is hot that a quarter of the machines have needed, or as many quarters as the level says.
const LEVELS: std::ops::RangeInclusive<u32> = 1..=4;

/// What a machine was given in advance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// Hot pages then, in their order.
    pub(crate) hot: std::rc::Rc<std::collections::HashSet<u32>>,
    /// Which of them it did without.
    pub(crate) withheld: Option<Withheld>,
}

/// A share of the pages, which is another one for each machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Withheld {
    /// One page in so many.
    pub(crate) share: u64,
    /// Number of the machine.
    pub(crate) turn: u64,
    /// Pages that come together or not at all: those of a huge page.
    pub(crate) unit: u64,
}

impl Withheld {
    /// Whether a page is one of them.
    pub(crate) fn has(&self, page: u32) -> bool {
        // Neighbours go to different machines, or one machine would miss a whole range.
        let unit = u64::from(page) / self.unit.max(1);
        let spread = unit.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread % self.share.max(1) == self.turn % self.share.max(1)
    }
}

impl Given {
    /// Whether the machine shows of a page if it needs it.
    fn shows(&self, page: u32) -> bool {
        !self.hot.contains(&page) || self.withheld.is_some_and(|withheld| withheld.has(page))
    }
}

/// Histories of pages.
#[derive(Debug, Default)]
pub(crate) struct Hotness {
    /// Machines that were observed.
    machines: u32,
    histories: BTreeMap<u32, u16>,
    /// Pages that have a history, in the order in which they were needed first.
    order: Vec<u32>,
}

impl Hotness {
    /// Pages that are known to be needed from before: as if one machine had needed them.
    pub(crate) fn known(pages: &[u32]) -> Hotness {
        let mut hotness = Hotness::default();
        if !pages.is_empty() {
            hotness.observe(pages, &Given::default());
        }
        hotness
    }

    /// Notes what a machine has asked for, in its order.
    pub(crate) fn observe(&mut self, needed: &[u32], given: &Given) {
        let asked: std::collections::HashSet<u32> = needed.iter().copied().collect();
        for (page, history) in &mut self.histories {
            if given.shows(*page) {
                *history = pushed(*history, asked.contains(page));
            }
        }
        for page in needed {
            let misses = self.machines.min(OBSERVATIONS - 1);
            self.histories.entry(*page).or_insert_with(|| {
                self.order.push(*page);
                1 << (misses + 1) | 1
            });
        }
        self.machines = self.machines.saturating_add(1);
        // What no machine has needed for long is as if it never was.
        self.histories.retain(|_, history| *history != 1 << OBSERVATIONS);
        self.order.retain(|page| self.histories.contains_key(page));
    }

    /// Hot pages in the order in which they were needed first, at the least level at which they are at most `most`; at
    /// the last level all, however many they are.
    pub(crate) fn hot(&self, most: usize) -> Vec<u32> {
        let at = |level: u32| self.order.iter().filter(move |page| self.is_hot(**page, level));
        let fits = |level: &u32| at(*level).count() <= most;
        let level = LEVELS.into_iter().find(fits).unwrap_or(*LEVELS.end());
        at(level).copied().collect()
    }

    fn is_hot(&self, page: u32, level: u32) -> bool {
        let history = self.histories.get(&page).copied().unwrap_or(1);
        let (hits, observations) = (history.count_ones() - 1, history.ilog2());
        hits > 0 && hits * LEVELS.end() >= observations * level
    }
}

/// A history with one more observation.
fn pushed(history: u16, is_hit: bool) -> u16 {
    let longer = history << 1 | u16::from(is_hit);
    match longer >> (OBSERVATIONS + 1) {
        0 => longer,
        _ => longer & ((1 << OBSERVATIONS) - 1) | 1 << OBSERVATIONS,
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn given(hot: &[u32], turn: u64) -> Given {
        let withheld = Some(Withheld { share: 4, turn, unit: 1 });
        Given { hot: Rc::new(hot.iter().copied().collect()), withheld }
    }

    #[test]
    fn a_page_that_machines_stop_to_need_is_forgotten_and_comes_back() {
        let mut hotness = Hotness::known(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let mut turn = 0;
        let mut run = |hotness: &mut Hotness, needs: &[u32]| {
            let hot = hotness.hot(99);
            let given = given(&hot, turn);
            turn += 1;
            let asks = |page: &u32| needs.contains(page) && given.shows(*page);
            let needed: Vec<u32> = (0..99).filter(asks).collect();
            hotness.observe(&needed, &given);
        };
        // A page goes when it was withheld four times: 16 machines.
        (0..3).for_each(|_| run(&mut hotness, &[1, 2, 3]));
        assert_eq!(hotness.hot(99).len(), 8);
        (0..17).for_each(|_| run(&mut hotness, &[1, 2, 3]));
        assert_eq!(hotness.hot(99), [1, 2, 3]);
        // Two machines of the last eight.
        run(&mut hotness, &[1, 2, 3, 5]);
        assert_eq!(hotness.hot(99), [1, 2, 3]);
        run(&mut hotness, &[1, 2, 3, 5]);
        assert_eq!(hotness.hot(99), [1, 2, 3, 5]);
        (0..60).for_each(|_| run(&mut hotness, &[1, 2, 3]));
        assert_eq!((hotness.hot(99), hotness.histories.len()), (vec![1, 2, 3], 3));
    }

    #[test]
    fn the_level_rises_until_the_hot_pages_fit() {
        let mut hotness = Hotness::known(&[10, 11]);
        for turn in 0..7 {
            let more: &[u32] = if turn % 2 == 0 { &[10, 11, 12] } else { &[10] };
            hotness.observe(more, &Given::default());
        }
        // 10: 8 of 8; 11: 5 of 8; 12: 4 of 8.
        assert_eq!(hotness.hot(3), [10, 11, 12]);
        assert_eq!(hotness.hot(2), [10]);
        assert_eq!(hotness.hot(0), [10]);
    }

    #[test]
    fn pages_that_all_need_stay_hot_beyond_what_a_server_keeps() {
        let needed = [5, 3, 9, 1];
        let mut hotness = Hotness::known(&needed);
        assert_eq!(hotness.hot(2), needed);
        hotness.observe(&needed, &Given::default());
        hotness.observe(&[5, 3, 9, 1, 2], &Given::default());
        assert_eq!(hotness.hot(2), needed);
    }

    #[test]
    fn what_was_given_shows_nothing() {
        let mut hotness = Hotness::known(&[7]);
        let all = Given { hot: Rc::new([7].into()), withheld: None };
        (0..100).for_each(|_| hotness.observe(&[], &all));
        assert_eq!(hotness.hot(9), [7]);
        (0..4).for_each(|_| hotness.observe(&[], &Given::default()));
        assert!(hotness.hot(9).is_empty());
    }

    #[test]
    fn each_page_has_its_turn() {
        let shares = |page: u32, unit: u64| {
            (0..64).filter(move |turn| Withheld { share: 64, turn: *turn, unit }.has(page)).count()
        };
        assert!((0..5000).all(|page| shares(page, 1) == 1 && shares(page, 512) == 1));
        let together = Withheld { share: 64, turn: 0, unit: 512 };
        assert!((0..512).all(|page| together.has(page)) && !together.has(512));
        let one = Withheld { share: 64, turn: 5, unit: 1 };
        let count = (0..6400).filter(|page| one.has(*page)).count();
        assert!((80..120).contains(&count), "{count}");
    }
}
