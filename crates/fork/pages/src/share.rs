//! Which pages of an image become local for a share of near memory (elastic memory).

use farfork_image::model::Model;
use farfork_types::{LocalShare, PAGE_BYTES};

use crate::access::Access;
use crate::policy;
use crate::set::PageSet;

/// Pages that are chosen together, so that a mapping is not cut at every page: what one fault maps
/// (`fault_around_bytes`).
const BLOCK_PAGES: u64 = 16;

/// A share of an image that is to be local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// How much.
    pub local: LocalShare,
    /// Whether memory that the clone may not write can be copied, too (by userfaultfd): otherwise it stays in the pool.
    pub copies: bool,
    /// Far memory nodes, a bit for each.
    pub far_nodes: u64,
}

/// What becomes local for a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Pages that clones map from the pool, and that become local instead.
    pub local: PageSet,
    /// All pages of the image.
    pub pages: u64,
    /// Those of them that every clone copies when it starts: they are always local.
    pub always_local: u64,
}

/// Chooses pages of an image: those that clones copy at their start in any case, then those that clones
/// write, then those that are declared hot, then those that clones were seen to access, then others. Of the
/// last kind that does not fit, the pages are spread evenly.
///
/// Written pages come first because they become local at their first write anyway: if others were chosen, the
/// clone would soon have more near memory than its share.
pub fn choose(model: &Model, access: &Access, share: Share) -> Chosen {
    let spans = || model.members.iter().flat_map(|member| member.memory.mapped_spans());
    let mapped: u64 = spans().map(|span| span.bytes / PAGE_BYTES).sum();
    let left: PageSet =
        spans().filter(|span| share.copies || span.is_writable).flat_map(policy::pages).collect();
    let stored: u64 = model
        .members
        .iter()
        .flat_map(|member| &member.memory.stored.segments)
        .map(|segment| segment.bytes / PAGE_BYTES)
        .sum();
    let pages = stored.max(mapped);
    let always_local = pages - mapped;
    let wanted = share.local.of(pages).saturating_sub(always_local);
    let local = pick(&left, access, wanted);
    Chosen { local, pages, always_local }
}

/// So many of the `candidates`, or all: those that clones write first, then hot ones, then accessed ones, then
/// others; of the last kind that does not fit, the pages are spread evenly.
pub fn pick(candidates: &PageSet, access: &Access, mut wanted: u64) -> PageSet {
    let mut local = PageSet::new();
    let mut left = candidates.clone();
    for kind in [&access.dirtied, &access.hot, &access.accessed, candidates] {
        let mut of_kind = left.clone();
        of_kind.intersect(kind);
        let taken = spread(&of_kind, wanted);
        left.subtract(&of_kind);
        wanted -= taken.len();
        local.merge(&taken);
    }
    local
}

/// So many of the pages, or all, spread evenly: of each block the same share, rounded so that the sum is
/// exact.
fn spread(pages: &PageSet, wanted: u64) -> PageSet {
    let all = pages.len();
    if all <= wanted {
        return pages.clone();
    }
    let mut taken = PageSet::new();
    let due = |seen: u64| (u128::from(seen) * u128::from(wanted) / u128::from(all)) as u64;
    let (mut seen, mut count) = (0, 0);
    let runs = pages.runs(0..u64::MAX);
    let parts = runs.flat_map(|run| {
        let end = run.end;
        (run.start..end)
            .step_by(BLOCK_PAGES as usize)
            .map(move |start| start..end.min(start + BLOCK_PAGES))
    });
    for part in parts {
        seen += part.end - part.start;
        let share = due(seen) - count;
        count += share;
        (part.start..part.start + share).for_each(|page| taken.insert(page));
    }
    taken
}

#[cfg(test)]
mod tests {
    use farfork_image::model::{Backing, Member, Region, RegionTraits, Segment, Stored};
    use proptest::prelude::*;

    use super::*;

    /// A process that maps `pages` pages from place 100 on, and copies one more.
    fn model(pages: u64) -> Model {
        let region = |first: u64, count: u64, sealed| Region {
            start: first * PAGE_BYTES,
            end: (first + count) * PAGE_BYTES,
            prot: 3,
            backing: Backing::Anonymous,
            traits: RegionTraits { sealed, ..RegionTraits::default() },
        };
        let segment = |first: u64, count: u64, place: u64| Segment {
            address: first * PAGE_BYTES,
            bytes: count * PAGE_BYTES,
            place: place * PAGE_BYTES,
        };
        let mut member = Member::default();
        member.memory.regions = vec![region(0x1000, pages, false), region(0x90_0000, 1, true)];
        let segments = vec![segment(0x1000, pages, 100), segment(0x90_0000, 1, 5)];
        member.memory.stored = Stored { windows: Vec::new(), segments };
        Model { members: vec![member], ..Model::default() }
    }

    fn share(permille: u16) -> Share {
        let local = LocalShare::from_permille(permille).unwrap();
        Share { local, copies: true, far_nodes: 0 }
    }

    #[test]
    fn written_pages_come_first_then_hot_then_accessed_ones() {
        let access = Access {
            accessed: (110..140).collect(),
            dirtied: (110..120).collect(),
            hot: (130..145).collect(),
        };
        let chosen = |permille| choose(&model(99), &access, share(permille)).local;
        // Of 100 pages, one is always local.
        assert_eq!(chosen(0), PageSet::new());
        assert_eq!(chosen(10), PageSet::new());
        assert_eq!(chosen(110), (110..120).collect());
        assert_eq!(chosen(260), (110..120).chain(130..145).collect());
        assert_eq!(chosen(360), (110..145).collect());
        assert_eq!(chosen(1000), (100..199).collect());
        let half_of_written = chosen(60);
        assert_eq!(half_of_written.len(), 5);
        assert!(half_of_written.runs(0..u64::MAX).flatten().all(|page| (110..120).contains(&page)));
    }

    #[test]
    fn the_rest_is_spread_evenly() {
        let chosen = choose(&model(1599), &Access::default(), share(500));
        assert_eq!((chosen.pages, chosen.always_local), (1600, 1));
        for block in 0..100 {
            let first = 100 + block * 16;
            let here = chosen.local.runs(first..first + 16).flatten().count();
            assert!((7..=8).contains(&here), "{here} of block {block}");
        }
    }

    #[test]
    fn memory_that_cannot_be_copied_stays_in_the_pool() {
        let mut model = model(100);
        model.members[0].memory.regions[0].prot = 1;
        let all = share(1000);
        assert_eq!(choose(&model, &Access::default(), all).local.len(), 100);
        let none = Share { copies: false, ..all };
        let chosen = choose(&model, &Access::default(), none);
        assert_eq!(chosen, Chosen { local: PageSet::new(), pages: 101, always_local: 1 });
    }

    proptest! {
        #[test]
        fn the_number_is_exact(pages in 1u64..5000, permille in 0u16..=1000, seed: u64) {
            let is_in = |page: &u64, salt: u64| (page ^ seed.rotate_left(salt as u32)) % 7 < salt;
            let of = |salt| (100..100 + pages).filter(|page| is_in(page, salt)).collect();
            let access = Access { accessed: of(3), dirtied: of(2), hot: of(1) };
            let chosen = choose(&model(pages), &access, share(permille));
            let wanted = share(permille).local.of(pages + 1).saturating_sub(1);
            prop_assert_eq!(chosen.local.len(), wanted);
            prop_assert_eq!(chosen.local.runs(100..100 + pages).flatten().count() as u64, wanted);
        }
    }
}
