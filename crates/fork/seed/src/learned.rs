//! In which order clones of a seed needed its pages, as their nodes have seen it.

use std::collections::HashSet;
use std::sync::Mutex;

use farfork_far::orders::MOST_PAGES;
use farfork_far::protocol::PageRange;
use farfork_far::wanted::in_order;
use farfork_sys::sync::locked;

/// Pages, each once. Those that several nodes have seen stand where the first of them had them.
pub struct Learned {
    /// The number of the first page that the seed does not have.
    end: u32,
    known: Mutex<(Vec<u32>, HashSet<u32>)>,
}

impl Learned {
    /// None yet, of a seed that has so many.
    pub fn new(pages: u64) -> Learned {
        Learned { end: u32::try_from(pages).unwrap_or(u32::MAX), known: Mutex::default() }
    }

    /// Adds those that are not known. Numbers beyond the seed's end mean nothing.
    pub fn add(&self, pages: &[u32]) {
        let mut known = locked(&self.known);
        let (order, set) = &mut *known;
        for page in pages.iter().filter(|page| **page < self.end) {
            if set.len() < MOST_PAGES && set.insert(*page) {
                order.push(*page);
            }
        }
    }

    /// How many are known.
    pub fn count(&self) -> usize {
        locked(&self.known).0.len()
    }

    /// All of them, as ranges of pages of the seed's file.
    pub fn ranges(&self) -> Vec<PageRange> {
        in_order(&locked(&self.known).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_of_the_seed_is_known_once_where_it_was_first() {
        let learned = Learned::new(10);
        assert_eq!(learned.ranges(), []);
        learned.add(&[4, 5, 1, 10, u32::MAX]);
        learned.add(&[5, 9, 1]);
        assert_eq!((learned.count(), learned.ranges()), (4, vec![(516, 2), (513, 1), (521, 1)]));
    }

    #[test]
    fn a_node_cannot_fill_the_memory_of_a_keeper() {
        let learned = Learned::new(1 << 30);
        let many: Vec<u32> = (0..MOST_PAGES as u32 + 9).collect();
        learned.add(&many);
        assert_eq!(learned.count(), MOST_PAGES);
    }
}
