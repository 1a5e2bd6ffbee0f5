//! Where memory that a clone has not touched yet will lie (elastic memory).
//!
//! ```text
//!  memory that nothing has touched   ├── gap 1 ──────────────────────┤      ├─ gap 2 ──────────┤
//!  periods, counted through all      │ near │  far  │ near │  far  │ ne      ar │  far  │ near │
//! ```
//! The kernel's weights of interleaving hold for the whole system. So the parts that are to be far get a policy of
//! their own, by hand, and memory has the right share near wherever the clone stops touching it: at each point the
//! error is less than a quarter of a period. Periods are so short that this is half a percent of the image, and so
//! long that the address space is not cut into too many mappings.

use farfork_image::model::Model;
use farfork_plan::overlay::Span;
use farfork_types::{LocalShare, PAGE_BYTES};

/// Shortest period: what one fault maps (`fault_around_bytes`).
const LEAST_PAGES: u64 = 16;
/// Part of the image that a period is.
const PART: u64 = 50;
/// Periods at most, of all processes: each cuts a mapping twice, and a process may have 65530.
const MOST_PERIODS: u64 = 1024;

/// The parts that are to be far, of each process.
pub fn far_spans(model: &Model, local: LocalShare, image_pages: u64) -> Vec<Vec<Span>> {
    let gaps = || model.members.iter().map(|member| member.memory.untouched_spans());
    let all: u64 = gaps().flatten().map(|(start, end)| (end - start) / PAGE_BYTES).sum();
    let period = (image_pages / PART).max(all / MOST_PERIODS).max(LEAST_PAGES);
    let mut cutter = Cutter { local, period, at: 0 };
    gaps().map(|gaps| gaps.into_iter().flat_map(|gap| cutter.cut(gap)).collect()).collect()
}

/// Goes through the pages of all gaps as if they lay side by side.
struct Cutter {
    local: LocalShare,
    /// In pages.
    period: u64,
    /// Pages passed.
    at: u64,
}

impl Cutter {
    fn cut(&mut self, (start, end): (u64, u64)) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut address = start;
        while address < end {
            let (is_near, until) = self.part();
            let pages = (until - self.at).min((end - address) / PAGE_BYTES);
            let bytes = pages * PAGE_BYTES;
            if !is_near {
                join(&mut spans, Span { address, bytes });
            }
            self.at += pages;
            address += bytes;
        }
        spans
    }

    /// Whether the present page is near, and the page up to which others are as well. Rounding is that of all periods
    /// so far, so that it does not add up.
    fn part(&self) -> (bool, u64) {
        let first = self.at / self.period * self.period;
        let next = first + self.period;
        let far_from = first + self.local.of(next) - self.local.of(first);
        if self.at < far_from { (true, far_from) } else { (false, next) }
    }
}

/// With a share of 0, far parts follow each other without a near one between them.
fn join(spans: &mut Vec<Span>, next: Span) {
    match spans.last_mut() {
        Some(last) if last.address + last.bytes == next.address => last.bytes += next.bytes,
        _ => spans.push(next),
    }
}

#[cfg(test)]
mod tests {
    use farfork_image::model::{Backing, Member, Region, RegionTraits, Segment};
    use proptest::prelude::*;

    use super::*;

    fn region(first: u64, pages: u64) -> Region {
        Region {
            start: first * PAGE_BYTES,
            end: (first + pages) * PAGE_BYTES,
            prot: 3,
            backing: Backing::Anonymous,
            traits: RegionTraits::default(),
        }
    }

    fn model(regions: Vec<Region>) -> Model {
        let mut member = Member::default();
        member.memory.regions = regions;
        let segment = Segment { address: 0x1000 * PAGE_BYTES, bytes: 4 * PAGE_BYTES, place: 0 };
        member.memory.stored.segments = vec![segment];
        Model { members: vec![member], ..Model::default() }
    }

    fn spans(model: &Model, permille: u16, image_pages: u64) -> Vec<(u64, u64)> {
        let local = LocalShare::from_permille(permille).unwrap();
        let spans = far_spans(model, local, image_pages).remove(0);
        let pages = |span: &Span| (span.address / PAGE_BYTES, span.bytes / PAGE_BYTES);
        spans.iter().map(pages).collect()
    }

    #[test]
    fn what_is_stored_has_its_place_already() {
        let model = model(vec![region(0x1000, 24)]);
        assert_eq!(spans(&model, 0, 0), [(0x1004, 20)]);
        assert_eq!(spans(&model, 1000, 0), []);
        assert_eq!(spans(&model, 500, 0), [(0x100c, 8)]);
        assert_eq!(spans(&model, 250, 0), [(0x1008, 12)]);
    }

    #[test]
    fn a_second_gap_goes_on_where_the_first_has_ended() {
        let model = model(vec![region(0x2000, 12), region(0x3000, 12)]);
        assert_eq!(spans(&model, 500, 0), [(0x2008, 4), (0x3000, 4)]);
    }

    #[test]
    fn memory_with_attributes_and_memory_that_cannot_be_written_are_left_alone() {
        let read_only = Region { prot: 1, ..region(0x2000, 64) };
        let locked = RegionTraits { locked: true, ..RegionTraits::default() };
        let locked = Region { traits: locked, ..region(0x3000, 64) };
        assert_eq!(spans(&model(vec![read_only, locked]), 0, 0), []);
    }

    proptest! {
        /// Wherever a clone stops touching it from the beginning on.
        #[test]
        fn so_much_is_near_of_what_was_touched(
            pages in proptest::collection::vec(1u64..3000, 1..6),
            permille in 0u16..=1000,
            image_pages in 0u64..20_000,
            touched in 0.0f64..1.0,
        ) {
            let at = |index: usize| 0x10_0000 + index as u64 * 0x1000;
            let regions = pages.iter().enumerate().map(|(index, count)| region(at(index), *count));
            let far = spans(&model(regions.collect()), permille, image_pages);
            let all: u64 = pages.iter().sum();
            let touched = (all as f64 * touched) as u64;
            let mut left = touched;
            let mut far_pages = 0;
            for (index, count) in pages.iter().enumerate() {
                let end = at(index) + left.min(*count);
                let of_gap = far.iter().filter(|(first, _)| (at(index)..end).contains(first));
                far_pages += of_gap.map(|(first, bytes)| (first + bytes).min(end) - first).sum::<u64>();
                left -= left.min(*count);
            }
            let local = LocalShare::from_permille(permille).unwrap();
            let period = (image_pages / PART).max(LEAST_PAGES);
            let near_pages = touched - far_pages;
            prop_assert!(near_pages.abs_diff(local.of(touched)) <= period / 4 + 2);
            prop_assert!(far.len() as u64 <= MOST_PERIODS + pages.len() as u64);
        }
    }
}
