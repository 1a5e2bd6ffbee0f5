//! How many ghosts wait.
//!
//! Making a container takes tens to a hundred milliseconds, a clone a fraction of one (CXLfork,
//! figure 6), so containers are made in advance. An empty ghost serves all functions of a user and
//! costs next to nothing. A ghost with an image attached serves one function only, costs what a
//! clone does, and saves most of the rest of a start.

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// Facts about starts in empty ghosts on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyFacts {
    /// The largest recent burst: starts within the time that making a container takes.
    pub burst: u64,
    /// Bytes that a ghost takes.
    pub ghost_bytes: u64,
    /// Memory of the node.
    pub memory: Memory,
}

impl Facts for EmptyFacts {
    /// How many empty ghosts should wait.
    type Choice = u64;
    const QUESTION: &'static str = "empty-ghosts";
}

/// Facts about a function's starts on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedFacts {
    /// The largest recent burst: starts within the time that attaching an image takes.
    pub burst: u64,
    /// Its starts in the last hour.
    pub starts_per_hour: u64,
    /// Microseconds that a start takes longer in an empty ghost than in one with the image.
    pub saved_us: u64,
    /// Bytes that a ghost with the image takes.
    pub ghost_bytes: u64,
    /// Memory of the node.
    pub memory: Memory,
    /// The pool's use and size.
    #[serde(default)]
    pub pool: Memory,
}

impl Facts for AttachedFacts {
    /// How many ghosts with the function's image should wait.
    type Choice = u64;
    const QUESTION: &'static str = "attached-ghosts";
}

/// As many as the largest recent burst, while memory is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByBursts {
    /// Empty ghosts beyond the burst.
    pub spare: u64,
    /// Most ghosts of one kind.
    pub most: u64,
    /// Share of memory in use from which none are made, in thousandths.
    pub high_memory_permille: u64,
    /// Microseconds of waiting that an attached ghost must save per hour and MiB. At the default it
    /// pays from about one start per minute.
    pub worth_us_per_mib_hour: u64,
}

impl Default for ByBursts {
    fn default() -> ByBursts {
        ByBursts { spare: 1, most: 32, high_memory_permille: 900, worth_us_per_mib_hour: 30_000 }
    }
}

impl ByBursts {
    /// At most as many as memory allows.
    fn fit(&self, wanted: u64, each_bytes: u64, memory: Memory, why: String) -> Decision<u64> {
        let free = memory.free_below(self.high_memory_permille);
        let fitting = free.checked_div(each_bytes).unwrap_or(self.most).min(self.most);
        if wanted <= fitting {
            return Decision::new(wanted, why);
        }
        Decision::new(
            fitting,
            format!("{why}; memory is free for {fitting} of {each_bytes} bytes each"),
        )
    }
}

impl Policy<EmptyFacts> for ByBursts {
    fn decide(&self, facts: &EmptyFacts) -> Decision<u64> {
        let wanted = facts.burst.saturating_add(self.spare);
        let why = format!("the largest burst was {} starts", facts.burst);
        self.fit(wanted, facts.ghost_bytes, facts.memory, why)
    }
}

impl Policy<AttachedFacts> for ByBursts {
    fn decide(&self, facts: &AttachedFacts) -> Decision<u64> {
        let AttachedFacts { burst, starts_per_hour, saved_us, ghost_bytes, memory, pool } = *facts;
        let used = pool.used_permille();
        if used >= self.high_memory_permille {
            let why = format!("{used} ‰ of the pool are in use: a ghost would pin its image there");
            return Decision::new(0, why);
        }
        let saved = u128::from(starts_per_hour) * u128::from(saved_us);
        let price = (u128::from(ghost_bytes) * u128::from(self.worth_us_per_mib_hour)) >> 20;
        if saved < price {
            let why = format!("one would save {saved} us per hour and must save {price} us");
            return Decision::new(0, why);
        }
        let why =
            format!("the largest burst was {burst} starts, {starts_per_hour} in the last hour");
        self.fit(burst, ghost_bytes, memory, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Memory = Memory { used_bytes: 0, budget_bytes: 1 << 30 };

    fn empty(burst: u64, memory: Memory) -> u64 {
        let facts = EmptyFacts { burst, ghost_bytes: 512 << 10, memory };
        ByBursts::default().decide(&facts).choice
    }

    #[test]
    fn as_many_wait_as_the_last_burst_used() {
        assert_eq!([0, 1, 7].map(|burst| empty(burst, FREE)), [1, 2, 8]);
        assert_eq!(empty(u64::MAX, FREE), 32);
    }

    #[test]
    fn none_are_made_above_the_mark() {
        let memory = |used_bytes| Memory { used_bytes, budget_bytes: 10 << 20 };
        assert_eq!(empty(7, memory(9 << 20)), 0);
        assert_eq!(empty(7, memory((9 << 20) - (1 << 20))), 2, "two fit below it");
    }

    fn attached(starts_per_hour: u64, ghost_bytes: u64) -> u64 {
        let (memory, pool) = (FREE, FREE);
        let facts =
            AttachedFacts { burst: 3, starts_per_hour, saved_us: 500, ghost_bytes, memory, pool };
        ByBursts::default().decide(&facts).choice
    }

    #[test]
    fn none_wait_while_the_pool_is_nearly_full() {
        let chosen = |used_bytes: u64| {
            let pool = Memory { used_bytes, budget_bytes: 1000 };
            let (memory, ghost_bytes) = (FREE, 1 << 20);
            let starts_per_hour = 600;
            let facts = AttachedFacts {
                burst: 3,
                starts_per_hour,
                saved_us: 500,
                ghost_bytes,
                memory,
                pool,
            };
            ByBursts::default().decide(&facts).choice
        };
        assert_eq!([899, 900].map(chosen), [3, 0]);
    }

    #[test]
    fn attached_ghosts_must_save_enough_for_their_memory() {
        assert_eq!(attached(0, 1 << 20), 0);
        assert_eq!(attached(59, 1 << 20), 0, "29.5 ms are saved, 30 ms is the price");
        assert_eq!(attached(60, 1 << 20), 3);
        assert_eq!(attached(60, 10 << 20), 0, "ten times the memory");
        assert_eq!(attached(600, 10 << 20), 3);
    }
}
