//! How long an instance stays when it has nothing to do.
//!
//! Platforms keep idle instances for minutes to save the next cold start. A clone starts in the time
//! of a few page faults, so CXLfork keeps them long while memory is free, and for 10 s when it is
//! not (§5). How long the gaps between a function's calls are is known, too, and a window that
//! is longer than them keeps memory for nothing: per-function windows follow the histogram policy of
//! Shahrad et al. (Serverless in the Wild, ATC '20), but without their second half: to start an
//! instance ahead of a call saves what a clone takes, which is less than one guesses wrong by.

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// What is known of a function, an instance of which has become idle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleFacts {
    /// Memory of the node.
    pub memory: Memory,
    /// Whether the next instance could be a clone.
    pub has_image: bool,
    /// The gaps between its calls.
    pub gaps: Gaps,
}

/// Gaps between the end of a call and the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps {
    /// How many were seen.
    pub count: u64,
    /// 99 of 100 were no longer, in milliseconds.
    pub p99_ms: u64,
}

impl Facts for IdleFacts {
    /// Milliseconds.
    type Choice = u64;
    const QUESTION: &'static str = "keep-alive";
}

/// As long as memory is free, and short when it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByPressure {
    /// Window while memory is free, in milliseconds.
    pub long_ms: u64,
    /// Window when it is not, in milliseconds.
    pub short_ms: u64,
    /// Share of memory from which it is not, in thousandths.
    pub high_memory_permille: u64,
}

impl Default for ByPressure {
    fn default() -> ByPressure {
        ByPressure { long_ms: 600_000, short_ms: 10_000, high_memory_permille: 900 }
    }
}

impl ByPressure {
    fn pressure(&self, memory: Memory) -> Option<Decision<u64>> {
        let used = memory.used_permille();
        (used >= self.high_memory_permille).then(|| {
            Decision::new(self.short_ms, format!("{used} ‰ of the node's memory are in use"))
        })
    }
}

impl Policy<IdleFacts> for ByPressure {
    fn decide(&self, facts: &IdleFacts) -> Decision<u64> {
        self.pressure(facts.memory).unwrap_or_else(|| Decision::new(self.long_ms, "memory is free"))
    }
}

/// As long as the gaps between a function's calls are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByGaps {
    /// What holds while little is known, and under pressure.
    pub otherwise: ByPressure,
    /// Gaps that have to be known.
    pub least_gaps: u64,
    /// By how much a window is longer than the gaps, in thousandths.
    pub margin_permille: u64,
}

impl Default for ByGaps {
    fn default() -> ByGaps {
        ByGaps { otherwise: ByPressure::default(), least_gaps: 16, margin_permille: 100 }
    }
}

impl Policy<IdleFacts> for ByGaps {
    fn decide(&self, facts: &IdleFacts) -> Decision<u64> {
        if let Some(short) = self.otherwise.pressure(facts.memory) {
            return short;
        }
        let ByPressure { long_ms, short_ms, .. } = self.otherwise;
        let Gaps { count, p99_ms } = facts.gaps;
        if count < self.least_gaps {
            return Decision::new(long_ms, format!("{count} gaps between calls tell little"));
        }
        let window = u128::from(p99_ms) * u128::from(1000 + self.margin_permille) / 1000;
        let window = u64::try_from(window).unwrap_or(u64::MAX).max(short_ms);
        let gaps = format!("99 of 100 gaps between calls are no longer than {p99_ms} ms");
        match window {
            _ if window <= long_ms => Decision::new(window, gaps),
            // It would be waited for in vain most of the time.
            _ if facts.has_image => {
                Decision::new(short_ms, format!("{gaps}; a clone is made soon"))
            }
            _ => Decision::new(long_ms, format!("{gaps}; it has no image")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(used_bytes: u64, count: u64, p99_ms: u64) -> IdleFacts {
        let memory = Memory { used_bytes, budget_bytes: 100 };
        IdleFacts { memory, has_image: true, gaps: Gaps { count, p99_ms } }
    }

    #[test]
    fn windows_are_ten_seconds_under_pressure() {
        for policy in [&ByPressure::default() as &dyn Policy<_>, &ByGaps::default()] {
            assert_eq!(policy.decide(&facts(90, 100, 60_000)).choice, 10_000);
            assert!(policy.decide(&facts(89, 100, 60_000)).choice > 10_000);
        }
    }

    #[test]
    fn a_window_outlasts_the_gaps_of_its_function() {
        let kept = |facts: &IdleFacts| ByGaps::default().decide(facts).choice;
        assert_eq!(kept(&facts(0, 16, 60_000)), 66_000);
        assert_eq!(kept(&facts(0, 15, 60_000)), 600_000, "too little is known");
        assert_eq!(kept(&facts(0, 16, 100)), 10_000, "never less than the short one");
        assert_eq!(kept(&facts(0, 16, 3_600_000)), 10_000, "an hour is not waited for");
        let without = IdleFacts { has_image: false, ..facts(0, 16, 3_600_000) };
        assert_eq!(kept(&without), 600_000, "its next start is a cold one");
    }

    proptest! {
        #[test]
        fn a_window_is_never_out_of_bounds(used in 0u64..200, count: u64, p99_ms: u64, has_image: bool) {
            let facts = IdleFacts { has_image, ..facts(used, count, p99_ms) };
            let kept = ByGaps::default().decide(&facts).choice;
            prop_assert!((10_000..=600_000).contains(&kept));
        }
    }
}
