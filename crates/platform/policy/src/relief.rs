//! Which instances end when a node's memory runs out though none starts: busy instances have taken
//! more than was expected of them.

use serde::{Deserialize, Serialize};

use crate::admission::{Idle, LeastWorthFirst};
use crate::occupant::OccupantId;
use crate::{Decision, Facts, Memory, Policy, greedy};

/// Facts about a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReliefFacts {
    /// Its memory.
    pub memory: Memory,
    /// What may end on it: idle instances, and ghosts that wait.
    pub idle: Vec<Idle>,
    /// Bytes of instances and ghosts that are ending, as far as the kernel still counts them.
    #[serde(default)]
    pub leaving_bytes: u64,
}

impl Facts for ReliefFacts {
    /// The names of the instances and ghosts to end.
    type Choice = Vec<OccupantId>;
    const QUESTION: &'static str = "relief";
}

/// Bytes that are too much.
fn excess(policy: &LeastWorthFirst, facts: &ReliefFacts) -> u64 {
    let excess = facts.memory.excess_above(policy.most_memory_permille);
    excess.saturating_sub(facts.leaving_bytes)
}

impl Policy<ReliefFacts> for LeastWorthFirst {
    fn choose(&self, facts: &ReliefFacts) -> Vec<OccupantId> {
        // Asked all the time, about each node.
        match excess(self, facts) {
            0 => Vec::new(),
            _ => self.decide(facts).choice,
        }
    }

    fn decide(&self, facts: &ReliefFacts) -> Decision<Vec<OccupantId>> {
        let excess = excess(self, facts);
        if excess == 0 {
            return Decision::new(Vec::new(), "memory is free");
        }
        let idle = facts.idle.iter().map(Idle::candidate);
        let (ids, freed) = greedy::least_worth(idle, excess);
        let why = match freed >= excess {
            true => format!("{excess} bytes are too much, and these are worth least"),
            false => format!("{excess} bytes are too much, and {freed} are all that can go"),
        };
        Decision::new(ids, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_end_than_the_excess_needs_and_all_if_that_is_not_enough() {
        let idle = |id: &str, bytes, uses_per_hour| Idle {
            id: id.into(),
            bytes,
            saves_us: 1000,
            uses_per_hour,
        };
        let ended = |used_bytes, leaving_bytes| {
            let memory = Memory { used_bytes, budget_bytes: 1000 };
            let idle = vec![idle("a", 40, 9), idle("b", 40, 1), idle("c", 40, 5)];
            let decided =
                LeastWorthFirst::default().decide(&ReliefFacts { memory, idle, leaving_bytes });
            decided.choice.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(ended(950, 0), [""; 0]);
        assert_eq!(ended(951, 0), ["b"]);
        assert_eq!(ended(951, 1), [""; 0]);
        assert_eq!(ended(1000, 0), ["b", "c"]);
        assert_eq!(ended(1000, 10), ["b"]);
        assert_eq!(ended(2000, 0), ["b", "c", "a"]);
    }
}
