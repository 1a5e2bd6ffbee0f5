//! How a guest goes through its memory.

/// Visits pages one after the other: page n + 1 is `(page n * multiplier + increment)` modulo all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The first page.
    pub first: u64,
    /// 1 for a walk in order; 4k + 1 for one that jumps and meets each page once.
    pub multiplier: u64,
    /// An odd number.
    pub increment: u64,
    /// Pages to visit.
    pub count: u64,
    /// Words to read of each page: 1 touches it, 512 reads all of it.
    pub words: u64,
    /// Writes what was read so far to the second word of each page, apart from those that the guest runs
    /// from.
    pub writes: bool,
}

/// One more than a multiple of four, and so with any odd increment it leads through all pages.
const JUMP: u64 = 0x1_5a4e_35b5;

impl Walk {
    /// Each word of `pages` pages in order.
    pub fn whole(pages: u64) -> Walk {
        Walk { first: 0, multiplier: 1, increment: 1, count: pages, words: 512, writes: false }
    }

    /// Each word of `count` of `pages` pages that lie here and there.
    pub fn jumping(pages: u64, count: u64) -> Walk {
        Walk {
            first: 17,
            multiplier: JUMP,
            increment: (pages / 3) | 1,
            count,
            words: 512,
            writes: false,
        }
    }

    /// The pages, in order.
    pub fn pages(&self, pages: u64) -> impl Iterator<Item = u64> {
        let Walk { multiplier, increment, .. } = *self;
        let next = move |page: &u64| {
            Some(page.wrapping_mul(multiplier).wrapping_add(increment) & (pages - 1))
        };
        std::iter::successors(Some(self.first & (pages - 1)), next).take(self.count as usize)
    }

    /// What a walk ends with that reads a word so.
    pub fn expected(&self, pages: u64, word: impl Fn(u64, u64) -> u64) -> u64 {
        let mut mixed = 0;
        for page in self.pages(pages) {
            mixed = (0..self.words).fold(mixed, |mixed, index| add(mixed, word(page, index)));
        }
        mixed
    }
}

/// How the guest mixes a word in: no change of one word goes unseen.
pub(crate) fn add(mixed: u64, word: u64) -> u64 {
    mixed.rotate_left(5).wrapping_add(word)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_walk_that_jumps_meets_each_page_once() {
        let pages = 1 << 12;
        let met: Vec<u64> = Walk::jumping(pages, pages).pages(pages).collect();
        assert_eq!(met.iter().collect::<BTreeSet<_>>().len() as u64, pages);
        let neighbours = met.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        assert!(neighbours < 64, "{neighbours}");
        let walk: Vec<u64> = Walk::whole(pages).pages(pages).collect();
        assert_eq!(walk, (0..pages).collect::<Vec<u64>>());
    }
}
