//! From the misses of pages to the time that a share adds.

use farfork_types::misses::PageMisses;

use crate::format::{Model, Placement};

/// The pages of a call, hottest first, and for each stage its misses of them.
#[derive(Clone, Debug, Default)]
pub struct Misses {
    /// Misses of each page in the whole call, hottest first.
    pages: Vec<PageMisses>,
    /// Stages with their misses by page.
    stages: Vec<(String, Vec<PageMisses>)>,
}

impl Misses {
    /// Of the stages of a call; those outside any stage have an empty name. A stage may come several times.
    pub fn new(stages: Vec<(String, Vec<PageMisses>)>) -> Misses {
        let mut sums = std::collections::BTreeMap::<u64, u64>::new();
        for PageMisses { page, misses } in stages.iter().flat_map(|(_, pages)| pages) {
            *sums.entry(*page).or_default() += misses;
        }
        let mut pages: Vec<PageMisses> =
            sums.into_iter().map(|(page, misses)| PageMisses { page, misses }).collect();
        pages.sort_by_key(|page| (std::cmp::Reverse(page.misses), page.page));
        Misses { pages, stages }
    }

    /// All misses.
    pub fn total(&self) -> u64 {
        sum(&self.pages)
    }

    /// Misses of pages that are not near, if so many thousandths of `footprint_pages` are.
    pub fn far(&self, placement: Placement, permille: u16, footprint_pages: u64) -> u64 {
        self.far_of(&self.pages, placement, permille, footprint_pages)
    }

    /// The same of one stage.
    pub fn far_of_stage(
        &self,
        stage: &str,
        placement: Placement,
        permille: u16,
        footprint_pages: u64,
    ) -> u64 {
        let of_stage = self.stages.iter().filter(|(name, _)| name == stage);
        of_stage.map(|(_, pages)| self.far_of(pages, placement, permille, footprint_pages)).sum()
    }

    fn far_of(
        &self,
        pages: &[PageMisses],
        placement: Placement,
        permille: u16,
        footprint_pages: u64,
    ) -> u64 {
        let all = sum(pages);
        match placement {
            Placement::Even => {
                let far = u128::from(all) * u128::from(1000 - permille.min(1000)) / 1000;
                u64::try_from(far).unwrap_or(all)
            }
            Placement::Hottest => {
                let near = u128::from(footprint_pages) * u128::from(permille) / 1000;
                let near = usize::try_from(near).unwrap_or(usize::MAX).min(self.pages.len());
                let near: std::collections::BTreeSet<u64> =
                    self.pages[..near].iter().map(|page| page.page).collect();
                pages.iter().filter(|page| !near.contains(&page.page)).map(|page| page.misses).sum()
            }
        }
    }
}

fn sum(pages: &[PageMisses]) -> u64 {
    pages.iter().map(|page| page.misses).sum()
}

impl Model {
    /// The time that so many misses add, in microseconds.
    pub fn added_us(&self, far_misses: u64) -> u64 {
        let us = far_misses as f64 / self.overlap * (self.far_ns - self.near_ns) / 1000.0;
        us.max(0.0).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses() -> Misses {
        let pages = |all: &[(u64, u64)]| -> Vec<PageMisses> {
            all.iter().map(|(page, misses)| PageMisses { page: *page, misses: *misses }).collect()
        };
        Misses::new(vec![
            (String::new(), pages(&[(1, 5)])),
            ("download".to_owned(), pages(&[(1, 10), (2, 20)])),
            ("processing".to_owned(), pages(&[(3, 65)])),
        ])
    }

    #[test]
    fn the_hottest_pages_are_near_first() {
        let misses = misses();
        assert_eq!(misses.total(), 100);
        // Of ten pages, seven are not touched at all.
        let far = |permille| misses.far(Placement::Hottest, permille, 10);
        assert_eq!([0, 99, 100, 200, 300, 1000].map(far), [100, 100, 35, 15, 0, 0]);
        let far = |permille| misses.far(Placement::Even, permille, 10);
        assert_eq!([0, 300, 1000].map(far), [100, 70, 0]);
    }

    #[test]
    fn stages_have_their_part() {
        let misses = misses();
        let far = |stage, permille| misses.far_of_stage(stage, Placement::Hottest, permille, 10);
        assert_eq!([far("download", 0), far("download", 100), far("download", 200)], [30, 30, 10]);
        assert_eq!([far("processing", 0), far("processing", 100)], [65, 0]);
        assert_eq!(far("upload", 0), 0);
    }

    #[test]
    fn overlapping_misses_wait_together() {
        let model = Model {
            cache_bytes: 4 << 20,
            near_ns: 100.0,
            far_ns: 400.0,
            overlap: 3.0,
            placement: Placement::Even,
        };
        assert_eq!([0, 1000, 30_000].map(|misses| model.added_us(misses)), [0, 100, 3000]);
    }
}
