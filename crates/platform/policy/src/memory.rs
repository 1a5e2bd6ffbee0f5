//! How full memory is.

use serde::{Deserialize, Serialize};

/// Memory of a node, or space of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that may be in use.
    pub budget_bytes: u64,
}

impl Memory {
    /// The share in use, in thousandths; above 1,000 if the budget is exceeded.
    pub fn used_permille(self) -> u64 {
        let share = u128::from(self.used_bytes) * 1000;
        u64::try_from(share / u128::from(self.budget_bytes.max(1))).unwrap_or(u64::MAX)
    }

    /// Bytes that can still be taken before a share of the budget is in use.
    pub fn free_below(self, mark_permille: u64) -> u64 {
        self.below(mark_permille).saturating_sub(self.used_bytes)
    }

    /// Bytes to free until no more than a share of the budget is in use.
    pub fn excess_above(self, mark_permille: u64) -> u64 {
        self.used_bytes.saturating_sub(self.below(mark_permille))
    }

    fn below(self, mark_permille: u64) -> u64 {
        let mark = u128::from(self.budget_bytes) * u128::from(mark_permille) / 1000;
        u64::try_from(mark).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_of_the_budget() {
        let memory = Memory { used_bytes: 90, budget_bytes: 100 };
        assert_eq!(memory.used_permille(), 900);
        assert_eq!((memory.free_below(950), memory.excess_above(950)), (5, 0));
        assert_eq!((memory.free_below(800), memory.excess_above(800)), (0, 10));
        assert_eq!(Memory::default().used_permille(), 0);
        assert_eq!(Memory { used_bytes: 1, budget_bytes: 0 }.used_permille(), 1000);
    }

    proptest! {
        #[test]
        fn free_and_excess_bytes_meet_at_the_mark(
            used_bytes: u64, budget_bytes: u64, mark in 0u64..=2000,
        ) {
            let memory = Memory { used_bytes, budget_bytes };
            let (free, excess) = (memory.free_below(mark), memory.excess_above(mark));
            prop_assert!(free == 0 || excess == 0);
            prop_assert_eq!(used_bytes - excess + free, memory.below(mark));
        }
    }
}
