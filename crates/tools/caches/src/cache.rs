//! One level of the caches.

use serde::{Deserialize, Serialize};

/// The unit of caches and of reads from memory.
pub const LINE_BYTES: u64 = 64;

/// Size and associativity of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Its size.
    pub bytes: u64,
    /// Number of lines of a set.
    pub ways: u32,
}

/// A set-associative cache with LRU replacement.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The lines, set by set. In a set, the most recently used line is first.
    lines: Vec<u64>,
    ways: usize,
    sets: u64,
}

/// An empty slot: no line of user space has this number.
const NONE: u64 = u64::MAX;

impl Cache {
    /// An empty cache.
    ///
    /// # Panics
    /// If it is smaller than a set.
    pub fn new(geometry: Geometry) -> Cache {
        let ways = geometry.ways as usize;
        let sets = geometry.bytes / LINE_BYTES / u64::from(geometry.ways);
        assert!(sets > 0, "a cache smaller than a set");
        Cache { lines: vec![NONE; ways * sets as usize], ways, sets }
    }

    /// Uses a line. Returns whether it was a hit.
    pub fn use_line(&mut self, line: u64) -> bool {
        let first = (line % self.sets) as usize * self.ways;
        let set = &mut self.lines[first..first + self.ways];
        let found = set.iter().position(|&held| held == line);
        set[..=found.unwrap_or(self.ways - 1)].rotate_right(1);
        set[0] = line;
        found.is_some()
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.lines.fill(NONE);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn small() -> Cache {
        Cache::new(Geometry { bytes: 8 * LINE_BYTES, ways: 2 })
    }

    #[test]
    fn the_least_recently_used_line_is_replaced() {
        let mut cache = small();
        let mut uses = |line| cache.use_line(line);
        assert_eq!([uses(0), uses(4), uses(0)], [false, false, true], "one set of four has both");
        assert_eq!([uses(8), uses(0), uses(4)], [false, true, false], "4 was used before 0");
        assert_eq!([uses(1), uses(8)], [false, false], "line 1 is in another set");
        cache.clear();
        assert!(!cache.use_line(1));
    }

    proptest! {
        /// A set holds exactly the lines that were used last.
        #[test]
        fn it_holds_the_last_lines_of_each_set(lines in prop::collection::vec(0_u64..24, 0..200)) {
            let mut cache = small();
            for (at, line) in lines.iter().enumerate() {
                let mut last: Vec<u64> = Vec::new();
                for other in lines[..at].iter().rev().filter(|other| *other % 4 == line % 4) {
                    if !last.contains(other) {
                        last.push(*other);
                    }
                }
                last.truncate(2);
                prop_assert_eq!(cache.use_line(*line), last.contains(line));
            }
        }
    }
}
