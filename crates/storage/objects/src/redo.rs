//! Several stores that happen all or not at all: written down first, and done again by the recovery.
//!
//! ```text
//!  1  entries of the client: where, what      invisible
//!  2  number of entries := n                  commits
//!  3  the stores themselves                   done again, in this order, if the client dies
//!  4  number of entries := 0                  done
//! ```
//! Doing them again is right, because until step 4 no other client writes where they go: it all belongs to
//! the client or to a structure whose writer it is. Entries hold values, never differences.

use crate::layout::{ClientId, SPAN_BYTES, first_granule};
use crate::region::{Platform, Region, has_fault};
use crate::words::Words;

/// Most stores. A client has room for them, see [`crate::layout`].
pub(crate) const MOST_STORES: usize = 11;
/// In the place of an entry: one byte, not a word.
const IS_BYTE: u64 = 1 << 63;

/// Stores that belong together.
#[derive(Debug, Default)]
pub(crate) struct Redo {
    entries: [(u64, u64); MOST_STORES],
    count: usize,
}

impl Redo {
    /// Adds the store of a word. Panics beyond [`MOST_STORES`].
    pub(crate) fn word(&mut self, at: usize, value: u64) {
        self.entries[self.count] = (at as u64, value);
        self.count += 1;
    }

    /// Adds the store of a byte.
    pub(crate) fn byte(&mut self, at: usize, value: u8) {
        self.entries[self.count] = (at as u64 | IS_BYTE, u64::from(value));
        self.count += 1;
    }

    /// Does them all, on behalf of a client.
    pub(crate) fn commit<P: Platform>(&self, region: &Region<P>, id: ClientId) {
        let Region { words, layout, .. } = region;
        let entries = &self.entries[..self.count];
        if has_fault!(P, StoresBeforeIntent) {
            entries.iter().for_each(|entry| store(region, *entry));
        }
        if has_fault!(P, IntentCommitsFirst) {
            words.set_word(layout.redo_count(id), self.count as u64);
        }
        for (index, (at, value)) in entries.iter().enumerate() {
            words.set_word(layout.redo_entry(id, index), *at);
            words.set_word(layout.redo_entry(id, index) + 8, *value);
        }
        words.set_word(layout.redo_count(id), self.count as u64); // commits
        entries.iter().for_each(|entry| store(region, *entry));
        words.set_word(layout.redo_count(id), 0);
    }
}

/// Completes what a dead client has committed. The caller holds the client's claim.
pub(crate) fn replay<P: Platform>(region: &Region<P>, id: ClientId) {
    let Region { words, layout, .. } = region;
    let count = words.word(layout.redo_count(id));
    if count == 0 {
        return;
    }
    for index in 0..MOST_STORES.min(count as usize) {
        let at = layout.redo_entry(id, index);
        let (place, value) = (words.word(at), words.word(at + 8));
        if is_place(region, id, place) {
            store(region, (place, value));
        }
    }
    words.set_word(layout.redo_count(id), 0);
}

/// Whether stores that belong together go there: to objects, owner bytes and the client's own list. An entry that was
/// damaged must not reach other tables.
fn is_place<P: Platform>(region: &Region<P>, id: ClientId, place: u64) -> bool {
    let within = place & !IS_BYTE;
    let spans = region.layout.spans();
    match place & IS_BYTE {
        0 if within == region.layout.dying(id) as u64 => true,
        0 => {
            let span = within / SPAN_BYTES;
            within.is_multiple_of(8) && (spans.start.into()..spans.end.into()).contains(&span)
        }
        _ => {
            let owner = |span| region.layout.owner(first_granule(span)) as u64;
            (owner(spans.start)..owner(spans.end)).contains(&within)
        }
    }
}

fn store<P: Platform>(region: &Region<P>, (place, value): (u64, u64)) {
    match place & IS_BYTE {
        0 => region.words.set_word(place as usize, value),
        _ => region.words.set_byte((place & !IS_BYTE) as usize, value as u8),
    }
}
