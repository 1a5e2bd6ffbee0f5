//! Which images go when the pool is full (CXLfork §5: the autoscaler reclaims checkpoints under
//! pressure).

use serde::{Deserialize, Serialize};

use crate::greedy::{self, Candidate};
use crate::{Decision, Facts, Memory, Policy};

/// What is known of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimFacts {
    /// Its room.
    pub pool: Memory,
    /// What an image may take that was not made for lack of room, in bytes; 0 without one.
    pub wanted_bytes: u64,
    /// The images in it that may go.
    pub images: Vec<ImageFacts>,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// Its name.
    pub name: String,
    /// Bytes of the pool that it takes.
    pub bytes: u64,
    /// Nodes on which clones of it live: its bytes would not be free before those end.
    pub nodes: u64,
    /// Starts of clones of it in the last hour.
    pub starts_per_hour: u64,
    /// What a start without it takes longer, in microseconds.
    pub saved_us: u64,
}

impl Facts for ReclaimFacts {
    /// Names of the images to remove.
    type Choice = Vec<String>;
    const QUESTION: &'static str = "reclaim";
}

/// From a mark on, the images that save least for their size go, until a lower mark is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BetweenMarks {
    /// Share of the pool from which images go, in thousandths.
    pub high_permille: u64,
    /// Share of the pool down to which they go, in thousandths.
    pub low_permille: u64,
}

impl Default for BetweenMarks {
    fn default() -> BetweenMarks {
        BetweenMarks { high_permille: 900, low_permille: 800 }
    }
}

impl ImageFacts {
    fn candidate(&self) -> Candidate<'_> {
        let (uses_per_hour, saves_us) = (self.starts_per_hour, self.saved_us);
        Candidate { name: &self.name, bytes: self.bytes, uses_per_hour, saves_us }
    }
}

impl Policy<ReclaimFacts> for BetweenMarks {
    fn decide(&self, facts: &ReclaimFacts) -> Decision<Vec<String>> {
        let used = facts.pool.used_permille();
        let is_high = used >= self.high_permille;
        let excess = if is_high { facts.pool.excess_above(self.low_permille) } else { 0 };
        let lacking = facts.wanted_bytes.saturating_sub(facts.pool.free_below(1000));
        let go = |wanted| {
            let loose = facts.images.iter().filter(|image| image.nodes == 0);
            greedy::least_worth(loose.map(ImageFacts::candidate), wanted)
        };
        let state = format!("{used} ‰ of the pool are in use, {lacking} bytes are lacking");
        // Room that would not suffice is not made for anybody.
        let (names, freed) = match go(lacking.max(excess)) {
            (_, freed) if freed < lacking => go(excess),
            enough => enough,
        };
        Decision::new(names, format!("{state}; {freed} bytes go"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, bytes: u64, nodes: u64, starts_per_hour: u64) -> ImageFacts {
        ImageFacts { name: name.to_owned(), bytes, nodes, starts_per_hour, saved_us: 300_000 }
    }

    fn removed(used_bytes: u64, images: &[ImageFacts]) -> Vec<String> {
        let pool = Memory { used_bytes, budget_bytes: 1000 };
        let facts = ReclaimFacts { pool, wanted_bytes: 0, images: images.to_vec() };
        BetweenMarks::default().decide(&facts).choice
    }

    #[test]
    fn images_that_nobody_starts_go_first_and_no_more_than_needed() {
        let images = [image("idle", 60, 0, 0), image("busy", 60, 0, 100), image("rare", 60, 0, 1)];
        assert!(removed(899, &images).is_empty());
        assert_eq!(removed(900, &images), ["idle", "rare"]);
        assert_eq!(removed(860 + 60, &images), ["idle", "rare"]);
        assert_eq!(removed(921, &images), ["idle", "rare", "busy"]);
    }

    #[test]
    fn images_under_living_clones_stay() {
        assert_eq!(removed(1000, &[image("used", 500, 1, 0), image("b", 50, 0, 9)]), ["b"]);
    }

    #[test]
    fn who_lacks_room_has_what_suffices_or_nothing() {
        let images = [image("idle", 60, 0, 0), image("busy", 60, 0, 100), image("used", 90, 1, 0)];
        let removed = |used_bytes, wanted_bytes| {
            let pool = Memory { used_bytes, budget_bytes: 1000 };
            let facts = ReclaimFacts { pool, wanted_bytes, images: images.to_vec() };
            BetweenMarks::default().decide(&facts).choice
        };
        assert!(removed(800, 200).is_empty(), "there is room");
        assert_eq!(removed(800, 201), ["idle"]);
        assert_eq!(removed(800, 320), ["idle", "busy"]);
        assert!(removed(800, 321).is_empty(), "in vain");
        assert_eq!(removed(900, 500), ["idle", "busy"], "it is full besides");
    }
}
