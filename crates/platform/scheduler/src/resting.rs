//! Keep-alive: the idle instances of one function, how long they stay, and when they are frozen.
//!
//! ```text
//!  a call has ended ─► idle ─► frozen after a while ─► ended when its window is over
//!                       └──────────┴─► taken by a call: the one that was used last
//! ```

use std::collections::VecDeque;
use std::fmt::Display;

use farfork_policy::Memory;
use farfork_policy::keep_alive::IdleFacts;
use farfork_policy::observed::IdleGaps;

use crate::advice::Advice;

/// Calls remembered to compute calls per hour.
const REMEMBERED_CALLS: usize = 1024;
const HOUR_US: u64 = 3_600_000_000;

/// What is to be done with an idle instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestEffect {
    /// Freeze it.
    Freeze(u64),
    /// End it: its window is over.
    End(u64),
}

/// An idle instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Idle {
    id: u64,
    /// When to freeze it, if it is not frozen.
    freeze_us: Option<u64>,
    /// When to end it.
    until_us: u64,
}

impl Idle {
    /// When the next of these is due.
    fn due_us(&self) -> u64 {
        self.freeze_us.map_or(self.until_us, |at| at.min(self.until_us))
    }
}

/// The idle instances of one function, and when it was called.
#[derive(Clone, Debug, Default)]
pub struct Resting {
    /// The most recently used is last.
    idle: Vec<Idle>,
    /// When the first of them is due. A driver asks after each event, and a function may have thousands idle.
    due_us: Option<u64>,
    gaps: IdleGaps,
    recent_us: VecDeque<u64>,
    last_end_us: Option<u64>,
}

impl Resting {
    /// A call has come. If the function was quiet, with no call running or waiting, the gap since its last
    /// call counts.
    pub fn called(&mut self, now_us: u64, was_quiet: bool) {
        if let Some(end_us) = self.last_end_us.filter(|_| was_quiet) {
            self.gaps.add(now_us.saturating_sub(end_us) / 1000);
        }
        self.recent_us.push_back(now_us);
        if self.recent_us.len() > REMEMBERED_CALLS {
            self.recent_us.pop_front();
        }
    }

    /// A call has ended.
    pub fn call_ended(&mut self, now_us: u64) {
        self.last_end_us = Some(now_us);
    }

    /// Decides how long an instance stays idle, in milliseconds.
    pub fn window_ms(
        &self,
        memory: Memory,
        has_image: bool,
        about: &dyn Display,
        advice: &impl Advice,
    ) -> u64 {
        advice.decide(about, &IdleFacts { memory, has_image, gaps: self.gaps.gaps() })
    }

    /// Makes an instance idle for a window, and freezes it after a while. Returns its share of the
    /// function's calls in the last hour.
    pub fn rest(&mut self, now_us: u64, id: u64, window_ms: u64, freeze_after_us: u64) -> u64 {
        while self.recent_us.front().is_some_and(|at| now_us.saturating_sub(*at) > HOUR_US) {
            self.recent_us.pop_front();
        }
        let share = self.recent_us.len() as u64 / (self.idle.len() as u64 + 1);
        let freeze_us = Some(now_us.saturating_add(freeze_after_us));
        let until_us = now_us.saturating_add(window_ms.saturating_mul(1000));
        let rests = Idle { id, freeze_us, until_us };
        self.due_us = self.due_us.into_iter().chain([rests.due_us()]).min();
        self.idle.push(rests);
        share
    }

    /// Takes the most recently used instance that has room to work, so that the windows of others run
    /// out.
    pub fn take(&mut self, mut has_room: impl FnMut(u64) -> bool) -> Option<u64> {
        let index = self.idle.iter().rposition(|idle| has_room(idle.id))?;
        Some(self.remove(index))
    }

    /// Others are looked at only if none was due before this one: what a call takes was used last, and is mostly due last.
    fn remove(&mut self, index: usize) -> u64 {
        let removed = self.idle.remove(index);
        if self.due_us == Some(removed.due_us()) {
            self.find_due();
        }
        removed.id
    }

    fn find_due(&mut self) {
        self.due_us = self.idle.iter().map(Idle::due_us).min();
    }

    /// Forgets an instance that has ended or is to end. Returns whether it was idle.
    pub fn forget(&mut self, id: u64) -> bool {
        let index = self.idle.iter().position(|idle| idle.id == id);
        index.map(|index| self.remove(index)).is_some()
    }

    /// The idle instances.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.idle.iter().map(|idle| idle.id)
    }

    /// When [`Resting::tend`] is due.
    pub fn due_us(&self) -> Option<u64> {
        self.due_us
    }

    /// What is due: the instances whose windows are over, or all of them, and then those to be frozen.
    pub fn tend(&mut self, now_us: u64, all_end: bool) -> Vec<RestEffect> {
        if !all_end && self.due_us.is_none_or(|at| at > now_us) {
            return Vec::new();
        }
        let is_over = |idle: &mut Idle| all_end || idle.until_us <= now_us;
        let over = self.idle.extract_if(.., is_over).map(|idle| RestEffect::End(idle.id));
        let mut effects: Vec<RestEffect> = over.collect();
        let due = self.idle.iter_mut().filter(|idle| idle.freeze_us.is_some_and(|at| at <= now_us));
        effects.extend(due.map(|idle| {
            idle.freeze_us = None;
            RestEffect::Freeze(idle.id)
        }));
        self.find_due();
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::RestEffect::{End, Freeze};
    use super::*;
    use crate::advice::ByDefault;
    use farfork_policy::Policy;
    use farfork_policy::keep_alive::{ByGaps, Gaps};
    use proptest::prelude::*;

    const S: u64 = 1_000_000;

    #[test]
    fn an_idle_instance_is_frozen_and_ends_when_its_window_is_over() {
        let mut resting = Resting::default();
        assert_eq!(resting.due_us(), None);
        resting.rest(0, 1, 30_000, 10 * S);
        resting.rest(5 * S, 2, 3_000, 10 * S);
        assert_eq!(resting.due_us(), Some(8 * S));
        assert_eq!(resting.tend(8 * S - 1, false), []);
        assert_eq!(resting.tend(8 * S, false), [End(2)]);
        assert_eq!(resting.due_us(), Some(10 * S));
        assert_eq!(resting.tend(10 * S, false), [Freeze(1)]);
        assert_eq!(resting.tend(10 * S, false), [], "once");
        assert_eq!(resting.due_us(), Some(30 * S));
        resting.rest(11 * S, 3, 60_000, 10 * S);
        assert_eq!(resting.tend(12 * S, true), [End(1), End(3)]);
        assert_eq!(resting.ids().count(), 0);
    }

    #[test]
    fn the_last_used_instance_with_room_is_taken() {
        let mut resting = Resting::default();
        for id in 1..=3 {
            resting.rest(0, id, 1000, S);
        }
        assert_eq!(resting.take(|id| id != 3), Some(2));
        assert_eq!(resting.take(|_| false), None);
        assert!(resting.forget(3) && !resting.forget(3));
        assert_eq!((resting.take(|_| true), resting.take(|_| true)), (Some(1), None));
    }

    #[test]
    fn gaps_count_from_the_last_end_where_the_function_was_quiet() {
        let advice = ByDefault::new();
        let mut resting = Resting::default();
        let mut now_us = 0;
        for call in 0..17 {
            resting.called(now_us, true);
            // One that comes while another runs has no gap.
            resting.called(now_us + 1, false);
            resting.call_ended(now_us + S);
            now_us += 61 * S + call;
        }
        let memory = Memory { used_bytes: 0, budget_bytes: 1 };
        let window_ms = resting.window_ms(memory, true, &"f", &advice);
        let facts = IdleFacts { memory, has_image: true, gaps: resting.gaps.gaps() };
        assert_eq!((facts.gaps.count, window_ms), (16, ByGaps::default().decide(&facts).choice));
        let Gaps { p99_ms, .. } = facts.gaps;
        assert!((60_000..68_000).contains(&p99_ms), "{p99_ms}");
    }

    #[test]
    fn idle_instances_share_the_calls_of_an_hour() {
        let mut resting = Resting::default();
        (0..2000).for_each(|_| resting.called(0, false));
        assert_eq!(resting.rest(3600 * S, 1, 1, 1), 1024, "as many as are remembered");
        assert_eq!(resting.rest(3600 * S, 2, 1, 1), 512);
        assert_eq!(resting.rest(3600 * S + 1, 3, 1, 1), 0);
    }

    proptest! {
        /// What is due, and when, is what a look at all idle instances finds.
        #[test]
        fn what_is_due_is_what_a_scan_finds(
            steps in proptest::collection::vec((0u8..6, 0u64..12, 0u64..50), 1..80),
        ) {
            let (mut resting, mut now_us, mut next) = (Resting::default(), 0, 0);
            for (what, figure, after_us) in steps {
                now_us += after_us;
                match what {
                    0 | 1 => {
                        resting.rest(now_us, next, figure / 4, figure * 90);
                        next += 1;
                    }
                    // Some have no room.
                    2 => drop(resting.take(|id| id % 12 != figure)),
                    3 => drop(resting.forget(next.saturating_sub(figure))),
                    _ => {
                        let is_due = |idle: &&Idle| idle.due_us() <= now_us;
                        let mut due: Vec<u64> =
                            resting.idle.iter().filter(is_due).map(|idle| idle.id).collect();
                        let effects = resting.tend(now_us, false);
                        let id = |effect| match effect { End(id) | Freeze(id) => id };
                        let mut seen: Vec<u64> = effects.into_iter().map(id).collect();
                        due.sort_unstable();
                        seen.sort_unstable();
                        prop_assert_eq!(seen, due);
                    }
                }
                prop_assert_eq!(resting.due_us(), resting.idle.iter().map(Idle::due_us).min());
            }
        }

        /// The driver sleeps until `due_us`: then something is due, and nothing before.
        #[test]
        fn something_is_due_exactly_when_it_says(
            rests in proptest::collection::vec((0u64..100, 0u64..50, 0u64..50_000), 1..20),
        ) {
            let (mut resting, mut now_us) = (Resting::default(), 0);
            for (id, (after, window_ms, freeze_us)) in rests.into_iter().enumerate() {
                now_us += after;
                resting.rest(now_us, id as u64, window_ms, freeze_us);
            }
            let (mut ended, count) = (0, resting.ids().count());
            // Each is frozen once and ends once.
            for _ in 0..2 * count {
                let Some(due_us) = resting.due_us() else { break };
                if due_us > now_us {
                    prop_assert_eq!(resting.tend(due_us - 1, false), []);
                }
                now_us = now_us.max(due_us);
                let effects = resting.tend(now_us, false);
                prop_assert!(!effects.is_empty());
                ended += effects.iter().filter(|effect| matches!(effect, End(_))).count();
            }
            prop_assert_eq!(ended, count);
        }
    }
}
