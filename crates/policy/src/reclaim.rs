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
    /// Clones of it that live: its bytes would not be free before they end.
    pub clones: u64,
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
#[serde(default)]
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
        if used < self.high_permille {
            return Decision::new(Vec::new(), format!("{used} ‰ of the pool are in use"));
        }
        let excess = facts.pool.excess_above(self.low_permille);
        let loose = facts.images.iter().filter(|image| image.clones == 0);
        let (names, freed) = greedy::least_worth(loose.map(ImageFacts::candidate), excess);
        let why = format!("{used} ‰ of the pool are in use; {freed} bytes of {excess} go");
        Decision::new(names, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, bytes: u64, clones: u64, starts_per_hour: u64) -> ImageFacts {
        ImageFacts { name: name.to_owned(), bytes, clones, starts_per_hour, saved_us: 300_000 }
    }

    fn removed(used_bytes: u64, images: &[ImageFacts]) -> Vec<String> {
        let pool = Memory { used_bytes, budget_bytes: 1000 };
        let facts = ReclaimFacts { pool, images: images.to_vec() };
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
}
