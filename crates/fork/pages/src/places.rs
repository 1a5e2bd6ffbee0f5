//! Between addresses of a process and places in its image.

use std::ops::Range;

use farfork_image::model::{Member, Model};
use farfork_types::PAGE_BYTES;

use crate::policy::pages;
use crate::set::PageSet;

/// All pages that clones map from the pool. The other pages of an image are copied into each clone when
/// it starts, whatever its tiering policy.
pub fn mapped(model: &Model) -> PageSet {
    let spans = model.members.iter().flat_map(|member| member.memory.mapped_spans());
    spans.flat_map(pages).collect()
}

/// The pages of an image that `member` has at `addresses`, whose ends may lie within pages. Pages that
/// it does not map from the pool are left out. `None` if it has no memory at one of the addresses.
pub fn place_of(member: &Member, addresses: Range<u64>) -> Option<PageSet> {
    let start = addresses.start / PAGE_BYTES * PAGE_BYTES;
    let end = addresses.end.checked_next_multiple_of(PAGE_BYTES)?;
    let mut at = start;
    for region in &member.memory.regions {
        if region.start <= at && at < region.end {
            at = region.end;
        }
    }
    if at < end {
        return None;
    }
    let mut found = PageSet::new();
    for span in member.memory.mapped_spans() {
        let (from, to) = (start.max(span.address), end.min(span.address + span.bytes));
        let first = pages(span).start;
        for address in (from..to).step_by(PAGE_BYTES as usize) {
            found.insert(first + (address - span.address) / PAGE_BYTES);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::model::{Backing, Region, RegionTraits, Segment, Stored};

    fn member() -> Member {
        let region = |start, end, sealed| Region {
            start,
            end,
            prot: 3,
            backing: Backing::Anonymous,
            traits: RegionTraits { sealed, ..RegionTraits::default() },
        };
        let mut member = Member::default();
        member.memory.regions = vec![
            region(0x1000, 0x4000, false),
            region(0x4000, 0x6000, true), // copied into each clone
            region(0x8000, 0x9000, false),
        ];
        let segments = vec![
            Segment { address: 0x2000, bytes: 0x4000, place: 0x10_0000 },
            Segment { address: 0x8000, bytes: 0x1000, place: 0x3000 },
        ];
        member.memory.stored = Stored { windows: Vec::new(), segments };
        member
    }

    #[test]
    fn addresses_lead_to_places_and_only_to_those_that_are_mapped() {
        let of = |range| place_of(&member(), range);
        assert_eq!(of(0x2000..0x3000), Some(PageSet::from_iter([0x100])));
        assert_eq!(of(0x2fff..0x3001), Some(PageSet::from_iter([0x100, 0x101])));
        assert_eq!(of(0x1000..0x6000), Some(PageSet::from_iter([0x100, 0x101])));
        assert_eq!(of(0x1000..0x2000), Some(PageSet::new()));
        assert_eq!(of(0x8010..0x8020), Some(PageSet::from_iter([3])));
        for outside in [0x5000..0x7000, 0..0x2000, 0x8000..0x9001, 0x8000..u64::MAX] {
            assert_eq!(of(outside.clone()), None, "{outside:x?}");
        }
    }

    #[test]
    fn what_is_mapped_is_what_addresses_lead_to() {
        let model = Model { members: vec![member()], ..Model::default() };
        assert_eq!(mapped(&model), PageSet::from_iter([3, 0x100, 0x101]));
    }
}
