//! When a function is checkpointed.
//!
//! Not before it is warm. Just-in-time compilers and lazy initialisation take a few calls to
//! settle, and each clone repeats what has not settled in the image. CXLfork checkpoints after the
//! 16th call (§5).

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// Facts about an instance that has just answered a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFacts {
    /// Calls that it has answered.
    pub calls: u64,
    /// Durations of the last ones inside the instance, in microseconds; the latest last.
    pub recent_us: Vec<u64>,
    /// The pool's use and size.
    pub pool: Memory,
    /// Bytes that its image may take.
    pub image_bytes: u64,
}

/// Whether it is checkpointed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// Not yet.
    NotYet,
    /// It is due, but the pool has no room.
    NoRoom,
    /// Now.
    Now,
}

impl Facts for CheckpointFacts {
    type Choice = Timing;
    const QUESTION: &'static str = "checkpoint";
}

impl CheckpointFacts {
    /// The instance is due; checkpoints it if the pool has room.
    fn due(&self, why: String) -> Decision<Timing> {
        let free = self.pool.free_below(1000);
        if free >= self.image_bytes {
            return Decision::new(Timing::Now, why);
        }
        let image = self.image_bytes;
        let why = format!("{why}, but its image takes {image} bytes and the pool has {free} free");
        Decision::new(Timing::NoRoom, why)
    }
}

/// After a number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AfterCalls {
    /// How many.
    pub calls: u64,
}

impl Default for AfterCalls {
    fn default() -> AfterCalls {
        AfterCalls { calls: 16 }
    }
}

impl Policy<CheckpointFacts> for AfterCalls {
    fn decide(&self, facts: &CheckpointFacts) -> Decision<Timing> {
        match facts.calls < self.calls {
            true => {
                Decision::new(Timing::NotYet, format!("{} calls of {}", facts.calls, self.calls))
            }
            false => facts.due(format!("it has answered {} calls", facts.calls)),
        }
    }
}

/// When durations have settled, or after many calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WhenSettled {
    /// The median of this many calls is compared with that of as many calls before them.
    pub window: usize,
    /// How far the two medians may differ, in thousandths of the earlier one.
    pub tolerance_permille: u64,
    /// The instance is checkpointed after this many calls in any case.
    pub most_calls: u64,
}

impl Default for WhenSettled {
    fn default() -> WhenSettled {
        WhenSettled { window: 4, tolerance_permille: 100, most_calls: 64 }
    }
}

impl WhenSettled {
    /// The medians of the last calls and of those before them, in microseconds.
    fn medians(&self, recent_us: &[u64]) -> Option<(u64, u64)> {
        let window = self.window.max(1);
        let before_last = recent_us.len().checked_sub(2 * window)?;
        let (before, last) = recent_us[before_last..].split_at(window);
        Some((median(before), median(last)))
    }
}

impl Policy<CheckpointFacts> for WhenSettled {
    fn decide(&self, facts: &CheckpointFacts) -> Decision<Timing> {
        let is_old = facts.calls >= self.most_calls;
        let (is_due, why) = match self.medians(&facts.recent_us) {
            _ if is_old => (true, format!("it has answered {} calls", facts.calls)),
            None => (false, format!("{} calls are too few to compare", facts.recent_us.len())),
            Some((before, last)) => {
                let apart = u128::from(before.abs_diff(last)) * 1000;
                let is_settled = apart <= u128::from(before) * u128::from(self.tolerance_permille);
                (is_settled, format!("its calls take {last} us, earlier ones took {before} us"))
            }
        };
        if is_due { facts.due(why) } else { Decision::new(Timing::NotYet, why) }
    }
}

/// The lower median.
fn median(figures: &[u64]) -> u64 {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::Timing::{NoRoom, NotYet, Now};
    use super::*;

    fn after(calls: u64, recent_us: &[u64]) -> CheckpointFacts {
        let pool = Memory { used_bytes: 50, budget_bytes: 100 };
        CheckpointFacts { calls, recent_us: recent_us.to_vec(), pool, image_bytes: 50 }
    }

    #[test]
    fn the_default_is_the_papers_sixteenth_call() {
        let policy = AfterCalls::default();
        assert_eq!(policy.decide(&after(15, &[])).choice, NotYet);
        assert_eq!(policy.decide(&after(16, &[])).choice, Now);
        assert_eq!(policy.decide(&after(1000, &[])).choice, Now);
    }

    #[test]
    fn an_image_without_room_waits() {
        let full = CheckpointFacts { image_bytes: 51, ..after(1000, &[5; 8]) };
        for policy in [&AfterCalls::default() as &dyn Policy<_>, &WhenSettled::default()] {
            let decision = policy.decide(&full);
            assert!(decision.choice == NoRoom && decision.why.contains("51"), "{decision:?}");
            let fitting = CheckpointFacts { image_bytes: 50, ..full.clone() };
            assert_eq!(policy.decide(&fitting).choice, Now);
        }
    }

    #[test]
    fn a_checkpoint_waits_until_compilers_have_settled() {
        let policy = WhenSettled::default();
        let warming = [900, 800, 700, 600, 300, 250, 200, 150];
        assert_eq!(policy.decide(&after(8, &warming)).choice, NotYet);
        let warm = [300, 250, 200, 150, 100, 101, 99, 100, 100, 98, 103, 100];
        assert_eq!(policy.decide(&after(12, &warm)).choice, Now);
        assert_eq!(policy.decide(&after(7, &[100; 7])).choice, NotYet, "too few");
        assert_eq!(policy.decide(&after(64, &warming)).choice, Now, "it never settles");
    }

    #[test]
    fn one_slow_call_does_not_delay_the_checkpoint() {
        let policy = WhenSettled::default();
        assert_eq!(
            policy.decide(&after(8, &[100, 100, 100, 100, 100, 9000, 100, 100])).choice,
            Now
        );
    }
}
