//! Turns for what only so many may do at once: tenants get them one after the other, however many each asks for.
//!
//! ```text
//!  a asks ─► 1 2 3 4 5 6 ─┐
//!  b asks ─► 7            ├─► 1 7 2 8 3 4 …   as turns end, the next tenant's first
//!  c asks ─► 8            ┘
//! ```
//! Invariant: a turn waits only while as many as there may be are held.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// The turns of tenants, each known by a number.
#[derive(Debug)]
pub struct Turns<T> {
    most: usize,
    held: BTreeSet<u64>,
    waiting: BTreeMap<T, VecDeque<u64>>,
    /// The tenant that got the last turn that had to be waited for.
    last: Option<T>,
    next: u64,
}

impl<T: Ord + Clone> Turns<T> {
    /// At most so many are held at once.
    pub fn new(most: usize) -> Turns<T> {
        let (held, waiting) = (BTreeSet::new(), BTreeMap::new());
        Turns { most: most.max(1), held, waiting, last: None, next: 0 }
    }

    /// Asks for a turn. Returns its number, and whether it is held already.
    pub fn ask(&mut self, tenant: T) -> (u64, bool) {
        let turn = self.next;
        self.next += 1;
        let is_held = self.held.len() < self.most;
        match is_held {
            true => drop(self.held.insert(turn)),
            false => self.waiting.entry(tenant).or_default().push_back(turn),
        }
        (turn, is_held)
    }

    /// Ends a turn that is held; returns the one that is held instead. Ending it again changes nothing.
    pub fn end(&mut self, turn: u64) -> Option<u64> {
        if !self.held.remove(&turn) {
            return None;
        }
        let tenant = self.next_tenant()?;
        let turns = self.waiting.get_mut(&tenant)?;
        let turn = turns.pop_front()?;
        if turns.is_empty() {
            self.waiting.remove(&tenant);
        }
        self.last = Some(tenant);
        self.held.insert(turn);
        Some(turn)
    }

    /// The first tenant that waits behind the last one, in a circle.
    fn next_tenant(&self) -> Option<T> {
        let behind = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.waiting.range((behind, Bound::Unbounded));
        behind.next().or_else(|| self.waiting.first_key_value()).map(|(tenant, _)| tenant.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tenants_take_turns_however_many_each_asks_for() {
        let mut turns = Turns::new(1);
        assert_eq!(turns.ask("a"), (0, true));
        for (turn, tenant) in (1..).zip(["a", "a", "a", "b", "c", "b"]) {
            assert_eq!(turns.ask(tenant), (turn, false));
        }
        let mut order = vec![0];
        while let Some(next) = turns.end(order[order.len() - 1]) {
            order.push(next);
        }
        assert_eq!(order, [0, 1, 4, 5, 2, 6, 3]);
        assert_eq!(turns.ask("c"), (7, true));
        assert_eq!(turns.end(1), None, "it has ended already");
        assert_eq!(turns.ask("c"), (8, false));
    }

    proptest! {
        #[test]
        fn turns_are_held_once_and_none_waits_without_need(
            most in 1usize..4,
            steps in proptest::collection::vec((0u8..4, 0usize..8), 1..200),
        ) {
            let mut turns = Turns::new(most);
            let (mut held, mut waiting) = (Vec::new(), BTreeSet::new());
            for (step, which) in steps {
                if step < 2 {
                    let (turn, is_held) = turns.ask(which % 3);
                    match is_held {
                        true => held.push(turn),
                        false => prop_assert!(waiting.insert(turn)),
                    }
                } else if !held.is_empty() {
                    let ended = held.swap_remove(which % held.len());
                    if let Some(next) = turns.end(ended) {
                        prop_assert!(waiting.remove(&next));
                        held.push(next);
                    }
                }
                prop_assert!(held.len() <= most);
                prop_assert!(held.len() == most || waiting.is_empty());
            }
        }
    }
}
