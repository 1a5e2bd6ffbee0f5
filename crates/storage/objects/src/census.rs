//! All objects of a region, as its owner bytes and spans show them.

use crate::layout::{FREE, SPAN_BYTES, SPAN_GRANULES, first_granule};
use crate::region::{Platform, Region};
use crate::span::Span;
use crate::spans::span;
use crate::words::Words;

/// An object, or an owner byte where no object can begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) granule: u32,
    pub(crate) owner: u8,
    /// Bytes that it takes. 0: no object can begin there.
    pub(crate) bytes: u64,
}

/// Calls `each` for every object. Clients go on meanwhile.
pub(crate) fn objects<P: Platform>(region: &Region<P>, mut each: impl FnMut(Seen)) {
    for at in region.layout.spans() {
        let found = span(region, at);
        let first = first_granule(at);
        for granule in (first..first + SPAN_GRANULES).step_by(8) {
            let owners = region.words.word(region.layout.owner(granule)).to_le_bytes();
            if owners == [FREE; 8] {
                continue;
            }
            for (granule, owner) in (granule..).zip(owners).filter(|(_, owner)| *owner != FREE) {
                each(Seen { granule, owner, bytes: bytes_of(found, granule - first) });
            }
        }
    }
}

/// Bytes of an object that begins at a granule of a span.
fn bytes_of(found: Option<Span>, within: u32) -> u64 {
    match found {
        Some(Span::Slots { class, .. }) => {
            let granules = class.granules();
            let is_slot = within.is_multiple_of(granules) && within / granules < class.slots();
            if is_slot { class.bytes() } else { 0 }
        }
        Some(Span::Run { spans, .. }) if within == 0 => u64::from(spans) * SPAN_BYTES,
        _ => 0,
    }
}
