//! The pages of one process, by their places in its image.

use std::collections::BTreeSet;
use std::ops::Range;

use farfork_image::layout::MappedSpan;
use farfork_image::model::Model;
use farfork_pages::PageSet;
use farfork_types::{CHUNK_BYTES, PAGE_BYTES};

const PAGE_SIZE: usize = PAGE_BYTES as usize;
/// Pages of a chunk of the pool, which holds one window of addresses.
const WINDOW: u64 = CHUNK_BYTES / PAGE_BYTES;

/// Addresses and places of the pages of an image's first process.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Sorted by address.
    spans: Vec<MappedSpan>,
}

impl Layout {
    /// The layout of an image.
    pub fn from_model(model: &Model) -> Layout {
        Layout { spans: model.root().memory.mapped_spans().collect() }
    }

    /// The pages at these addresses that clones map from the pool.
    pub fn pages(&self, runs: &[Range<u64>]) -> PageSet {
        let addresses = runs.iter().cloned().flat_map(|run| run.step_by(PAGE_SIZE));
        addresses.filter_map(|address| self.place(address)).collect()
    }

    /// The places of the same pages in another image of the same process. Pages that it does not have
    /// are left out.
    pub fn moved(&self, pages: &PageSet, other: &Layout) -> PageSet {
        let address = |span: &MappedSpan, page| span.address + page * PAGE_BYTES - span.place;
        let addresses = self.spans.iter().flat_map(|span| {
            let first = span.place / PAGE_BYTES;
            let runs = pages.runs(first..first + span.bytes / PAGE_BYTES);
            runs.flatten().map(move |page| address(span, page))
        });
        addresses.filter_map(|address| other.place(address)).collect()
    }

    /// The number of the page at an address.
    fn place(&self, address: u64) -> Option<u64> {
        let after = self.spans.partition_point(|span| span.address <= address);
        let span = self.spans[..after].last()?;
        let offset = address - span.address;
        (offset < span.bytes).then(|| (span.place + offset) / PAGE_BYTES)
    }
}

/// Number of pages that two sets have in common.
pub fn common(one: &PageSet, other: &PageSet) -> u64 {
    let mut common = one.clone();
    common.intersect(other);
    common.len()
}

/// The windows of these pages: 2 MiB, which one page table entry can map.
pub fn windows(pages: &PageSet) -> BTreeSet<u64> {
    pages.runs(0..u64::MAX).flat_map(|run| run.start / WINDOW..=(run.end - 1) / WINDOW).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::model::{Backing, Member, Region, RegionTraits, Segment, Stored};

    const PAGE: u64 = PAGE_BYTES;

    fn model(place: u64) -> Model {
        let mut member = Member::default();
        member.memory.regions = [(0x1000, 0x5000), (0x20_0000, 0x20_2000)]
            .map(|(start, end)| Region {
                start,
                end,
                prot: 3,
                backing: Backing::Anonymous,
                traits: RegionTraits::default(),
            })
            .into();
        let segments = vec![
            Segment { address: 0x1000, bytes: 0x4000, place: place + 0x7000 },
            Segment { address: 0x20_0000, bytes: 0x2000, place },
        ];
        member.memory.stored = Stored { windows: Vec::new(), segments };
        Model { members: vec![member], ..Model::default() }
    }

    #[test]
    fn addresses_are_mapped_to_pages_of_the_image() {
        let layout = Layout::from_model(&model(0x10_0000));
        let first = 0x10_0000 / PAGE;
        let found = layout.pages(&[0..0x2000, 0x4000..0x6000, 0x20_1000..0x30_0000]);
        assert_eq!(found, PageSet::from_iter([first + 7, first + 10, first + 1]));
    }

    #[test]
    fn pages_lie_in_windows() {
        let pages = PageSet::from_iter([0, 511, 512 * 3 - 1, 512 * 3, 512 * 9]);
        assert_eq!(windows(&pages), BTreeSet::from([0, 2, 3, 9]));
    }

    #[test]
    fn pages_are_found_again_in_another_image() {
        let (one, other) = (model(0x10_0000), model(0x30_0000));
        let (from, to) = (Layout::from_model(&one), Layout::from_model(&other));
        let first = 0x10_0000 / PAGE;
        let pages = PageSet::from_iter([first, first + 8, first + 10, first + 99]);
        let elsewhere = 0x30_0000 / PAGE;
        let moved = from.moved(&pages, &to);
        assert_eq!(moved, PageSet::from_iter([elsewhere, elsewhere + 8, elsewhere + 10]));
        assert_eq!(common(&moved, &PageSet::from_iter([elsewhere, 5])), 1);
    }
}
