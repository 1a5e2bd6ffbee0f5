//! Sets of pages.

use std::ops::Range;

/// Pages of an image, each known by its place: page number `n` of the image's data chunks, counted
/// through all of them in order. One bit each, so that sets are merged word by word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// The empty set.
    pub fn new() -> PageSet {
        PageSet::default()
    }

    /// The set with these bits, page 0 being bit 0 of the first word.
    pub fn from_words(words: Vec<u64>) -> PageSet {
        PageSet { words }.trimmed()
    }

    /// Drops empty words at the end: equal sets have equal words.
    fn trimmed(mut self) -> PageSet {
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.words.truncate(used);
        self
    }

    /// Its bits.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds a page.
    pub fn insert(&mut self, page: u64) {
        let word = (page / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (page % 64);
    }

    /// Adds all pages of `other`.
    pub fn merge(&mut self, other: &PageSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(own, word)| *own |= word);
    }

    /// Takes out all pages of `other`.
    pub fn subtract(&mut self, other: &PageSet) {
        self.words.iter_mut().zip(&other.words).for_each(|(own, word)| *own &= !word);
        *self = std::mem::take(self).trimmed();
    }

    /// Leaves only what is also in `other`.
    pub fn intersect(&mut self, other: &PageSet) {
        self.words.truncate(other.words.len());
        self.words.iter_mut().zip(&other.words).for_each(|(own, word)| *own &= word);
        *self = std::mem::take(self).trimmed();
    }

    /// Whether it has the page.
    pub fn contains(&self, page: u64) -> bool {
        self.words.get((page / 64) as usize).is_some_and(|word| word & (1 << (page % 64)) != 0)
    }

    /// How many pages it has.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Runs of its pages among `pages`.
    pub fn runs(&self, pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            let start = self.next(at, pages.end, true)?;
            let end = self.next(start, pages.end, false).unwrap_or(pages.end);
            at = end;
            Some(start..end)
        })
    }

    /// The first page from `from` up to `end` that is in the set, or that is not.
    fn next(&self, from: u64, end: u64, is_in: bool) -> Option<u64> {
        let mut at = from;
        while at < end {
            let Some(word) = self.words.get((at / 64) as usize).copied() else {
                return (!is_in).then_some(at); // none from here on
            };
            let wanted = if is_in { word } else { !word };
            let rest = wanted >> (at % 64);
            if rest != 0 {
                let found = at + u64::from(rest.trailing_zeros());
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

impl FromIterator<u64> for PageSet {
    fn from_iter<I: IntoIterator<Item = u64>>(pages: I) -> PageSet {
        let mut set = PageSet::new();
        pages.into_iter().for_each(|page| set.insert(page));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::PageSet;

    #[test]
    fn runs_of_a_small_set_are_found_among_all_pages() {
        let set = PageSet::from_iter([1, 2, 64]);
        assert_eq!(set.runs(0..u64::MAX).collect::<Vec<_>>(), [1..3, 64..65]);
    }

    proptest! {
        #[test]
        fn runs_are_the_pages_of_the_set(
            pages in prop::collection::btree_set(0u64..300, 0..200),
            from in 0u64..320,
            count in 0u64..320,
        ) {
            let set: PageSet = pages.iter().copied().collect();
            let range = from..from + count;
            let runs: Vec<_> = set.runs(range.clone()).collect();
            let found: BTreeSet<u64> = runs.iter().cloned().flatten().collect();
            let expected: BTreeSet<u64> =
                pages.iter().copied().filter(|page| range.contains(page)).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(set.len(), pages.len() as u64);
            prop_assert!(pages.iter().all(|page| set.contains(*page)));
        }

        #[test]
        fn a_merged_set_has_the_pages_of_both(
            a in prop::collection::btree_set(0u64..300, 0..50),
            b in prop::collection::btree_set(0u64..300, 0..50),
        ) {
            let mut merged: PageSet = a.iter().copied().collect();
            merged.merge(&b.iter().copied().collect());
            let both: BTreeSet<u64> = merged.runs(0..400).flatten().collect();
            prop_assert_eq!(both, &a | &b);
            let set = |pages: &BTreeSet<u64>| pages.iter().copied().collect::<PageSet>();
            let pages = |set: &PageSet| set.runs(0..400).flatten().collect::<BTreeSet<u64>>();
            let (mut less, mut common) = (set(&a), set(&a));
            less.subtract(&set(&b));
            common.intersect(&set(&b));
            prop_assert_eq!(pages(&less), &a - &b);
            prop_assert_eq!(pages(&common), &a & &b);
            prop_assert_eq!(less, set(&(&a - &b)));
            prop_assert_eq!(common, set(&(&a & &b)));
            let longer = [set(&a).words(), &[0, 0]].concat();
            prop_assert_eq!(PageSet::from_words(longer), set(&a));
        }
    }
}
