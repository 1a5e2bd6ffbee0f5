//! Spans: claimed by a client for objects of one class, adopted from dead clients, given back.
//!
//! Who writes the word of a span: any client while it has none, by compare and swap; then its client alone.
//! Marks are written by their client, and by its recovery.

use std::ops::Range;

use crate::layout::{ClientId, FREE, SPAN_BYTES, SPAN_GRANULES, first_granule, span_of};
use crate::region::{Platform, Region};
use crate::sizes::Class;
use crate::span::Span;
use crate::words::Words;

/// Slots that a look gathers. So many objects of 64 bytes, their owner bytes and the list fit a first-level cache.
const GATHERED: usize = 128;

/// The word of a span.
pub(crate) fn span<P: Platform>(region: &Region<P>, span: u32) -> Option<Span> {
    Span::of(region.words.word(region.layout.span(span)))
}

/// Changes the word of a span; returns whether it was `from`.
pub(crate) fn swap<P: Platform>(region: &Region<P>, span: u32, from: Span, to: Span) -> bool {
    region.words.claim_word(region.layout.span(span), from.word(), to.word())
}

/// Whether a client could claim the span for a class.
pub(crate) fn is_to_be_had<P: Platform>(region: &Region<P>, at: u32, class: Class) -> bool {
    match span(region, at) {
        Some(Span::Free) => true,
        Some(Span::Slots { client: 0, class: found }) => found == class || is_empty(region, at),
        _ => false,
    }
}

/// Claims a span for a class; returns whether the client has it. Free slots may be missing.
pub(crate) fn claim<P: Platform>(region: &Region<P>, id: ClientId, at: u32, class: Class) -> bool {
    let client = id.number();
    let own = Span::Slots { client, class };
    match span(region, at) {
        Some(Span::Free) => swap(region, at, Span::Free, own),
        // What a dead client left: objects of others.
        Some(left @ Span::Slots { client: 0, class: found }) => {
            if !swap(region, at, left, Span::Slots { client, class: found }) {
                return false;
            }
            // Nothing is allocated there now, so that what is empty stays so.
            if found != class && !is_empty(region, at) {
                region.words.set_word(region.layout.span(at), left.word());
                return false;
            }
            region.words.set_word(region.layout.span(at), own.word());
            true
        }
        _ => false,
    }
}

/// Frees spans of dead clients that are empty by now.
pub(crate) fn free_left<P: Platform>(region: &Region<P>) {
    for at in region.layout.spans() {
        if let Some(left @ Span::Slots { client: 0, .. }) = span(region, at)
            && is_empty(region, at)
        {
            // Without a client, nothing is allocated in it meanwhile.
            swap(region, at, left, Span::Free);
        }
    }
}

/// Gives back a span in which the client has nothing.
pub(crate) fn give_back<P: Platform>(region: &Region<P>, id: ClientId, at: u32) {
    region.words.set_word(region.layout.span(at), Span::Free.word());
    unmark(region, id, at);
}

/// Whether no object is in a span.
pub(crate) fn is_empty<P: Platform>(region: &Region<P>, span: u32) -> bool {
    let first = first_granule(span);
    let mut granules = (first..first + SPAN_GRANULES).step_by(8);
    granules.all(|granule| region.words.word(region.layout.owner(granule)) == u64::from(FREE))
}

/// Bytes from the beginning of an object to the end of its slot or run. `None` if no object can begin there.
pub(crate) fn room<P: Platform>(region: &Region<P>, granule: u32) -> Option<u64> {
    let at = span_of(granule);
    let within = granule - first_granule(at);
    match span(region, at)? {
        Span::Slots { class, .. } => {
            let slot = within.checked_sub(class.lead())?;
            let is_slot =
                slot.is_multiple_of(class.granules()) && slot / class.granules() < class.slots();
            is_slot.then(|| class.usable_bytes())
        }
        Span::Run { spans, .. } if within == 0 && spans > 0 => {
            let end = at.checked_add(spans).filter(|end| *end <= region.layout.end_span);
            end.map(|_| u64::from(spans) * SPAN_BYTES)
        }
        _ => None,
    }
}

/// Free slots that a look finds.
pub(crate) struct Found {
    granules: [u32; GATHERED],
    count: usize,
}

impl Found {
    pub(crate) fn new() -> Found {
        Found { granules: [0; GATHERED], count: 0 }
    }

    pub(crate) fn granules(&self) -> &[u32] {
        &self.granules[..self.count]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == GATHERED
    }

    /// Adds free slots of a span, while there is room. Returns the slot at which the next look begins.
    pub(crate) fn gather<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
        span: u32,
        slots: Range<u32>,
    ) -> u32 {
        let (first, granules) = (first_granule(span) + class.lead(), class.granules());
        let (mut slot, mut count) = (slots.start, self.count);
        while slot < slots.end && count < GATHERED {
            let granule = first + slot * granules;
            // Without a branch: which slots are free is hard to foresee.
            self.granules[count] = granule;
            count += usize::from(region.owners.byte(granule as usize) == FREE);
            slot += 1;
        }
        self.count = count;
        slot
    }
}

/// Marks a span as one in which the client may have something.
pub(crate) fn mark<P: Platform>(region: &Region<P>, id: ClientId, span: u32) {
    let at = region.layout.mark(id, span);
    region.words.set_word(at, region.words.word(at) | bit(span));
}

/// The client has nothing there.
pub(crate) fn unmark<P: Platform>(region: &Region<P>, id: ClientId, span: u32) {
    let at = region.layout.mark(id, span);
    region.words.set_word(at, region.words.word(at) & !bit(span));
}

fn bit(span: u32) -> u64 {
    1 << (span % 64)
}

/// Marked spans of a client.
pub(crate) fn marked<P: Platform>(region: &Region<P>, id: ClientId) -> impl Iterator<Item = u32> {
    let words = 0..region.layout.mark_words();
    let spans = words.flat_map(move |word| {
        let bits = region.words.word(region.layout.marks(id, word));
        (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word as u32 * 64 + bit)
    });
    let all = region.layout.spans();
    spans.filter(move |span| all.contains(span))
}
