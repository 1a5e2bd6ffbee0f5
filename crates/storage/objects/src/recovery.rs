//! What a dead client leaves, given back.
//!
//! The order matters, as recovery may be killed between any two stores and is then started again from the
//! beginning by another client:
//! 1. Slots that name granules of the dead client are emptied: a send that did not commit, or a receive that
//!    did. A granule that were freed first could be sent again, and two slots would name it.
//! 2. The client's ends of mailboxes become free. Before step 1, a new client could meet the slots.
//! 3. Its granules become free.
//! 4. Its spans become free.
//! 5. Its id becomes free. Until then every client that opens the region or looks for memory recovers it.

use crate::error::ObjectsError;
use crate::layout::{ClientId, FREE, LEAVING, Layout, MAILBOXES, slot_parts};
use crate::region::{Platform, Region, has_fault};
use crate::words::Words;

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
        free_granules(words, layout, id);
    }
    let mailboxes = (0..MAILBOXES).filter(|index| region.mailbox_name(*index).is_some());
    for index in mailboxes.clone() {
        clear_slots(region, index, id);
    }
    let number = u64::from(id.number());
    for at in mailboxes.map(|index| layout.mailbox(index)) {
        for end in [at.sender(), at.receiver()] {
            if words.word(end) == number {
                words.set_word(end, 0);
            }
        }
    }
    free_granules(words, layout, id);
    for span in 0..layout.spans {
        if words.byte(layout.span(span)) == id.number() {
            words.set_byte(layout.span(span), FREE);
        }
    }
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
        let is_its = granule < layout.granules && words.byte(layout.owner(granule)) == id.number();
        if is_its {
            words.set_word(at.slot(slot), 0);
        }
    }
}

fn free_granules<W: Words>(words: &W, layout: &Layout, id: ClientId) {
    for granule in (0..layout.granules).step_by(8) {
        let mut bytes = words.word(layout.owner(granule));
        if bytes == 0 {
            continue;
        }
        for granule in granule..granule + 8 {
            if bytes as u8 == id.number() {
                words.set_byte(layout.owner(granule), FREE);
            }
            bytes >>= 8;
        }
    }
}
