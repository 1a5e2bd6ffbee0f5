//! Lost metadata, rebuilt from what the region holds.
//!
//! No client lives, and what the dead ones had is free. So an object that lives on is one that a mailbox names, or
//! can be reached from there:
//!
//! ```text
//!  slots ─► objects, records of shared structures ─► roots ─► references ─► objects     counted anew
//!             │ owner byte: in a mailbox │ shared      linked                 linked
//!  spans   with one of these: kept, without a client; others: free
//! ```
//! When the node was lost, clients may have been in the middle of anything. The region has a prefix of each one's stores there:
//! 1. A message counts as sent when the tail has passed it, and as received when its slot is empty. A client that died
//!    between these stores and those of owner bytes never returned from its call.
//! 2. A change of a structure has happened if the reference is stored. The counts beside it are not believed.
//! 3. A record is known by a seal, not by its owner byte. A seal has the generation of the metadata, so that
//!    what a lost structure left in free memory is not taken for a record later. It is there only when the structure is shared, so
//!    that what a killed client left is not, either.
//!
//! It may be killed between any two stores, and is then started again from the beginning with another empty file. So
//! what it stores in the region says the same when it is read again.

use std::collections::HashSet;

use crate::layout::{
    ClientId, FREE, IN_MAILBOX, LINKED, LOCKS, MAILBOXES, MailboxLayout, SHARED, first_granule,
    slot_parts, span_of,
};
use crate::nodes::{Node, header, header_word, next, node};
use crate::region::{Platform, Region, has_fault};
use crate::shared::Record;
use crate::span::Span;
use crate::spans::{is_empty, room, span};
use crate::words::Words;

/// Each rebuild lets generations of objects in a checked region begin elsewhere.
const INCARNATIONS: u64 = 1009;

/// Rebuilds it in a file of zeros. The caller holds the claims of all clients; `last` is the lost generation.
pub(crate) fn rebuild<P: Platform>(region: &Region<P>, last: u64) {
    let mut rebuild = Rebuild { region, last, roots: HashSet::new(), to_follow: Vec::new() };
    for index in (0..MAILBOXES).filter(|index| region.mailbox_name(*index).is_some()) {
        rebuild.mailbox(index);
    }
    while let Some(granule) = rebuild.to_follow.pop() {
        rebuild.follow(granule);
    }
    for at in region.layout.spans() {
        let (found, left) = (span(region, at), left(region, at));
        if found != Some(left) {
            region.words.set_word(region.layout.span(at), left.word());
        }
    }
    for lock in 0..LOCKS {
        region.words.set_word(region.layout.lock(lock), 0);
        region.words.set_word(region.layout.lock_sleepers(lock), 0);
    }
    if region.header.is_checked {
        for id in ClientId::all() {
            let incarnation = last.wrapping_add(1).wrapping_mul(INCARNATIONS);
            region.words.set_word(region.layout.incarnation(id), incarnation);
        }
    }
}

struct Rebuild<'a, P: Platform> {
    region: &'a Region<P>,
    last: u64,
    /// Of shared structures. No reference means them.
    roots: HashSet<u32>,
    /// Objects whose references have not been looked at.
    to_follow: Vec<u32>,
}

impl<P: Platform> Rebuild<'_, P> {
    fn owner(&self, granule: u32) -> u8 {
        self.region.words.byte(self.region.layout.owner(granule))
    }

    fn set_owner(&self, granule: u32, owner: u8) {
        self.region.words.set_byte(self.region.layout.owner(granule), owner);
    }

    fn mailbox(&mut self, index: usize) {
        let region = self.region;
        let at = region.layout.mailbox(index);
        for slot in 0..region.slots(index) {
            let word = region.words.word(at.slot(slot));
            if word != 0 && !self.keep(index, slot, word) && !has_fault!(P, RebuildKeepsSlots) {
                region.words.set_word(at.slot(slot), 0);
            }
        }
        for end in [at.sender(), at.receiver(), at.sender_sleeps(), at.receiver_sleeps()] {
            region.words.set_word(end, 0);
        }
    }

    /// Keeps what a slot names; returns whether it is a message.
    fn keep(&mut self, index: usize, slot: u64, word: u64) -> bool {
        let region = self.region;
        let (sequence, granule) = slot_parts(word);
        let at = region.layout.mailbox(index);
        if !self.is_sent(at, region.slots(index), slot, sequence) || !self.is_place(granule) {
            return false;
        }
        if let Some(root) = self.sealed_root(granule) {
            self.keep_record(Record(granule), root, index);
            return true;
        }
        if self.owner(granule) != FREE {
            return false;
        }
        self.set_owner(granule, IN_MAILBOX);
        self.reach(granule, 0, 0);
        true
    }

    /// Whether the tail has passed a message, and the slot is its own.
    fn is_sent(&self, at: MailboxLayout, slots: u64, slot: u64, sequence: u32) -> bool {
        let behind = (self.region.words.word(at.tail()) as u32).wrapping_sub(sequence);
        let is_own = u64::from(sequence) & (slots - 1) == slot;
        is_own && ((1..=slots).contains(&u64::from(behind)) || has_fault!(P, RebuildKeepsUnsent))
    }

    fn is_place(&self, granule: u32) -> bool {
        self.region.layout.spans().contains(&span_of(granule))
            && room(self.region, granule).is_some()
            && self.is_whole(span_of(granule))
    }

    /// Whether a run has all of its spans. What was sent has: if one says something else, it was damaged, and is not given
    /// away twice.
    fn is_whole(&self, first: u32) -> bool {
        match span(self.region, first) {
            Some(Span::Run { spans, .. }) => (first + 1..first.saturating_add(spans))
                .all(|at| span(self.region, at) == Some(Span::Rest { first })),
            _ => true,
        }
    }

    /// The root, if the granule is that of a record.
    fn sealed_root(&self, granule: u32) -> Option<u32> {
        let generations = [self.last, self.last.wrapping_add(1)];
        let record = Record(granule);
        let root = record.sealed(self.region, &generations).then(|| record.root(self.region))??;
        (self.is_place(root) && node(self.region, root).is_some()).then_some(root)
    }

    fn keep_record(&mut self, record: Record, root: u32, mailbox: usize) {
        let region = self.region;
        if self.owner(record.0) == SHARED {
            return record.set_carried(region, mailbox);
        }
        record.renew(region);
        record.set_carried(region, mailbox);
        self.set_owner(record.0, SHARED);
        self.set_owner(root, LINKED);
        self.roots.insert(root);
        self.reach(root, 0, u64::from(record.0));
    }

    /// An object with this count, whose references are to be followed if it has some.
    fn reach(&mut self, granule: u32, count: u32, next_word: u64) {
        let region = self.region;
        let Some(found) = node(region, granule) else { return };
        if !has_fault!(P, RebuildKeepsCounts) {
            region.words.set_word(header(region, granule), header_word(found, count));
        }
        region.words.set_word(next(region, granule), next_word);
        self.to_follow.push(granule);
    }

    fn follow(&mut self, granule: u32) {
        let region = self.region;
        let Some(from) = node(region, granule) else { return };
        for at in (0..from.fields).map(|field| from.field(region, field)) {
            let word = region.words.word(at);
            if word == 0 {
                continue;
            }
            let target = region.granule_of(word).filter(|target| self.is_place(*target));
            let target = target.and_then(|target| node(region, target));
            if !target.is_some_and(|target| self.count(target)) {
                region.words.set_word(at, 0);
            }
        }
    }

    /// Counts a reference; returns whether it means something.
    fn count(&mut self, target: Node) -> bool {
        let region = self.region;
        match self.owner(target.granule) {
            FREE => {
                self.set_owner(target.granule, LINKED);
                self.reach(target.granule, 1, 0);
            }
            LINKED if !self.roots.contains(&target.granule) => {
                if !has_fault!(P, RebuildKeepsCounts) {
                    let count = header_word(target, target.count.saturating_add(1));
                    region.words.set_word(header(region, target.granule), count);
                }
            }
            _ => return false,
        }
        true
    }
}

/// What a span is when no client lives.
fn left<P: Platform>(region: &Region<P>, at: u32) -> Span {
    let is_owned =
        |first: u32| region.words.byte(region.layout.owner(first_granule(first))) != FREE;
    match span(region, at) {
        Some(Span::Slots { class, .. }) if !is_empty(region, at) => {
            Span::Slots { client: 0, class }
        }
        Some(run @ Span::Run { .. }) if is_owned(at) => run,
        Some(rest @ Span::Rest { first }) if region.layout.spans().contains(&first) => {
            match span(region, first) {
                Some(Span::Run { spans, .. })
                    if is_owned(first) && first < at && at - first < spans =>
                {
                    rest
                }
                _ => Span::Free,
            }
        }
        _ => Span::Free,
    }
}
