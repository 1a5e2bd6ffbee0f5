//! Structures that several clients hold by their roots, and one of them changes.
//!
//! ```text
//!  record, an object of its own with the owner byte SHARED
//!      0  state: 1 << 63 + id of the record, 256 + client while that client frees it      8  granule of the root
//!     16  client that writes, 0: none, + 256: may take it   24  objects that the writer has unlinked, while others may read them
//!     32  for each mailbox, a byte: 1 if it may have carried the structure
//!     64  for each client, a byte: 1 while it holds the structure                 200  for each client, a word: moves
//!    192  where metadata is node-local: seal, by which a rebuild knows the record (see `rebuild.rs`)
//! ```
//! Only the root is counted: a client holds it or does not. The bytes of holders and the words of moves have one
//! writer each, the client. A slot of a mailbox that names the record holds the structure, too; the store that fills
//! or empties the slot commits.
//!
//! Whether a structure is held is found out by looking: at all moves, all holders, all slots of its mailboxes,
//! and all moves again. A client counts a move before it sends, and after it has become a holder by receiving. If
//! the moves are the same before and after, no reference went from where the look had not been to where it had
//! been. The last one to give up its hold sees that: it swaps its byte, which orders its looks after it. It looks at
//! memory that it no longer holds. Another client may have freed the structure meanwhile, and a third one may have
//! something else there: then the id of the record is another, and the swap of the state fails.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::layout::{CLIENTS, ClientId, MAILBOXES, SHARED, slot_parts, span_of};
use crate::nodes::{Actor, next, node};
use crate::redo::Redo;
use crate::region::{Platform, Region, has_fault};
use crate::spans::room;
use crate::trailers::seal;
use crate::words::Words;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 1216;
const DYING: u64 = 256;
/// In the state of a record that is in use. Above it, what makes it another one than all before it in its place.
const LIVE: u64 = 1 << 63;
/// In the word of the writer: passed on to that client, which has not taken it yet.
pub(crate) const OFFERED: u64 = 256;

/// A record by its granule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Record(pub(crate) u32);

impl Record {
    fn at<P: Platform>(self, region: &Region<P>, offset: usize) -> usize {
        region.layout.granule(self.0) as usize + offset
    }

    fn root_at<P: Platform>(self, region: &Region<P>) -> usize {
        self.at(region, 8)
    }

    pub(crate) fn writer_at<P: Platform>(self, region: &Region<P>) -> usize {
        self.at(region, 16)
    }

    pub(crate) fn deferred_at<P: Platform>(self, region: &Region<P>) -> usize {
        self.at(region, 24)
    }

    fn carried_at<P: Platform>(self, region: &Region<P>, mailbox: usize) -> usize {
        self.at(region, 32 + mailbox)
    }

    fn holder_at<P: Platform>(self, region: &Region<P>, id: ClientId) -> usize {
        self.at(region, 64 + usize::from(id.number()))
    }

    fn moves_at<P: Platform>(self, region: &Region<P>, id: ClientId) -> usize {
        self.at(region, 192 + 8 * usize::from(id.number()))
    }

    fn seal_at<P: Platform>(self, region: &Region<P>) -> usize {
        self.at(region, 192)
    }

    /// Seals a record that a rebuild of metadata is to know.
    fn set_seal<P: Platform>(self, region: &Region<P>) {
        if let Some(generation) = region.generation {
            region.words.set_word(self.seal_at(region), self.seal(region, generation));
        }
    }

    fn seal<P: Platform>(self, region: &Region<P>, generation: u64) -> u64 {
        seal(region, self.0, self.state(region) ^ generation.rotate_left(32))
    }

    /// Whether it is a record that was sealed in one of these generations, and that no client is freeing.
    pub(crate) fn sealed<P: Platform>(self, region: &Region<P>, generations: &[u64]) -> bool {
        let has_room = room(region, self.0).is_some_and(|bytes| bytes >= RECORD_BYTES as u64);
        let is_it = |of: &u64| region.words.word(self.seal_at(region)) == self.seal(region, *of);
        has_room && self.state(region) & LIVE != 0 && generations.iter().any(is_it)
    }

    /// Has no holders and no writer any more.
    pub(crate) fn renew<P: Platform>(self, region: &Region<P>) {
        self.set_seal(region);
        for at in [self.writer_at(region), self.deferred_at(region)] {
            region.words.set_word(at, 0);
        }
        for id in ClientId::all() {
            region.words.set_byte(self.holder_at(region, id), 0);
        }
        for index in 0..MAILBOXES {
            region.words.set_byte(self.carried_at(region, index), 0);
        }
    }

    /// A mailbox may carry it.
    pub(crate) fn set_carried<P: Platform>(self, region: &Region<P>, mailbox: usize) {
        region.words.set_byte(self.carried_at(region, mailbox), 1);
    }

    /// Granule of the root. `None` while the structure is being freed.
    pub(crate) fn root<P: Platform>(self, region: &Region<P>) -> Option<u32> {
        region.granule_in_spans(region.words.word(self.root_at(region)))
    }

    pub(crate) fn is_holder<P: Platform>(self, region: &Region<P>, id: ClientId) -> bool {
        region.words.byte(self.holder_at(region, id)) == 1
    }

    /// Before a send through a mailbox.
    pub(crate) fn count_send<P: Platform>(self, region: &Region<P>, id: ClientId, mailbox: usize) {
        self.set_carried(region, mailbox);
        self.count_move(region, id);
    }

    /// Becomes a holder, before the slot is emptied.
    pub(crate) fn hold<P: Platform>(self, region: &Region<P>, id: ClientId) {
        region.words.set_byte(self.holder_at(region, id), 1);
        self.count_move(region, id);
    }

    fn count_move<P: Platform>(self, region: &Region<P>, id: ClientId) {
        let at = self.moves_at(region, id);
        region.words.set_word(at, region.words.word(at).wrapping_add(1));
    }

    fn state<P: Platform>(self, region: &Region<P>) -> u64 {
        region.words.word(self.at(region, 0))
    }

    /// Whether a client but `except`, or a mailbox, holds the structure of this state, or it has another one.
    fn is_held<P: Platform>(
        self,
        region: &Region<P>,
        state: u64,
        except: Option<ClientId>,
    ) -> bool {
        let moves = || ClientId::all().map(|id| region.words.word(self.moves_at(region, id)));
        loop {
            let before: Vec<u64> = moves().collect();
            let mut ids = ClientId::all().filter(|id| Some(*id) != except);
            if ids.any(|id| self.is_holder(region, id)) {
                return true;
            }
            let mut mailboxes = (0..MAILBOXES)
                .filter(|index| region.words.byte(self.carried_at(region, *index)) == 1);
            if mailboxes.any(|index| self.is_in_mailbox(region, index)) {
                return true;
            }
            if moves().eq(before) {
                return false;
            }
            if self.state(region) != state {
                return true;
            }
        }
    }

    fn is_in_mailbox<P: Platform>(self, region: &Region<P>, index: usize) -> bool {
        let at = region.layout.mailbox(index);
        (0..region.slots(index)).any(|slot| {
            let word = region.words.word(at.slot(slot));
            word != 0 && slot_parts(word).1 == self.0
        })
    }
}

/// The record at a granule, if there is one.
pub(crate) fn record_at<P: Platform>(region: &Region<P>, granule: u32) -> Option<Record> {
    let is_one = region.layout.spans().contains(&span_of(granule))
        && region.words.byte(region.layout.owner(granule)) == SHARED;
    is_one.then_some(Record(granule))
}

/// The record of a shared structure, by its root.
pub(crate) fn record_of<P: Platform>(region: &Region<P>, root: u32) -> Option<Record> {
    node(region, root)?;
    let granule = region.granule_in_spans(region.words.word(next(region, root)))?;
    record_at(region, granule).filter(|record| record.root(region) == Some(root))
}

impl<P: Platform> Actor<'_, P> {
    /// Makes a structure whose root the client owns a shared one. `granule` is a new object of the client.
    pub(crate) fn share(&mut self, root: u32, granule: u32) -> Record {
        let (region, record) = (self.region, Record(granule));
        for word in (0..RECORD_BYTES).step_by(8) {
            region.words.set_word(record.at(region, word), 0);
        }
        region.words.set_word(record.at(region, 0), new_state(self.id));
        region.words.set_word(record.root_at(region), u64::from(root));
        region.words.set_word(record.writer_at(region), u64::from(self.id.number()));
        region.words.set_byte(record.holder_at(region, self.id), 1);
        let seal = region.generation.map(|generation| record.seal(region, generation));
        if has_fault!(P, SealsBeforeCommit) {
            record.set_seal(region);
        }
        let mut redo = Redo::default();
        if let Some(seal) = seal {
            // Not before: of a client that dies here, the next owner of these bytes may send them as they are.
            redo.word(record.seal_at(region), seal);
        }
        redo.word(next(region, root), u64::from(granule));
        redo.byte(region.layout.owner(root), crate::layout::LINKED);
        redo.byte(region.layout.owner(granule), SHARED);
        redo.commit(region, self.id);
        record
    }

    /// Gives up the hold, and frees the structure if it was the last one.
    pub(crate) fn release(&mut self, record: Record) {
        let region = self.region;
        let state = record.state(region);
        let writer = record.writer_at(region);
        if region.words.word(writer) == u64::from(self.id.number()) {
            region.words.set_word(writer, 0);
        }
        let holder = record.holder_at(region, self.id);
        if has_fault!(P, HoldEndsByStore) {
            region.words.set_byte(holder, 0);
        } else {
            // A swap: the looks that follow must not come before it.
            region.words.claim_byte(holder, 1, 0);
        }
        self.free_if_left(record, state);
    }

    fn free_if_left(&mut self, record: Record, state: u64) {
        let region = self.region;
        if state & LIVE == 0 || record.is_held(region, state, None) {
            return;
        }
        let own = DYING + u64::from(self.id.number());
        if region.words.claim_word(record.at(region, 0), state, own) {
            self.free_structure(record);
        }
    }

    /// Frees what the writer has unlinked, if no other client reads the structure; returns whether.
    pub(crate) fn collect(&mut self, record: Record) -> bool {
        let state = record.state(self.region);
        if record.is_held(self.region, state, Some(self.id)) {
            return false;
        }
        self.free_dying();
        while self.move_dying(record.deferred_at(self.region)) {}
        self.free_dying();
        true
    }

    /// Frees a structure that no client holds, and its record. May have been begun before.
    fn free_structure(&mut self, record: Record) {
        let region = self.region;
        self.mark(span_of(record.0));
        // One list that ends is moved to the beginning of another one, so that this ends.
        self.free_dying();
        while self.move_dying(record.deferred_at(region)) {}
        if let Some(root) = record.root(region) {
            let dying = region.layout.dying(self.id);
            let mut redo = Redo::default();
            redo.word(next(region, root), region.words.word(dying));
            redo.word(dying, u64::from(root));
            redo.word(record.root_at(region), 0);
            redo.commit(region, self.id);
        }
        self.free_dying();
        let owner = region.layout.owner(record.0);
        region.words.set_byte(owner, self.id.number());
        region.words.set_byte(owner, crate::layout::FREE); // commits
        if let Some(keeper) = &mut self.keeper {
            keeper.count_freed();
        }
    }

    /// What a dead client held, wrote or was freeing. The caller holds the client's claim.
    pub(crate) fn recover_record(&mut self, record: Record) {
        let region = self.region;
        let number = u64::from(self.id.number());
        let state = record.state(region);
        if state == DYING + number {
            self.free_structure(record);
        } else if record.is_holder(region, self.id)
            || region.words.word(record.writer_at(region)) == number
        {
            self.release(record);
        } else {
            // It may have died after it had given up its hold.
            // Still the record of this state, or the swap fails.
            self.free_if_left(record, state);
        }
    }
}

/// A state that no record in the same place had before.
fn new_state(id: ClientId) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = now.as_nanos() as u64 & ((1 << 55) - 1);
    LIVE | u64::from(id.number()) << 55 | moment
}

const _: () = assert!(192 + 8 * (CLIENTS as usize + 1) <= RECORD_BYTES);
const _: () = assert!(64 + (CLIENTS as usize) < 192 && 32 + MAILBOXES <= 64);
