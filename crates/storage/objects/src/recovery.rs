//! What a dead client leaves, given back.
//!
//! The order matters, as recovery may be killed between any two stores and is then started again from the
//! beginning by another client:
//! 1. In mailboxes of which the client has an end, slots that name its objects are emptied: a send that did
//!    not commit, or a receive that did. An object that were freed first could be sent again, and two slots
//!    would name it. Then the end becomes free. Before, a new client could meet the slots.
//! 2. In the spans that it has marked, its objects become free, and the spans, unless objects of others
//!    are in them: such a span is left without a client, and the next one that needs it takes it.
//! 3. Its marks are cleared.
//! 4. Its id becomes free. Until then every client that opens the region or looks for memory recovers it.
//!
//! So the cost follows from the spans in which the client has had something, beside a look at the marks (a bit for
//! each 64 KiB of the region) and at the mailboxes.

use crate::error::ObjectsError;
use crate::layout::{ClientId, FREE, LEAVING, MAILBOXES, SPAN_GRANULES, first_granule, slot_parts};
use crate::region::{Platform, Region, has_fault};
use crate::span::Span;
use crate::words::Words;
use crate::{runs, spans};

impl<P: Platform> Region<P> {
    /// Recovers the dead clients that it finds; returns their number.
    ///
    /// # Errors
    /// [`ObjectsError::Io`].
    pub fn recover(&self) -> Result<usize, ObjectsError> {
        recover_dead(self)
    }
}

/// The same.
pub(crate) fn recover_dead<P: Platform>(region: &Region<P>) -> Result<usize, ObjectsError> {
    let mut recovered = 0;
    for id in ClientId::all().filter(|id| region.is_in_use(*id)) {
        recovered += usize::from(recover_if_dead(region, id)?);
    }
    Ok(recovered)
}

/// Recovers a client if it is dead; returns whether it was. Another process that is just recovering it counts
/// as the client.
pub(crate) fn recover_if_dead<P: Platform>(
    region: &Region<P>,
    id: ClientId,
) -> Result<bool, ObjectsError> {
    if region.is_alive(id)? {
        return Ok(false);
    }
    let Some(_claim) = region.claim(id)? else { return Ok(false) };
    // Another client may have recovered it meanwhile.
    let is_left = region.is_in_use(id);
    if is_left {
        give_back(region, id);
    }
    Ok(is_left)
}

/// Gives back what a client has. The caller holds the client's claim.
pub(crate) fn give_back<P: Platform>(region: &Region<P>, id: ClientId) {
    let Region { words, layout, .. } = region;
    let state = if has_fault!(P, RecoveryFreesIdFirst) { 0 } else { LEAVING };
    words.set_word(layout.client(id), state);
    if has_fault!(P, RecoveryFreesBeforeSlots) {
        free_objects(region, id);
    }
    let number = u64::from(id.number());
    let ends = |index: usize| [layout.mailbox(index).sender(), layout.mailbox(index).receiver()];
    let has_end = |index: &usize| ends(*index).iter().any(|end| words.word(*end) == number);
    for index in (0..MAILBOXES).filter(has_end) {
        clear_slots(region, index, id);
        for end in ends(index) {
            if words.word(end) == number {
                words.set_word(end, 0);
            }
        }
    }
    if has_fault!(P, RecoveryClearsMarksFirst) {
        let objects: Vec<u32> = spans::marked(region, id).collect();
        clear_marks(region, id);
        objects.into_iter().for_each(|span| free_in_span(region, id, span));
    }
    free_objects(region, id);
    clear_marks(region, id);
    words.set_word(layout.client(id), 0);
}

fn clear_slots<P: Platform>(region: &Region<P>, index: usize, id: ClientId) {
    let Region { words, layout, .. } = region;
    let at = layout.mailbox(index);
    for slot in 0..region.slots(index) {
        let word = words.word(at.slot(slot));
        if word == 0 {
            continue;
        }
        let (_, granule) = slot_parts(word);
        if words.byte_within(layout.owner(granule)) == Some(id.number()) {
            words.set_word(at.slot(slot), 0);
        }
    }
}

fn clear_marks<P: Platform>(region: &Region<P>, id: ClientId) {
    for at in (0..region.layout.mark_words()).map(|word| region.layout.marks(id, word)) {
        if region.words.word(at) != 0 {
            region.words.set_word(at, 0);
        }
    }
}

/// Frees objects and spans. From low to high: the first span of a run before the others.
fn free_objects<P: Platform>(region: &Region<P>, id: ClientId) {
    spans::marked(region, id).for_each(|span| free_in_span(region, id, span));
}

fn free_in_span<P: Platform>(region: &Region<P>, id: ClientId, at: u32) {
    match spans::span(region, at) {
        Some(Span::Slots { client, class }) if client == id.number() => {
            free_slots(region, id, at, true);
            let left = match spans::is_empty(region, at) {
                true => Span::Free,
                false => Span::Slots { client: 0, class },
            };
            region.words.set_word(region.layout.span(at), left.word());
        }
        Some(Span::Slots { .. }) => free_slots(region, id, at, false),
        _ => runs::recover(region, id, at),
    }
}

/// Frees the client's objects in a span of slots.
fn free_slots<P: Platform>(region: &Region<P>, id: ClientId, at: u32, is_own: bool) {
    let Region { words, layout, .. } = region;
    let first = first_granule(at);
    for granule in (first..first + SPAN_GRANULES).step_by(8) {
        let owners = words.word(layout.owner(granule)).to_le_bytes();
        if owners == [FREE; 8] {
            continue;
        }
        // No other client writes to these bytes then: none allocates in the dead client's span.
        if is_own && owners.iter().all(|owner| [FREE, id.number()].contains(owner)) {
            words.set_word(layout.owner(granule), u64::from(FREE));
            continue;
        }
        for (granule, owner) in (granule..).zip(owners) {
            if owner == id.number() {
                words.set_byte(layout.owner(granule), FREE);
            }
        }
    }
}
