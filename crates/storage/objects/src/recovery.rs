//! What a dead client leaves, given back.
//!
//! The order matters, as recovery may be killed between any two stores and is then started again from the
//! beginning by another client:
//! 0. The guarded operation that it was in is completed ([`intents`]) by a process that has its code. No other step
//!    is done before. Its locks become free.
//! 1. In mailboxes of which the client has an end, slots that name its objects are emptied: a send that did
//!    not commit, or a receive that did. An object that were freed first could be sent again, and two slots
//!    would name it. Then the end becomes free. Before, a new client could meet the slots.
//! 2. Structures: what it was freeing, what it owns the roots of, and shared ones that it held last ([`Actor`]).
//!    Before, what it was storing is completed ([`redo`]).
//! 3. In the spans that it has marked, its objects become free, and the spans, unless objects of others
//!    are in them: such a span is left without a client, and the next one that needs it takes it.
//! 4. Its marks are cleared.
//! 5. Its id becomes free. Until then every client that opens the region or looks for memory recovers it.
//!
//! So the cost follows from the spans in which the client has had something, beside a look at the marks (a bit for
//! each 64 KiB of the region) and at the mailboxes.

use crate::error::ObjectsError;
use crate::intents::Settled;
use crate::layout::{
    ClientId, FREE, LEAVING, MAILBOXES, SHARED, SPAN_GRANULES, first_granule, slot_parts,
};
use crate::nodes::{Actor, has_references};
use crate::region::{Platform, Region, has_fault};
use crate::shared::{RECORD_BYTES, record_at};
use crate::span::Span;
use crate::wakes::{Side, wake_sleeper};
use crate::words::Words;
use crate::{intents, locks, redo, runs, spans};

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
/// as the client. A dead client stays in a guarded operation that this process cannot complete.
pub(crate) fn recover_if_dead<P: Platform>(
    region: &Region<P>,
    id: ClientId,
) -> Result<bool, ObjectsError> {
    // Within an operation of its own, this thread may hold what the other operation waits for.
    recover(region, id, !intents::is_inside())
}

/// The same for the holder of a lock that this thread waits for within an operation. Locks are taken in the order of their
/// numbers, so that the other operation waits for nothing that this thread holds.
pub(crate) fn recover_holder<P: Platform>(
    region: &Region<P>,
    id: ClientId,
) -> Result<bool, ObjectsError> {
    recover(region, id, true)
}

fn recover<P: Platform>(
    region: &Region<P>,
    id: ClientId,
    may_complete: bool,
) -> Result<bool, ObjectsError> {
    if region.is_alive(id)? {
        return Ok(false);
    }
    let Some(claim) = region.claim(id)? else { return Ok(false) };
    // Another client may have recovered it meanwhile.
    if !region.is_in_use(id) {
        return Ok(false);
    }
    if !has_fault!(P, RecoveryForgetsGuard) {
        match intents::settle(region, id, may_complete) {
            Settled::None => {}
            Settled::Later => return Ok(false),
            Settled::Run(completion) => {
                redo::replay(region, id);
                clear_all_slots(region, id);
                completion(region, id, claim);
                return Ok(true);
            }
        }
    }
    give_back(region, id);
    Ok(true)
}

/// Takes a role away from a client that does not exist, which only damage can name; returns whether there is none. A
/// recovery takes all roles away before the id is free.
pub(crate) fn forget_unknown<P: Platform>(
    region: &Region<P>,
    id: ClientId,
    role: usize,
) -> Result<bool, ObjectsError> {
    if region.is_in_use(id) {
        return Ok(false);
    }
    // With the claim, no client can get the id meanwhile.
    let Some(_claim) = region.claim(id)? else { return Ok(false) };
    let is_unknown = !region.is_in_use(id);
    if is_unknown {
        region.words.claim_word(role, u64::from(id.number()), 0);
    }
    Ok(is_unknown)
}

/// Whether a dead client is left in a guarded operation.
pub(crate) fn is_left<P: Platform>(region: &Region<P>, id: ClientId) -> Result<bool, ObjectsError> {
    Ok(intents::pending(region, id).is_some() && !region.is_alive(id)?)
}

/// Gives back what a client has. The caller holds the client's claim.
pub(crate) fn give_back<P: Platform>(region: &Region<P>, id: ClientId) {
    let Region { words, layout, .. } = region;
    let state = if has_fault!(P, RecoveryFreesIdFirst) { 0 } else { LEAVING };
    words.set_word(layout.client(id), state);
    if !has_fault!(P, RecoveryForgetsIntent) {
        redo::replay(region, id);
    }
    words.set_word(layout.redo_count(id), 0);
    if has_fault!(P, RecoveryFreesBeforeSlots) {
        free_objects(region, id);
    }
    if words.word(layout.guard(id)) != 0 {
        words.set_word(layout.guard(id), 0);
    }
    locks::release_all(region, id);
    let number = u64::from(id.number());
    for index in with_end(region, id) {
        clear_slots(region, index, id);
        let at = layout.mailbox(index);
        let sides = [Side::Sender, Side::Receiver];
        for ((end, own), other) in
            ends(region, index).into_iter().zip(sides).zip(sides.iter().rev())
        {
            if words.word(end) == number {
                words.set_word(own.sleeps(at), 0);
                // Perhaps it was about to. The sleeper looks again.
                wake_sleeper(region, at, *other);
                words.set_word(end, 0);
            }
        }
    }
    if has_fault!(P, RecoveryClearsMarksFirst) {
        let objects: Vec<u32> = spans::marked(region, id).collect();
        clear_marks(region, id);
        objects.into_iter().for_each(|span| free_in_span(region, id, span));
    }
    free_structures(region, id);
    free_objects(region, id);
    clear_marks(region, id);
    words.set_word(layout.client(id), 0);
}

/// Frees what the client was freeing, structures whose roots it owns, and shared ones that it held as the last one.
fn free_structures<P: Platform>(region: &Region<P>, id: ClientId) {
    let mut actor = Actor { region, id, keeper: None };
    actor.free_dying();
    let marked: Vec<u32> = spans::marked(region, id).collect();
    for at in marked {
        let Some(Span::Slots { class, .. }) = spans::span(region, at) else { continue };
        let wanted = match class {
            class if class.is_counted() => id.number(),
            class if class.bytes() >= RECORD_BYTES as u64 => SHARED,
            _ => continue,
        };
        for slot in 0..class.slots() {
            let granule = first_granule(at) + slot * class.granules() + class.lead();
            if region.words.byte(region.layout.owner(granule)) != wanted {
                continue;
            }
            match record_at(region, granule) {
                Some(record) => actor.recover_record(record),
                None if has_references(region, granule) => {
                    actor.let_die(granule);
                    actor.free_dying();
                }
                None => {}
            }
        }
    }
}

fn ends<P: Platform>(region: &Region<P>, index: usize) -> [usize; 2] {
    let at = region.layout.mailbox(index);
    [at.sender(), at.receiver()]
}

/// Mailboxes of which the client has an end.
fn with_end<P: Platform>(region: &Region<P>, id: ClientId) -> impl Iterator<Item = usize> {
    let is_own = move |end: &usize| region.words.word(*end) == u64::from(id.number());
    (0..MAILBOXES).filter(move |index| ends(region, *index).iter().any(is_own))
}

/// Empties slots of sends that did not commit, and of receives that did.
fn clear_all_slots<P: Platform>(region: &Region<P>, id: ClientId) {
    with_end(region, id).for_each(|index| clear_slots(region, index, id));
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
            // None allocates there now, so that what is empty stays so.
            let left = match free_slots(region, id, at, true) || spans::is_empty(region, at) {
                true => Span::Free,
                false => Span::Slots { client: 0, class },
            };
            region.words.set_word(region.layout.span(at), left.word());
        }
        Some(Span::Slots { .. }) => {
            free_slots(region, id, at, false);
        }
        _ => runs::recover(region, id, at),
    }
}

/// Frees the client's objects in a span of slots; returns whether it has seen none of others.
fn free_slots<P: Platform>(region: &Region<P>, id: ClientId, at: u32, is_own: bool) -> bool {
    let Region { words, layout, .. } = region;
    let (first, mut is_alone) = (first_granule(at), true);
    for granule in (first..first + SPAN_GRANULES).step_by(8) {
        let owners = words.word(layout.owner(granule));
        if owners == u64::from(FREE) {
            continue;
        }
        // No other client writes to these bytes then: none allocates in the dead client's span.
        if is_own && has_only(owners, id) {
            words.set_word(layout.owner(granule), u64::from(FREE));
            continue;
        }
        for (granule, owner) in (granule..).zip(owners.to_le_bytes()) {
            if owner == id.number() {
                words.set_byte(layout.owner(granule), FREE);
            } else {
                is_alone &= owner == FREE;
            }
        }
    }
    is_alone
}

/// Whether each of eight owner bytes is 0 or the client's.
fn has_only(owners: u64, id: ClientId) -> bool {
    const LOW_BITS: u64 = u64::MAX / 255 * 0x7f;
    // The highest bit of each byte: whether it is not 0. Then 1 for it, then all bits of it.
    let taken = (((owners & LOW_BITS) + LOW_BITS) | owners) & !LOW_BITS;
    owners == (taken >> 7) * u64::from(id.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_owner_bytes_are_compared_at_once() {
        let bytes = [0u8, 1, 2, 0x7e, 0x7f, 0x80, 0xff];
        for id in ClientId::all().filter(|id| bytes.contains(&id.number())) {
            for (place, first) in (0..8).flat_map(|place| bytes.map(|first| (place, first))) {
                for rest in bytes {
                    let mut owners = [rest; 8];
                    owners[place] = first;
                    let expected = owners.iter().all(|owner| [0, id.number()].contains(owner));
                    assert_eq!(has_only(u64::from_le_bytes(owners), id), expected, "{owners:?}");
                }
            }
        }
    }
}
