//! How many ghosts wait.
//!
//! A container takes tens to a hundred milliseconds to make, a clone a fraction of one (CXLfork,
//! figure 6), so containers are made before anybody needs them. An empty ghost serves all functions
//! of a user and costs next to nothing; one with a function's image attached serves that function
//! only, costs what a clone does, and saves most of what is left of a start.

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// What is known of a user's starts on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyFacts {
    /// Most starts that were seen within the time it takes to make a container, of late.
    pub burst: u64,
    /// What a ghost takes, in bytes.
    pub ghost_bytes: u64,
    /// Memory of the node.
    pub memory: Memory,
}

impl Facts for EmptyFacts {
    /// How many empty ghosts of the user should wait.
    type Choice = u64;
    const QUESTION: &'static str = "empty-ghosts";
}

/// What is known of a function's starts on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedFacts {
    /// Most starts that were seen within the time it takes to attach an image, of late.
    pub burst: u64,
    /// Its starts in the last hour.
    pub starts_per_hour: u64,
    /// What a start in an empty ghost takes longer than one in a ghost with the image, in
    /// microseconds.
    pub saved_us: u64,
    /// What a ghost with the image takes, in bytes.
    pub ghost_bytes: u64,
    /// Memory of the node.
    pub memory: Memory,
    /// Room of the pool.
    #[serde(default)]
    pub pool: Memory,
}

impl Facts for AttachedFacts {
    /// How many ghosts with the function's image should wait.
    type Choice = u64;
    const QUESTION: &'static str = "attached-ghosts";
}

/// As many as the last bursts would have used, while memory is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByBursts {
    /// Empty ghosts that wait beyond a burst, or without any.
    pub spare: u64,
    /// Most ghosts of a kind.
    pub most: u64,
    /// Share of memory from which none are made, in thousandths.
    pub high_memory_permille: u64,
    /// What an attached ghost has to save in an hour for each MiB that it takes, in microseconds of
    /// waiting. At the default it pays from about one start a minute.
    pub worth_us_per_mib_hour: u64,
}

impl Default for ByBursts {
    fn default() -> ByBursts {
        ByBursts { spare: 1, most: 32, high_memory_permille: 900, worth_us_per_mib_hour: 30_000 }
    }
}

impl ByBursts {
    /// At most so many as there is memory for.
    fn fit(&self, wanted: u64, each_bytes: u64, memory: Memory, why: String) -> Decision<u64> {
        let free = memory.free_below(self.high_memory_permille);
        let fitting = free.checked_div(each_bytes).unwrap_or(self.most).min(self.most);
        if wanted <= fitting {
            return Decision::new(wanted, why);
        }
        Decision::new(fitting, format!("{why}; {fitting} of {each_bytes} bytes fit"))
    }
}

impl Policy<EmptyFacts> for ByBursts {
    fn decide(&self, facts: &EmptyFacts) -> Decision<u64> {
        let wanted = facts.burst.saturating_add(self.spare);
        let why = format!("at most {} started at once", facts.burst);
        self.fit(wanted, facts.ghost_bytes, facts.memory, why)
    }
}

impl Policy<AttachedFacts> for ByBursts {
    fn decide(&self, facts: &AttachedFacts) -> Decision<u64> {
        let AttachedFacts { burst, starts_per_hour, saved_us, ghost_bytes, memory, pool } = *facts;
        let used = pool.used_permille();
        if used >= self.high_memory_permille {
            let why =
                format!("{used} ‰ of the pool are in use: a ghost would hold its image there");
            return Decision::new(0, why);
        }
        let saved = u128::from(starts_per_hour) * u128::from(saved_us);
        let price = (u128::from(ghost_bytes) * u128::from(self.worth_us_per_mib_hour)) >> 20;
        if saved < price {
            let why = format!("one would save {saved} us an hour and has to save {price}");
            return Decision::new(0, why);
        }
        let why = format!("at most {burst} started at once, {starts_per_hour} in an hour");
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
    fn the_next_burst_like_the_last_finds_its_ghosts() {
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
    fn none_hold_an_image_that_may_have_to_go() {
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
    fn a_function_pays_for_ghosts_of_its_own_by_its_starts() {
        assert_eq!(attached(0, 1 << 20), 0);
        assert_eq!(attached(59, 1 << 20), 0, "29.5 ms are saved, 30 ms is the price");
        assert_eq!(attached(60, 1 << 20), 3);
        assert_eq!(attached(60, 10 << 20), 0, "ten times the memory");
        assert_eq!(attached(600, 10 << 20), 3);
    }
}
