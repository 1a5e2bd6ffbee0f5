//! Which images are removed when the pool fills up (CXLfork §5: the autoscaler reclaims checkpoints
//! under pressure).

use serde::{Deserialize, Serialize};

use crate::greedy::{self, Candidate};
use crate::{Decision, Facts, Memory, Policy};

/// Facts about the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimFacts {
    /// Its use and size.
    pub pool: Memory,
    /// Bytes that an image needs which did not fit; 0 if none waits.
    pub wanted_bytes: u64,
    /// The images that may be removed.
    pub images: Vec<ImageFacts>,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// Its name.
    pub name: String,
    /// Bytes that it takes in the pool.
    pub bytes: u64,
    /// Nodes on which clones of it live. Its bytes become free only when those have ended.
    pub nodes: u64,
    /// Starts of clones of it in the last hour.
    pub starts_per_hour: u64,
    /// Microseconds that a start takes longer without it.
    pub saved_us: u64,
}

impl Facts for ReclaimFacts {
    /// Names of the images to remove.
    type Choice = Vec<String>;
    const QUESTION: &'static str = "reclaim";
}

/// Above a high mark, removes the images that save least for their size until a low mark is
/// reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BetweenMarks {
    /// Share of the pool in use from which images are removed, in thousandths.
    pub high_permille: u64,
    /// Share of the pool in use at which removal stops, in thousandths.
    pub low_permille: u64,
}

impl Default for BetweenMarks {
    fn default() -> BetweenMarks {
        BetweenMarks { high_permille: 900, low_permille: 800 }
    }
}

impl ImageFacts {
    fn candidate(&self) -> Candidate<'_, String> {
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
        let remove = |wanted| {
            let loose = facts.images.iter().filter(|image| image.nodes == 0);
            greedy::least_worth(loose.map(ImageFacts::candidate), wanted)
        };
        let state = format!("{used} ‰ of the pool are in use, {lacking} bytes are missing");
        // If the waiting image would not fit even then, nothing is removed for it.
        let (names, freed) = match remove(lacking.max(excess)) {
            (_, freed) if freed < lacking => remove(excess),
            enough => enough,
        };
        Decision::new(names, format!("{state}; {freed} bytes are removed"))
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
    fn unused_images_are_removed_first_and_no_more_than_needed() {
        let images = [image("idle", 60, 0, 0), image("busy", 60, 0, 100), image("rare", 60, 0, 1)];
        assert!(removed(899, &images).is_empty());
        assert_eq!(removed(900, &images), ["idle", "rare"]);
        assert_eq!(removed(860 + 60, &images), ["idle", "rare"]);
        assert_eq!(removed(921, &images), ["idle", "rare", "busy"]);
    }

    #[test]
    fn images_with_living_clones_stay() {
        assert_eq!(removed(1000, &[image("used", 500, 1, 0), image("b", 50, 0, 9)]), ["b"]);
    }

    #[test]
    fn an_image_without_room_gets_enough_or_nothing() {
        let images = [image("idle", 60, 0, 0), image("busy", 60, 0, 100), image("used", 90, 1, 0)];
        let removed = |used_bytes, wanted_bytes| {
            let pool = Memory { used_bytes, budget_bytes: 1000 };
            let facts = ReclaimFacts { pool, wanted_bytes, images: images.to_vec() };
            BetweenMarks::default().decide(&facts).choice
        };
        assert!(removed(800, 200).is_empty(), "there is room");
        assert_eq!(removed(800, 201), ["idle"]);
        assert_eq!(removed(800, 320), ["idle", "busy"]);
        assert!(removed(800, 321).is_empty(), "it would not be enough");
        assert_eq!(removed(900, 500), ["idle", "busy"], "the pool is above its mark");
    }
}
