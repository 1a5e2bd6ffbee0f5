//! When a function is checkpointed.
//!
//! Not before it is warm: just-in-time compilers and lazy initialisation take a few calls to settle,
//! and what has not settled, every clone has to settle again. CXLfork checkpoints after the 16th
//! call (§5).

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// What is known of an instance that has just answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFacts {
    /// Calls that it has answered.
    pub calls: u64,
    /// How long the last ones took inside of it, in microseconds; the latest last.
    pub recent_us: Vec<u64>,
    /// Room of the pool.
    pub pool: Memory,
    /// What its image may take, in bytes.
    pub image_bytes: u64,
}

impl Facts for CheckpointFacts {
    type Choice = bool;
    const QUESTION: &'static str = "checkpoint";
}

impl CheckpointFacts {
    fn lack_of_room(&self) -> Option<String> {
        let free = self.pool.budget_bytes.saturating_sub(self.pool.used_bytes);
        (free < self.image_bytes).then(|| {
            format!("the pool has {free} bytes left, and its image takes {}", self.image_bytes)
        })
    }
}

/// After a number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    fn decide(&self, facts: &CheckpointFacts) -> Decision<bool> {
        if facts.calls < self.calls {
            return Decision::new(false, format!("{} calls of {}", facts.calls, self.calls));
        }
        match facts.lack_of_room() {
            Some(lack) => Decision::new(false, lack),
            None => Decision::new(true, format!("it has answered {} calls", facts.calls)),
        }
    }
}

/// When calls take as long as those before them, or after many calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhenSettled {
    /// Of so many calls the median is compared with that of as many before them.
    pub window: usize,
    /// By how much of the earlier median the two may differ, in thousandths.
    pub tolerance_permille: u64,
    /// After so many calls it is checkpointed all the same.
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
    fn decide(&self, facts: &CheckpointFacts) -> Decision<bool> {
        let is_old = facts.calls >= self.most_calls;
        let (is_due, why) = match self.medians(&facts.recent_us) {
            _ if is_old => (true, format!("it has answered {} calls", facts.calls)),
            None => (false, format!("{} calls are too few to compare", facts.recent_us.len())),
            Some((before, last)) => {
                let apart = u128::from(before.abs_diff(last)) * 1000;
                let is_settled = apart <= u128::from(before) * u128::from(self.tolerance_permille);
                (is_settled, format!("its calls take {last} us, those before took {before} us"))
            }
        };
        match facts.lack_of_room().filter(|_| is_due) {
            Some(lack) => Decision::new(false, lack),
            None => Decision::new(is_due, why),
        }
    }
}

/// The middle one, or the lower of two.
fn median(figures: &[u64]) -> u64 {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(calls: u64, recent_us: &[u64]) -> CheckpointFacts {
        let pool = Memory { used_bytes: 50, budget_bytes: 100 };
        CheckpointFacts { calls, recent_us: recent_us.to_vec(), pool, image_bytes: 50 }
    }

    #[test]
    fn the_sixteenth_call_is_the_papers() {
        let policy = AfterCalls::default();
        assert!(!policy.decide(&after(15, &[])).choice);
        assert!(policy.decide(&after(16, &[])).choice);
        assert!(policy.decide(&after(1000, &[])).choice);
    }

    #[test]
    fn what_has_no_room_waits() {
        let full = CheckpointFacts { image_bytes: 51, ..after(1000, &[5; 8]) };
        for policy in [&AfterCalls::default() as &dyn Policy<_>, &WhenSettled::default()] {
            let decision = policy.decide(&full);
            assert!(!decision.choice && decision.why.contains("51"), "{decision:?}");
            assert!(policy.decide(&CheckpointFacts { image_bytes: 50, ..full.clone() }).choice);
        }
    }

    #[test]
    fn a_compiler_at_work_is_waited_for() {
        let policy = WhenSettled::default();
        let warming = [900, 800, 700, 600, 300, 250, 200, 150];
        assert!(!policy.decide(&after(8, &warming)).choice);
        let warm = [300, 250, 200, 150, 100, 101, 99, 100, 100, 98, 103, 100];
        assert!(policy.decide(&after(12, &warm)).choice);
        assert!(!policy.decide(&after(7, &[100; 7])).choice, "too few");
        assert!(policy.decide(&after(64, &warming)).choice, "it never settles");
    }

    #[test]
    fn one_slow_call_among_equal_ones_is_none_of_the_function() {
        let policy = WhenSettled::default();
        assert!(policy.decide(&after(8, &[100, 100, 100, 100, 100, 9000, 100, 100])).choice);
    }
}
