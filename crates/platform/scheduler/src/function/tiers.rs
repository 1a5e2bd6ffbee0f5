//! In which tier a function's memory lives, and how much of it was seen.

use std::fmt::Display;

use farfork_policy::observed::RecentLatency;
use farfork_policy::tiering::{Objective, TieringFacts};
use farfork_types::Tiering;

use super::NodeLoad;
use crate::advice::Advice;
use crate::claim::{Claim, Usage};

/// The tiering policy of a function's instances.
#[derive(Clone, Debug, Default)]
pub struct Tiers {
    tiering: Tiering,
    latency: RecentLatency,
    /// What the function's owner has declared.
    pub objective: Objective,
}

impl Tiers {
    /// Of a function with this objective.
    pub fn new(objective: Objective) -> Tiers {
        Tiers { objective, ..Tiers::default() }
    }

    /// The tiering policy of its last instance.
    pub fn tiering(&self) -> Tiering {
        self.tiering
    }

    /// A call took so long inside its instance.
    pub fn answered(&mut self, run_us: u64) {
        self.latency.add(run_us);
    }

    /// Decides the tiering policy of an instance that starts on a node.
    pub fn of_start(
        &mut self,
        node: Option<NodeLoad>,
        about: &dyn Display,
        advice: &impl Advice,
    ) -> Tiering {
        if let Some(node) = node {
            self.tiering = self.decide(node, about, advice);
        }
        self.tiering
    }

    /// Decides whether an idle instance that reads from the pool gets its pages promoted, because a new
    /// instance would start with local copies: a function near its objective need not wait until one has
    /// to start.
    pub fn promotes(
        &mut self,
        node: NodeLoad,
        calls: u64,
        reads_from_pool: bool,
        about: &dyn Display,
        advice: &impl Advice,
    ) -> bool {
        let may_change = self.tiering != Tiering::Mow || self.objective != Objective::default();
        // An instance without calls has touched nothing. Without anything to decide, no decision is
        // recorded.
        if !may_change || calls == 0 || !reads_from_pool {
            return false;
        }
        // Without `hybrid` here, the function's policy stays: other nodes may have room.
        if self.decide(node, about, advice) != Tiering::Hybrid {
            return false;
        }
        self.tiering = Tiering::Hybrid;
        true
    }

    fn decide(&self, node: NodeLoad, about: &dyn Display, advice: &impl Advice) -> Tiering {
        let facts = TieringFacts {
            current: self.tiering,
            latency: self.latency.latency(),
            objective: self.objective,
            memory: node.memory,
            pool_busy_permille: node.pool_busy_permille,
        };
        advice.decide(about, &facts)
    }
}

/// The most memory that a function's instances were seen to take.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeenMemory {
    /// Local memory of an instance, in bytes.
    pub local_bytes: Option<u64>,
    /// Local memory of a clone under this tiering policy, in bytes.
    clone_bytes: Option<(Tiering, u64)>,
    /// Memory of an instance with the pages that it shares, in bytes.
    whole_bytes: Option<u64>,
}

/// An instance's memory, until one was measured.
const GUESSED_BYTES: u64 = 16 << 20;

impl SeenMemory {
    /// Notes the memory of an instance: a clone under this tiering policy, or none.
    pub fn measured(&mut self, usage: Usage, tiering: Option<Tiering>) {
        let Usage { local_bytes, pool_bytes } = usage;
        self.local_bytes = self.local_bytes.max(Some(local_bytes));
        self.needs(local_bytes + pool_bytes);
        let Some(tiering) = tiering else { return };
        let before = self.clone_bytes.filter(|(known, _)| *known == tiering);
        let most = before.map_or(local_bytes, |(_, before)| before.max(local_bytes));
        self.clone_bytes = Some((tiering, most));
    }

    /// An image needs so many bytes.
    pub fn needs(&mut self, bytes: u64) {
        self.whole_bytes = self.whole_bytes.max(Some(bytes));
    }

    /// Bytes that an image may take.
    pub fn image_bytes(&self) -> u64 {
        self.whole_bytes.unwrap_or(GUESSED_BYTES)
    }

    /// Another image is made: its clones are others.
    pub fn forget_clones(&mut self) {
        self.clone_bytes = None;
    }

    /// What an instance with this limit may take. Clones are expected to take as much as earlier clones.
    pub fn claim(&self, memory_mb: u64, has_image: bool, tiering: Tiering) -> Claim {
        let seen = self.clone_bytes.filter(|(known, _)| has_image && *known == tiering);
        Claim { memory_mb, expected_bytes: seen.map(|(_, bytes)| bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_expected_to_take_as_much_as_the_largest_before() {
        let mut seen = SeenMemory::default();
        assert_eq!(seen.image_bytes(), GUESSED_BYTES);
        let usage = |local_bytes| Usage { local_bytes, pool_bytes: 7 };
        seen.measured(usage(30), None);
        seen.measured(usage(20), Some(Tiering::Mow));
        seen.measured(usage(10), Some(Tiering::Mow));
        assert_eq!((seen.local_bytes, seen.image_bytes()), (Some(30), 37));
        let expected = |seen: &SeenMemory, tiering| seen.claim(1, true, tiering).expected_bytes;
        assert_eq!(expected(&seen, Tiering::Mow), Some(20));
        assert_eq!(seen.claim(1, false, Tiering::Mow).expected_bytes, None);
        seen.measured(usage(5), Some(Tiering::Hybrid));
        assert_eq!(expected(&seen, Tiering::Mow), None);
        assert_eq!(expected(&seen, Tiering::Hybrid), Some(5));
        seen.forget_clones();
        assert_eq!(expected(&seen, Tiering::Hybrid), None);
    }
}
