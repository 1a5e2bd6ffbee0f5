//! Mailboxes: bounded rings, each between one sender and one receiver at a time.
//!
//! ```text
//!  send                                       receive
//!   1  slot := sequence, granule               1  mark of the span, the first time
//!   2  tail := sequence + 1                    2  owner byte := receiver      commits
//!   3  owner byte := in a mailbox   commits    3  slot := empty
//!                                              4  head := sequence + 1
//! ```
//! A shared structure is sent by the store of the slot, after the tail has moved on, and received by the store that
//! empties the slot: the message is a reference more, and moves nothing.
//!
//! A client that waits says so in a word, orders that before a last look by a barrier in all processes (`membarrier`), and
//! sleeps by futex. The other one looks at that word after its own committing store: one load, and no fence.
//!
//! Invariants:
//! 1. A slot names a message if the owner byte of its granule says "in a mailbox" or "shared". Else its client is in the
//!    middle of a send or a receive, or has died there, and the granule is the client's.
//! 2. A slot is written when it is empty. So a slot that is not empty means a full mailbox to the sender,
//!    however far the receiver's head has come.
//! 3. The tail is at or beyond the sequence of every message. An empty slot between head and tail is a hole:
//!    its message was taken by a receiver that died before it moved the head, or was never sent. Receivers
//!    skip holes, but for the last place before the tail: the slot of a root is filled after the tail has passed it.
//!    They also skip to the sequence that a slot names if the ring has been round meanwhile.

use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

use crate::error::ObjectsError;
use crate::heap::Heap;
use crate::layout::{
    ClientId, IN_MAILBOX, LEAVING, MAILBOXES, MOST_SLOTS, MailboxLayout, NAME_BYTES, READY, SHARED,
    slot_parts, slot_word, span_of,
};
use crate::liveness::Liveness;
use crate::recovery::{forget_unknown, is_left, recover_if_dead};
use crate::region::{Platform, Region, has_fault};
use crate::shared::Record;
use crate::wakes::{Side, wake_sleeper};
use crate::words::Words;

/// A mailbox of a client's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mailbox(pub(crate) usize);

/// Idle receivers look for holes once in so many polls: the tail is the sender's cache line.
const POLLS_BETWEEN_HOLES: u32 = 64;

/// Holes beside each other. Each is left by a client that was killed in a send.
const MOST_HOLES: u64 = 1 << 20;

/// Looks at a client that seems alive before its end of a mailbox counts as taken.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_micros(100);

/// What came out of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// The granule of an object, which is the client's now.
    Object(u32),
    /// The root of a shared structure, which the client holds now.
    Root(u32),
}

/// What a client knows of a mailbox.
#[derive(Debug)]
pub(crate) struct Ends {
    name: String,
    index: usize,
    at: MailboxLayout,
    slots: u64,
    /// Sequence of the next message to send. `None` until the client is the sender.
    tail: Option<u64>,
    /// Sequence of the next message to receive. `None` until the client is the receiver.
    head: Option<u64>,
    polls: u32,
    late: u64,
}

/// Finds a mailbox, or makes it.
pub(crate) fn open<P: Platform>(
    region: &Region<P>,
    name: &str,
    slots: u64,
) -> Result<Ends, ObjectsError> {
    let is_name = (1..=NAME_BYTES).contains(&name.len()) && !name.contains(char::is_control);
    if !is_name {
        return Err(ObjectsError::BadName { name: name.to_owned() });
    }
    if !slots.is_power_of_two() || slots > MOST_SLOTS {
        return Err(ObjectsError::too_many_slots(name, slots));
    }
    let index = match find(region, name) {
        Some(index) => index,
        None => make(region, name, slots)?,
    };
    let found = region.slots(index);
    if found != slots {
        return Err(ObjectsError::slots(name, slots, format!("it has {found}")));
    }
    let at = region.layout.mailbox(index);
    Ok(Ends { name: name.to_owned(), index, at, slots, tail: None, head: None, polls: 0, late: 0 })
}

fn find<P: Platform>(region: &Region<P>, name: &str) -> Option<usize> {
    (0..MAILBOXES).find(|index| region.mailbox_name(*index).as_deref() == Some(name))
}

/// One client at a time makes a mailbox. Killed before the last store, it has made none.
fn make<P: Platform>(region: &Region<P>, name: &str, slots: u64) -> Result<usize, ObjectsError> {
    let failed = ObjectsError::io("lock the mailboxes of the region", &region.path);
    let _turn = region.liveness.turn().map_err(failed)?;
    if let Some(index) = find(region, name) {
        return Ok(index);
    }
    let is_free = |index: &usize| region.words.word(region.layout.mailbox(*index).state()) == 0;
    let index = (0..MAILBOXES).find(is_free);
    let index = index.ok_or_else(|| ObjectsError::MailboxesFull { name: name.to_owned() })?;
    let at = region.layout.mailbox(index);
    region.words.set_word(at.slots(), slots);
    region.set_name(|word| at.name(word), name);
    region.words.set_word(at.state(), READY); // commits
    Ok(index)
}

impl Ends {
    pub(crate) fn count_late(&mut self, is_late: bool) {
        self.late += u64::from(is_late);
    }

    /// The next poll looks for holes, too.
    pub(crate) fn look_for_holes(&mut self) {
        self.polls = 0;
    }

    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    pub(crate) fn layout(&self) -> MailboxLayout {
        self.at
    }

    pub(crate) fn slots(&self) -> u64 {
        self.slots
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a granule that the client owns; returns whether there was room.
    #[inline]
    pub(crate) fn send<P: Platform>(
        &mut self,
        region: &Region<P>,
        id: ClientId,
        granule: u32,
    ) -> Result<bool, ObjectsError> {
        let known = match self.tail {
            None => self.become_sender(region, id)?,
            known => known,
        };
        let Some(tail) = known else { return Ok(false) };
        Ok(match region.words.plain() {
            Some(words) => self.send_in(words, region, tail, granule),
            None => self.send_in(&region.words, region, tail, granule),
        })
    }

    /// The same in the region's memory.
    #[inline]
    fn send_in<P: Platform, W: Words>(
        &mut self,
        words: &W,
        region: &Region<P>,
        tail: u64,
        granule: u32,
    ) -> bool {
        let slot = self.at.slot(tail & (self.slots - 1));
        words.invalidate(slot, 8);
        if words.word(slot) != 0 {
            return false;
        }
        let owner = region.layout.owner(granule);
        if has_fault!(P, SendCommitsBeforeSlot) {
            words.set_byte(owner, IN_MAILBOX);
        }
        words.set_word(slot, slot_word(tail, granule));
        if !has_fault!(P, SendMovesTailLast) {
            words.set_word(self.at.tail(), tail.wrapping_add(1));
        }
        if has_fault!(P, WakesBeforeCommit) {
            self.wake(words, region, Side::Receiver);
            words.pause(PAUSE);
        }
        words.flush(slot, 8);
        words.set_byte(owner, IN_MAILBOX); // commits
        if has_fault!(P, SendMovesTailLast) {
            words.set_word(self.at.tail(), tail.wrapping_add(1));
        }
        words.flush(owner, 1);
        self.tail = Some(tail.wrapping_add(1));
        if !has_fault!(P, WakesBeforeCommit) {
            self.wake(words, region, Side::Receiver);
        }
        true
    }

    /// Sends a structure that the client holds, and goes on holding; returns whether there was room.
    pub(crate) fn send_root<P: Platform>(
        &mut self,
        region: &Region<P>,
        id: ClientId,
        record: Record,
    ) -> Result<bool, ObjectsError> {
        let known = match self.tail {
            None => self.become_sender(region, id)?,
            known => known,
        };
        let Some(tail) = known else { return Ok(false) };
        let slot = self.at.slot(tail & (self.slots - 1));
        region.words.invalidate(slot, 8);
        if region.words.word(slot) != 0 {
            return Ok(false);
        }
        record.count_send(region, id, self.index);
        region.words.set_word(self.at.tail(), tail.wrapping_add(1));
        region.words.set_word(slot, slot_word(tail, record.0)); // commits
        region.words.flush(slot, 8);
        self.tail = Some(tail.wrapping_add(1));
        self.wake(&region.words, region, Side::Receiver);
        Ok(true)
    }

    /// Receives the next message.
    #[inline]
    pub(crate) fn receive<P: Platform>(
        &mut self,
        region: &Region<P>,
        heap: &mut Heap,
    ) -> Result<Option<Received>, ObjectsError> {
        let known = match self.head {
            None => self.become_receiver(region, heap.id())?,
            known => known,
        };
        let Some(head) = known else { return Ok(None) };
        match region.words.plain() {
            Some(words) => self.receive_in(words, region, heap, head),
            None => self.receive_in(&region.words, region, heap, head),
        }
    }

    /// The same in the region's memory.
    #[inline]
    fn receive_in<P: Platform, W: Words>(
        &mut self,
        words: &W,
        region: &Region<P>,
        heap: &mut Heap,
        head: u64,
    ) -> Result<Option<Received>, ObjectsError> {
        let layout = &region.layout;
        let slot = self.at.slot(head & (self.slots - 1));
        words.invalidate(slot, 8);
        let word = words.word(slot);
        let (sequence, granule) = slot_parts(word);
        if word == 0 || sequence != head as u32 {
            return self.skip_holes(region, heap, head, word);
        }
        if !layout.spans().contains(&span_of(granule)) && !has_fault!(P, ReceiveTrustsSlots) {
            return Err(self.damaged(region, word));
        }
        let owner = layout.owner(granule);
        match words.byte(owner) {
            IN_MAILBOX => {}
            SHARED => return self.receive_root(region, heap, head, Record(granule)),
            _ => return self.await_sender(region, slot, granule),
        }
        if has_fault!(P, ReceiveEmptiesSlotFirst) {
            words.set_word(slot, 0);
        }
        if !has_fault!(P, ReceiveMarksLast) {
            heap.mark(region, span_of(granule));
        }
        words.set_byte(owner, heap.id().number()); // commits
        words.set_word(slot, 0);
        words.set_word(self.at.head(), head.wrapping_add(1));
        words.flush(slot, 8);
        if has_fault!(P, ReceiveMarksLast) {
            heap.mark(region, span_of(granule));
        }
        self.head = Some(head.wrapping_add(1));
        self.wake(words, region, Side::Sender);
        Ok(Some(Received::Object(granule)))
    }

    /// Receives a structure: becomes a holder, and then takes it from the slot.
    fn receive_root<P: Platform>(
        &mut self,
        region: &Region<P>,
        heap: &mut Heap,
        head: u64,
        record: Record,
    ) -> Result<Option<Received>, ObjectsError> {
        let slot = self.at.slot(head & (self.slots - 1));
        let root = record.root(region);
        let root = root.ok_or_else(|| self.damaged(region, region.words.word(slot)))?;
        heap.mark(region, span_of(record.0));
        record.hold(region, heap.id());
        region.words.set_word(slot, 0); // commits
        region.words.set_word(self.at.head(), head.wrapping_add(1));
        region.words.flush(slot, 8);
        self.head = Some(head.wrapping_add(1));
        self.wake(&region.words, region, Side::Sender);
        Ok(Some(Received::Root(root)))
    }

    /// Wakes the client at the other side if it sleeps. After the store that it waits for.
    #[inline]
    fn wake<P: Platform, W: Words>(&self, words: &W, region: &Region<P>, side: Side) {
        // The load comes after that store for the compiler, and for the processor by the sleeper's barrier.
        compiler_fence(Ordering::SeqCst);
        if words.word(side.sleeps(self.at)) != 0 {
            wake_sleeper(region, self.at, side);
        }
    }

    /// Moves the head on over holes, if there are any, and receives what follows.
    #[cold]
    fn skip_holes<P: Platform>(
        &mut self,
        region: &Region<P>,
        heap: &mut Heap,
        mut head: u64,
        mut word: u64,
    ) -> Result<Option<Received>, ObjectsError> {
        if word == 0 {
            self.polls = self.polls.wrapping_add(1);
            if self.polls % POLLS_BETWEEN_HOLES != 1 {
                return Ok(None);
            }
        }
        while self.is_hole(region, head, word)? {
            head = head.wrapping_add(1);
            word = region.words.word(self.at.slot(head & (self.slots - 1)));
        }
        if self.head == Some(head) {
            return Ok(None);
        }
        region.words.set_word(self.at.head(), head);
        self.head = Some(head);
        self.polls = 0;
        match word {
            0 => Ok(None),
            _ => self.receive(region, heap),
        }
    }

    /// Whether the message of this sequence, in whose slot a word was found, will not come.
    fn is_hole<P: Platform>(
        &self,
        region: &Region<P>,
        head: u64,
        word: u64,
    ) -> Result<bool, ObjectsError> {
        if word == 0 {
            // In this order: the slot of a message is written before the tail passes the next one.
            let tail = region.words.word(self.at.tail());
            let slot = self.at.slot(head & (self.slots - 1));
            let ahead = tail.saturating_sub(head);
            let may_be_sending = ahead == 1 && !has_fault!(P, SkipsLastPlace);
            if ahead == 0 || may_be_sending || region.words.word(slot) != 0 {
                return Ok(false);
            }
            return match ahead {
                ..=MOST_HOLES => Ok(true),
                _ => Err(region.damaged(format!("mailbox {} ends at message {tail}", self.name))),
            };
        }
        let (sequence, _) = slot_parts(word);
        let rounds = u64::from(sequence.wrapping_sub(head as u32));
        match rounds {
            0 => Ok(false),
            1..=MOST_HOLES if rounds.is_multiple_of(self.slots) => Ok(true),
            _ => Err(self.damaged(region, word)),
        }
    }

    /// What a slot names is not in the mailbox: the sender is in the middle of a send, or died there and is being recovered.
    #[cold]
    fn await_sender<P: Platform>(
        &self,
        region: &Region<P>,
        slot: usize,
        granule: u32,
    ) -> Result<Option<Received>, ObjectsError> {
        let words = &region.words;
        let look = || {
            let owner = words.byte(region.layout.owner(granule));
            // Last: a recovery empties the slot before it frees the object.
            (owner, words.word(self.at.sender()), words.word(slot))
        };
        let seen @ (owner, sender, word) = look();
        let is_usual = matches!(owner, IN_MAILBOX | SHARED) || u64::from(owner) == sender;
        if is_usual || slot_parts(word).1 != granule {
            return Ok(None);
        }
        // Another sender may just have sent the same object in the same place.
        words.pause(PAUSE);
        match look() == seen {
            true => Err(self.damaged(region, word)),
            false => Ok(None),
        }
    }

    #[cold]
    fn damaged<P: Platform>(&self, region: &Region<P>, word: u64) -> ObjectsError {
        region.damaged(format!("mailbox {} has a slot with {word:#x}", self.name))
    }

    /// Becomes the sender. `None` while the last one is being recovered.
    #[cold]
    fn become_sender<P: Platform>(
        &mut self,
        region: &Region<P>,
        id: ClientId,
    ) -> Result<Option<u64>, ObjectsError> {
        if self.take_role(region, id, self.at.sender(), "send to")? {
            self.tail = Some(region.words.word(self.at.tail()));
        }
        Ok(self.tail)
    }

    /// Becomes the receiver. `None` while the last one is being recovered.
    #[cold]
    fn become_receiver<P: Platform>(
        &mut self,
        region: &Region<P>,
        id: ClientId,
    ) -> Result<Option<u64>, ObjectsError> {
        if self.take_role(region, id, self.at.receiver(), "receive from")? {
            self.head = Some(region.words.word(self.at.head()));
        }
        Ok(self.head)
    }

    /// Takes one end of the mailbox from no client, or from a dead one; returns whether it did. If not, another
    /// process is recovering its client.
    fn take_role<P: Platform>(
        &self,
        region: &Region<P>,
        id: ClientId,
        at: usize,
        doing: &'static str,
    ) -> Result<bool, ObjectsError> {
        let mut tries = 0;
        while !region.words.claim_word(at, 0, u64::from(id.number())) {
            let word = region.words.word(at);
            if word == u64::from(id.number()) {
                // By a guarded operation that is done again.
                return Ok(true);
            }
            let holder = match u8::try_from(word).ok().and_then(ClientId::new) {
                Some(holder) => holder,
                None if word == 0 => continue,
                None => {
                    let what = format!("mailbox {} belongs to client {word}", self.name);
                    return Err(region.damaged(what));
                }
            };
            let is_over = recover_if_dead(region, holder)? || forget_unknown(region, holder, at)?;
            if is_over || region.words.word(at) != word {
                continue;
            }
            if region.words.word(region.layout.client(holder)) == LEAVING
                || is_left(region, holder)?
            {
                return Ok(false);
            }
            // It seems alive. A process that has just begun to recover it makes it seem so, too.
            if tries == TRIES {
                let (name, holder) = (self.name.clone(), holder.number());
                return Err(ObjectsError::RoleTaken { doing, name, holder });
            }
            tries += 1;
            region.words.pause(PAUSE);
        }
        Ok(true)
    }

    /// Recovers the client at the other end if it is dead, so that what it left does not stand in the way.
    pub(crate) fn look_after_other_end<P: Platform>(
        &self,
        region: &Region<P>,
    ) -> Result<(), ObjectsError> {
        for at in [self.at.sender(), self.at.receiver()] {
            let holder = u8::try_from(region.words.word(at)).ok().and_then(ClientId::new);
            if let Some(holder) = holder {
                recover_if_dead(region, holder)?;
            }
        }
        Ok(())
    }
}
