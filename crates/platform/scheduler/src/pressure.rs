//! What ends when memory is short: idle instances and ghosts of a node, and images of the pool.

use std::fmt::Display;

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;
use farfork_policy::reclaim::{ImageFacts, ReclaimFacts};
use farfork_policy::relief::ReliefFacts;

use crate::advice::Advice;
use crate::fleet::Occupancy;

/// Decides what on a node ends because busy instances have come to need its memory. What is on it is looked
/// at only if something would have to end.
pub fn relief(
    memory: Memory,
    occupancy: impl FnOnce() -> Occupancy,
    about: &dyn Display,
    advice: &impl Advice,
) -> Vec<OccupantId> {
    // A cheap check with one fictitious instance.
    let bytes = memory.used_bytes.max(1);
    let all = Idle { id: OccupantId::instance(0), bytes, saves_us: 0, uses_per_hour: 0 };
    let facts = ReliefFacts { memory, idle: vec![all], leaving_bytes: 0 };
    if advice.decide_if(about, &facts, |_| false).is_empty() {
        return Vec::new();
    }
    let Occupancy { idle, leaving_bytes, .. } = occupancy();
    let facts = ReliefFacts { memory, idle, leaving_bytes };
    // A decision to evict nothing is not recorded.
    advice.decide_if(about, &facts, |ids| !ids.is_empty())
}

/// Decides which images go when the pool has no room for others.
#[derive(Clone, Debug, Default)]
pub struct Reclaim {
    /// The facts of the last decision, if it was to keep all.
    kept_all: Option<ReclaimFacts>,
}

impl Reclaim {
    /// Whether an image may have to go: all are to be listed then.
    pub fn is_due(&self, pool: Memory, wanted_bytes: u64, advice: &impl Advice) -> bool {
        // A cheap check with one fictitious image.
        let all = ImageFacts { bytes: pool.used_bytes, ..ImageFacts::default() };
        let facts = ReclaimFacts { pool, wanted_bytes, images: vec![all] };
        !advice.decide_if(&"pool", &facts, |_| false).is_empty()
    }

    /// Decides which of these images go. Not decided again while the facts are those of the last decision to
    /// keep all.
    pub fn chosen(
        &mut self,
        pool: Memory,
        wanted_bytes: u64,
        images: Vec<ImageFacts>,
        advice: &impl Advice,
    ) -> Vec<String> {
        let facts = ReclaimFacts { pool, wanted_bytes, images };
        // Without anything to decide, no decision is recorded.
        if facts.images.is_empty() || self.kept_all.as_ref() == Some(&facts) {
            return Vec::new();
        }
        let chosen = advice.decide(&"pool", &facts);
        self.kept_all = chosen.is_empty().then_some(facts);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::ByDefault;

    const FULL: Memory = Memory { used_bytes: 990, budget_bytes: 1000 };

    #[test]
    fn a_node_is_looked_at_only_if_something_has_to_end() {
        let idle =
            |bytes| Idle { id: OccupantId::instance(7), bytes, saves_us: 1, uses_per_hour: 1 };
        let on = |bytes, leaving_bytes| Occupancy {
            idle: vec![idle(bytes)],
            leaving_bytes,
            ..Occupancy::default()
        };
        let ended = |memory, seen: Occupancy| relief(memory, || seen, &"n", &ByDefault::new());
        assert_eq!(ended(FULL, on(50, 0)), [OccupantId::instance(7)]);
        assert_eq!(ended(FULL, on(50, 40)), [], "enough is leaving");
        let unseen = || -> Occupancy { panic!("it was looked at") };
        let half = Memory { used_bytes: 500, ..FULL };
        assert_eq!(relief(half, unseen, &"n", &ByDefault::new()), []);
    }

    #[test]
    fn a_decision_to_keep_all_images_is_made_once() {
        let (mut reclaim, advice) = (Reclaim::default(), ByDefault::new());
        let image =
            |nodes| ImageFacts { name: "a".to_owned(), bytes: 300, nodes, ..ImageFacts::default() };
        assert!(reclaim.is_due(FULL, 0, &advice));
        assert!(!reclaim.is_due(Memory { used_bytes: 500, ..FULL }, 0, &advice));
        assert!(reclaim.chosen(FULL, 0, vec![image(1)], &advice).is_empty());
        assert!(reclaim.kept_all.is_some());
        assert_eq!(reclaim.chosen(FULL, 0, vec![image(0)], &advice), ["a"]);
        assert!(reclaim.kept_all.is_none());
    }
}
