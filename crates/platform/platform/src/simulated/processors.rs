//! The processors of one node, shared by the calls that run on it and the instances that start on it.
//!
//! ```text
//!  up to as many of them as processors: each runs as if alone
//!  more: all run at the same speed, processors / their number (processor sharing)
//!
//!  work ── what one has had since the node began, had it run all the time ──► it ends when that reaches
//!          what it was at its begin, and what it needs
//! ```
//! A start counts as a call here. So a change of the number of calls changes the speed of one counter, and not each
//! call. The counter is in parts of a microsecond, rounded down at each change: by less than a part, of which a
//! microsecond has a million.

use std::collections::BTreeSet;

/// Parts of a microsecond.
const PARTS: u128 = 1 << 20;

/// Of what has no time limit: when it began.
pub const NO_LIMIT: u64 = u64::MAX;

/// A node's processors, and the calls that run on them.
#[derive(Clone, Debug)]
pub struct Processors {
    count: u64,
    /// Up to when the work is known.
    at_us: u64,
    work: u128,
    /// The work with which calls end, when they began, and their instances.
    ends: BTreeSet<(u128, u64, u64)>,
    /// The same by their begins.
    begins: BTreeSet<(u64, u128, u64)>,
    /// How often calls have begun or ended.
    changes: u64,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its instance.
    pub instance: u64,
    /// When it began.
    pub began_us: u64,
    /// Whether it had what it needs, and did not reach its limit.
    pub is_well: bool,
}

impl Processors {
    /// So many; at least one.
    pub fn new(count: u32) -> Processors {
        Processors {
            count: u64::from(count).max(1),
            at_us: 0,
            work: 0,
            ends: BTreeSet::new(),
            begins: BTreeSet::new(),
            changes: 0,
        }
    }

    fn advance(&mut self, now_us: u64) {
        let us = u128::from(now_us.saturating_sub(self.at_us));
        let calls = (self.ends.len() as u64).max(self.count);
        self.work += us * PARTS * u128::from(self.count) / u128::from(calls);
        self.at_us = now_us;
    }

    /// An instance begins a call that needs so long alone, with a time limit from another moment on.
    pub fn begin(&mut self, (now_us, since_us): (u64, u64), instance: u64, alone_us: u64) {
        self.advance(now_us);
        let end = self.work + u128::from(alone_us) * PARTS;
        self.ends.insert((end, since_us, instance));
        self.begins.insert((since_us, end, instance));
        self.changes += 1;
    }

    /// The calls that have had what they need, and those that have run for longer than a limit.
    pub fn ended(&mut self, now_us: u64, limit_us: u64) -> Vec<Ended> {
        self.advance(now_us);
        let mut ended = Vec::new();
        let is_late = |began_us: u64| began_us.saturating_add(limit_us) <= now_us;
        // Of those that end together, in the order of their begins.
        while let Some((end, began_us, instance)) =
            self.ends.first().filter(|(end, ..)| *end <= self.work).copied()
        {
            self.remove(began_us, end, instance);
            ended.push(Ended { instance, began_us, is_well: true });
        }
        while let Some((began_us, end, instance)) =
            self.begins.first().filter(|(began_us, ..)| is_late(*began_us)).copied()
        {
            self.remove(began_us, end, instance);
            ended.push(Ended { instance, began_us, is_well: false });
        }
        ended
    }

    /// Whether an instance's call has had what it needs.
    pub fn is_over(&mut self, now_us: u64, instance: u64) -> bool {
        self.advance(now_us);
        self.ends.iter().any(|(end, _, other)| *other == instance && *end <= self.work)
    }

    /// An instance's call stops. Returns how long it needs still, if it were alone.
    pub fn leave(&mut self, now_us: u64, instance: u64) -> Option<u64> {
        self.advance(now_us);
        let (end, began_us, _) =
            self.ends.iter().find(|(.., other)| *other == instance).copied()?;
        self.remove(began_us, end, instance);
        u64::try_from(end.saturating_sub(self.work).div_ceil(PARTS)).ok()
    }

    fn remove(&mut self, began_us: u64, end: u128, instance: u64) {
        self.ends.remove(&(end, began_us, instance));
        self.begins.remove(&(began_us, end, instance));
        self.changes += 1;
    }

    /// When the next call ends if nothing changes, and the number of the change after which that is so.
    pub fn due(&self, limit_us: u64) -> Option<(u64, u64)> {
        let (end, ..) = self.ends.first()?;
        let calls = (self.ends.len() as u64).max(self.count);
        let left = end.saturating_sub(self.work) * u128::from(calls);
        let us = left.div_ceil(PARTS * u128::from(self.count));
        let at_us = self.at_us.saturating_add(u64::try_from(us).unwrap_or(u64::MAX));
        let (began_us, ..) = self.begins.first()?;
        Some((at_us.min(began_us.saturating_add(limit_us)), self.changes))
    }

    /// Whether nothing has begun or ended since that change.
    pub fn is_current(&self, change: u64) -> bool {
        self.changes == change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs until all have ended; instances and the times of their ends.
    fn ends(mut node: Processors, limit_us: u64) -> Vec<(u64, u64, bool)> {
        let mut seen = Vec::new();
        while let Some((at_us, _)) = node.due(limit_us) {
            let ended = node.ended(at_us, limit_us);
            seen.extend(ended.iter().map(|one| (one.instance, at_us, one.is_well)));
        }
        seen
    }

    #[test]
    fn calls_share_processors_equally() {
        let mut node = Processors::new(2);
        node.begin((0, 0), 1, 100);
        node.begin((0, 0), 2, 300);
        assert_eq!(ends(node.clone(), 1 << 40), [(1, 100, true), (2, 300, true)]);
        // Three on two: each at two thirds. The first has 40 left at 60.
        node.begin((60, 60), 3, 1000);
        let seen = ends(node, 1 << 40);
        assert_eq!(seen, [(1, 120, true), (2, 320, true), (3, 1080, true)]);
    }

    #[test]
    fn a_call_that_leaves_gets_the_rest_later() {
        let mut node = Processors::new(1);
        node.begin((0, 0), 1, 100);
        node.begin((0, 0), 2, 300);
        // Each has had 20.
        assert!(!node.is_over(40, 1));
        assert_eq!((node.leave(40, 1), node.leave(40, 1)), (Some(80), None));
        node.begin((140, 140), 1, 80);
        assert_eq!(ends(node, 1 << 40), [(1, 300, true), (2, 400, true)]);
    }

    #[test]
    fn a_call_ends_at_its_limit() {
        let mut node = Processors::new(1);
        node.begin((0, 0), 1, 600);
        node.begin((10, 10), 2, 500);
        // At 1000 the first has had 505.
        assert_eq!(ends(node, 1000), [(1, 1000, false), (2, 1005, true)]);
    }

    #[test]
    fn a_limit_may_count_from_before() {
        let mut node = Processors::new(1);
        node.begin((400, 0), 1, 700);
        node.begin((400, 400), 2, 800);
        // At 1000 both have had 300.
        assert_eq!(ends(node, 1000), [(1, 1000, false), (2, 1400, false)]);
    }

    #[test]
    fn a_start_has_no_limit() {
        let mut node = Processors::new(1);
        node.begin((0, NO_LIMIT), 1, 3000);
        node.begin((0, 0), 2, 3000);
        assert_eq!(ends(node.clone(), 1000), [(2, 1000, false), (1, 3500, true)]);
        assert!(!node.is_over(5999, 1) && node.is_over(6000, 1));
    }

    #[test]
    fn calls_that_end_together_end_in_the_order_of_their_begins() {
        let mut node = Processors::new(1);
        node.begin((0, 0), 9, 100);
        node.begin((100, 100), 4, 100);
        let first = node.ended(100, 1 << 40);
        assert_eq!(first, [Ended { instance: 9, began_us: 0, is_well: true }]);
        node.begin((150, 150), 2, 50);
        let (at_us, change) = node.due(1 << 40).unwrap();
        assert!(node.is_current(change));
        let both: Vec<u64> = node.ended(at_us, 1 << 40).iter().map(|one| one.instance).collect();
        assert_eq!((at_us, both), (250, vec![4, 2]));
        assert!(!node.is_current(change) && node.due(1 << 40).is_none());
    }
}
