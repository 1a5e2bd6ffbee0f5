//! Which parts of an image may lie on another node.

use std::collections::BTreeSet;

use farfork_image::model::Model;
use farfork_types::{CHUNK_BYTES, PAGE_BYTES};

use crate::access::Access;
use crate::places::mapped;
use crate::set::PageSet;

/// Pages of a chunk.
const CHUNK_PAGES: u64 = CHUNK_BYTES / PAGE_BYTES;

/// The chunks of which no clone has touched a page, as far as `access` knows, and that the user has not
/// declared hot. Chunks with pages that every start reads (shared objects, what is copied into each clone)
/// are not cold. Hot and cold parts of images in two kinds of memory are Aquifer's (arXiv 2606.24079), and
/// CXLfork's (ASPLOS '25, §4.3) access patterns decide.
pub fn cold_chunks(model: &Model, access: &Access) -> BTreeSet<usize> {
    let segments = model.stored().flat_map(|stored| &stored.segments);
    let mut needed: PageSet = segments
        .flat_map(|part| part.place / PAGE_BYTES..(part.place + part.bytes).div_ceil(PAGE_BYTES))
        .collect();
    needed.subtract(&mapped(model));
    for set in [&access.accessed, &access.dirtied, &access.hot] {
        needed.merge(set);
    }
    let pages = |chunk: u64| chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES;
    let is_cold = |chunk: &usize| needed.runs(pages(*chunk as u64)).next().is_none();
    (0..model.chunks()).filter(is_cold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::model::{Backing, Member, Region, RegionTraits, Segment, Stored};

    /// Five chunks that one region maps, and the last of which is an object's.
    fn model() -> Model {
        let mut member = Member::default();
        member.memory.regions = vec![Region {
            start: 0,
            end: 4 * CHUNK_BYTES,
            prot: 3,
            backing: Backing::Anonymous,
            traits: RegionTraits::default(),
        }];
        let segment = |chunk, chunks| Segment {
            address: chunk * CHUNK_BYTES,
            bytes: chunks * CHUNK_BYTES,
            place: chunk * CHUNK_BYTES,
        };
        member.memory.stored = Stored { windows: Vec::new(), segments: vec![segment(0, 4)] };
        let mut model = Model { members: vec![member], ..Model::default() };
        model.content.segments = vec![segment(4, 1)];
        model
    }

    #[test]
    fn what_no_clone_needs_is_cold() {
        let cold = |access: Access| cold_chunks(&model(), &access).into_iter().collect::<Vec<_>>();
        let set = |pages: &[u64]| pages.iter().copied().collect::<PageSet>();
        assert_eq!(cold(Access::default()), [0, 1, 2, 3]);
        let accessed = Access { accessed: set(&[511, 1024]), ..Access::default() };
        assert_eq!(cold(accessed), [1, 3]);
        let dirtied = Access { dirtied: set(&[512]), ..Access::default() };
        assert_eq!(cold(dirtied), [0, 2, 3]);
        let hot = Access { hot: set(&[3 * 512]), ..Access::default() };
        assert_eq!(cold(hot), [0, 1, 2]);
    }
}
