//! How long an idle instance stays.
//!
//! Platforms keep idle instances for minutes to save the next cold start. A clone starts in the
//! time of a few page faults, so CXLfork keeps them long while memory is free, and for 10 s when it
//! is not (§5). The gaps between a function's calls are known, too, and a window longer than the
//! gaps only wastes memory: windows per function follow the histogram policy of Shahrad et al.
//! (Serverless in the Wild, ATC '20). That policy also starts instances ahead of calls. With clones
//! this saves less than a wrong prediction costs, so it is left out.

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// Facts about a function of which an instance has become idle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleFacts {
    /// Memory of the node.
    pub memory: Memory,
    /// Whether the next instance can be a clone.
    pub has_image: bool,
    /// The gaps between its calls.
    pub gaps: Gaps,
}

/// Gaps between the end of a call and the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps {
    /// Number of gaps.
    pub count: u64,
    /// Their P99, in milliseconds.
    pub p99_ms: u64,
}

impl Facts for IdleFacts {
    /// Milliseconds.
    type Choice = u64;
    const QUESTION: &'static str = "keep-alive";
}

/// A long window while memory is free, and a short one when it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByPressure {
    /// Window while memory is free, in milliseconds.
    pub long_ms: u64,
    /// Window when it is not, in milliseconds.
    pub short_ms: u64,
    /// Share of memory in use from which it counts as not free, in thousandths.
    pub high_memory_permille: u64,
}

impl Default for ByPressure {
    fn default() -> ByPressure {
        ByPressure { long_ms: 600_000, short_ms: 10_000, high_memory_permille: 900 }
    }
}

/// Why a window is as long as it is. In words only if they are read.
#[derive(Clone, Copy, Debug)]
enum Reason {
    /// This share of the node's memory is in use, in thousandths.
    Pressure(u64),
    MemoryIsFree,
    /// Only so many gaps are known.
    FewGaps(u64),
    /// The P99 of the gaps, in milliseconds.
    Gaps(u64),
    /// The same, and a clone is cheaper than a window that most gaps exceed.
    CloneIsQuick(u64),
    /// The same, without an image.
    NoImage(u64),
}

impl Reason {
    fn words(self) -> String {
        let gaps = |p99_ms: u64| format!("the P99 of gaps between calls is {p99_ms} ms");
        match self {
            Reason::Pressure(used) => format!("{used} ‰ of the node's memory are in use"),
            Reason::MemoryIsFree => "memory is free".to_owned(),
            Reason::FewGaps(count) => format!("only {count} gaps between calls are known"),
            Reason::Gaps(p99_ms) => gaps(p99_ms),
            Reason::CloneIsQuick(p99_ms) => {
                format!("{}; a new clone starts quickly", gaps(p99_ms))
            }
            Reason::NoImage(p99_ms) => format!("{}; it has no image", gaps(p99_ms)),
        }
    }
}

impl ByPressure {
    fn pressure(&self, memory: Memory) -> Option<(u64, Reason)> {
        let used = memory.used_permille();
        (used >= self.high_memory_permille).then_some((self.short_ms, Reason::Pressure(used)))
    }

    fn window(&self, facts: &IdleFacts) -> (u64, Reason) {
        self.pressure(facts.memory).unwrap_or((self.long_ms, Reason::MemoryIsFree))
    }
}

impl Policy<IdleFacts> for ByPressure {
    fn decide(&self, facts: &IdleFacts) -> Decision<u64> {
        let (window_ms, reason) = self.window(facts);
        Decision::new(window_ms, reason.words())
    }

    fn choose(&self, facts: &IdleFacts) -> u64 {
        self.window(facts).0
    }
}

/// A window as long as the gaps between a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByGaps {
    /// The policy while few gaps are known, and under memory pressure.
    pub otherwise: ByPressure,
    /// Gaps that must be known.
    pub least_gaps: u64,
    /// How much longer than the gaps a window is, in thousandths.
    pub margin_permille: u64,
}

impl Default for ByGaps {
    fn default() -> ByGaps {
        ByGaps { otherwise: ByPressure::default(), least_gaps: 16, margin_permille: 100 }
    }
}

impl ByGaps {
    fn window(&self, facts: &IdleFacts) -> (u64, Reason) {
        if let Some(short) = self.otherwise.pressure(facts.memory) {
            return short;
        }
        let ByPressure { long_ms, short_ms, .. } = self.otherwise;
        let Gaps { count, p99_ms } = facts.gaps;
        if count < self.least_gaps {
            return (long_ms, Reason::FewGaps(count));
        }
        let window = u128::from(p99_ms) * u128::from(1000 + self.margin_permille) / 1000;
        let window = u64::try_from(window).unwrap_or(u64::MAX).max(short_ms);
        match window {
            _ if window <= long_ms => (window, Reason::Gaps(p99_ms)),
            // Most windows would end before the next call.
            _ if facts.has_image => (short_ms, Reason::CloneIsQuick(p99_ms)),
            _ => (long_ms, Reason::NoImage(p99_ms)),
        }
    }
}

impl Policy<IdleFacts> for ByGaps {
    fn decide(&self, facts: &IdleFacts) -> Decision<u64> {
        let (window_ms, reason) = self.window(facts);
        Decision::new(window_ms, reason.words())
    }

    fn choose(&self, facts: &IdleFacts) -> u64 {
        self.window(facts).0
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
        assert_eq!(kept(&facts(0, 16, 3_600_000)), 10_000, "an hour is too long to wait");
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
