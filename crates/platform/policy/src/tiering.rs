//! In which tier the memory of a function's next instances lives (CXLfork §5).
//!
//! Each function begins with migrate on write, which shares most. Reads from the pool have the
//! pool's latency, so a function that comes near its objective gets local copies of its hot pages
//! (hybrid): as long as memory is free, and as long as making copies does not use up the pool's
//! bandwidth.

use farfork_types::Tiering;
use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// Facts about a function of which an instance is about to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TieringFacts {
    /// The tiering policy of its last instances.
    pub current: Tiering,
    /// Its recent latency.
    pub latency: Latency,
    /// The objective that its owner has declared.
    pub objective: Objective,
    /// Memory of the node.
    pub memory: Memory,
    /// Share of the pool's bandwidth in use, in thousandths, if measured.
    pub pool_busy_permille: Option<u64>,
}

/// Latency of recent calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of calls.
    pub calls: u64,
    /// Their mean, in microseconds.
    pub mean_us: u64,
    /// Their P99, in microseconds.
    pub p99_us: u64,
}

/// A service-level objective; `None` where nothing is declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objective {
    /// Mean latency, in microseconds.
    pub mean_us: Option<u64>,
    /// P99 of latency, in microseconds.
    pub p99_us: Option<u64>,
}

impl Facts for TieringFacts {
    type Choice = Tiering;
    const QUESTION: &'static str = "tiering";
}

/// Always the same tiering policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Always {
    /// The tiering policy.
    pub tiering: Tiering,
}

impl Policy<TieringFacts> for Always {
    fn decide(&self, _facts: &TieringFacts) -> Decision<Tiering> {
        Decision::new(self.tiering, "fixed by the settings")
    }
}

/// Hybrid for functions that come near their objectives, else migrate on write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByObjective {
    /// Share of an objective from which latency is near it, in thousandths.
    pub near_permille: u64,
    /// Share of memory from which no function gets local copies (the paper's high-memory mark).
    pub high_memory_permille: u64,
    /// Share of the pool's bandwidth from which no function gets local copies.
    pub pool_busy_permille: u64,
    /// How far below those marks functions begin to get local copies, so that they do not flap.
    pub slack_permille: u64,
    /// Calls whose latency must be known.
    pub least_calls: u64,
}

impl Default for ByObjective {
    fn default() -> ByObjective {
        ByObjective {
            near_permille: 900,
            high_memory_permille: 900,
            pool_busy_permille: 800,
            slack_permille: 50,
            least_calls: 32,
        }
    }
}

impl ByObjective {
    /// Why no function may get local copies, with marks lowered by `slack`.
    fn obstacle(&self, facts: &TieringFacts, slack: u64) -> Option<String> {
        let used = facts.memory.used_permille();
        let high = self.high_memory_permille.saturating_sub(slack);
        if used >= high {
            return Some(format!("{used} ‰ of the node's memory are in use, the mark is {high} ‰"));
        }
        let busy = facts.pool_busy_permille?;
        let mark = self.pool_busy_permille.saturating_sub(slack);
        (busy >= mark)
            .then(|| format!("{busy} ‰ of the pool's bandwidth are in use, the mark is {mark} ‰"))
    }

    /// The objective that latency is near, in words.
    fn near(&self, facts: &TieringFacts) -> Option<String> {
        let Latency { calls, mean_us, p99_us } = facts.latency;
        let near = |name: &str, seen_us: u64, objective_us: Option<u64>| {
            let objective_us = objective_us?;
            let is_near = u128::from(seen_us) * 1000
                >= u128::from(objective_us) * u128::from(self.near_permille);
            is_near.then(|| {
                format!("{name} of {calls} calls is {seen_us} us, the objective {objective_us} us")
            })
        };
        if calls < self.least_calls {
            return None;
        }
        near("P99", p99_us, facts.objective.p99_us)
            .or_else(|| near("mean", mean_us, facts.objective.mean_us))
    }
}

impl Policy<TieringFacts> for ByObjective {
    fn decide(&self, facts: &TieringFacts) -> Decision<Tiering> {
        let is_hybrid = facts.current == Tiering::Hybrid;
        let slack = if is_hybrid { 0 } else { self.slack_permille };
        match (self.obstacle(facts, slack), self.near(facts)) {
            (Some(obstacle), _) if is_hybrid => Decision::new(Tiering::Mow, obstacle),
            (None, _) if is_hybrid => Decision::new(Tiering::Hybrid, "it keeps its local copies"),
            (Some(obstacle), Some(near)) => {
                Decision::new(Tiering::Mow, format!("{near}, but {obstacle}"))
            }
            (None, Some(near)) => Decision::new(Tiering::Hybrid, near),
            (_, None) => Decision::new(Tiering::Mow, "its latency is not near an objective"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> TieringFacts {
        TieringFacts {
            current: Tiering::Mow,
            latency: Latency { calls: 100, mean_us: 2_000, p99_us: 9_500 },
            objective: Objective { mean_us: None, p99_us: Some(10_000) },
            memory: Memory { used_bytes: 50, budget_bytes: 100 },
            pool_busy_permille: None,
        }
    }

    fn chosen(facts: &TieringFacts) -> Tiering {
        ByObjective::default().decide(facts).choice
    }

    #[test]
    fn a_function_near_its_objective_gets_local_copies() {
        let near = facts();
        assert_eq!(chosen(&near), Tiering::Hybrid);
        let why = ByObjective::default().decide(&near).why;
        assert!(why.contains("9500 us") && why.contains("10000 us"), "{why}");
        let far = TieringFacts {
            objective: Objective { p99_us: Some(20_000), mean_us: None },
            ..facts()
        };
        assert_eq!(chosen(&far), Tiering::Mow);
        let by_mean =
            TieringFacts { objective: Objective { p99_us: None, mean_us: Some(2_100) }, ..facts() };
        assert_eq!(chosen(&by_mean), Tiering::Hybrid);
        let undeclared = TieringFacts { objective: Objective::default(), ..facts() };
        assert_eq!(chosen(&undeclared), Tiering::Mow);
    }

    #[test]
    fn too_few_calls_do_not_promote() {
        let latency = Latency { calls: 31, ..facts().latency };
        assert_eq!(chosen(&TieringFacts { latency, ..facts() }), Tiering::Mow);
    }

    #[test]
    fn no_function_is_promoted_above_the_high_memory_mark() {
        for (used_bytes, expected) in
            [(84, Tiering::Hybrid), (85, Tiering::Mow), (99, Tiering::Mow), (200, Tiering::Mow)]
        {
            let memory = Memory { used_bytes, budget_bytes: 100 };
            assert_eq!(chosen(&TieringFacts { memory, ..facts() }), expected, "{used_bytes}");
        }
    }

    #[test]
    fn a_promoted_function_stays_promoted_until_a_mark_is_reached() {
        let hybrid = TieringFacts { current: Tiering::Hybrid, ..facts() };
        let calm = Latency { p99_us: 10, mean_us: 10, ..hybrid.latency };
        assert_eq!(chosen(&TieringFacts { latency: calm, ..hybrid.clone() }), Tiering::Hybrid);
        for (used_bytes, busy, expected) in [
            (89, 0, Tiering::Hybrid),
            (90, 0, Tiering::Mow),
            (10, 799, Tiering::Hybrid),
            (10, 800, Tiering::Mow),
        ] {
            let facts = TieringFacts {
                memory: Memory { used_bytes, budget_bytes: 100 },
                pool_busy_permille: Some(busy),
                ..hybrid.clone()
            };
            assert_eq!(chosen(&facts), expected, "{used_bytes} {busy}");
        }
    }

    #[test]
    fn no_function_is_promoted_while_the_pool_is_busy() {
        for (busy, expected) in [(749, Tiering::Hybrid), (750, Tiering::Mow)] {
            let facts = TieringFacts { pool_busy_permille: Some(busy), ..facts() };
            assert_eq!(chosen(&facts), expected, "{busy}");
        }
    }
}
