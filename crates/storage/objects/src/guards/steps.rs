//! What the code of an operation does: steps, of which each is done once.

use std::ptr::NonNull;

use super::waits;
use crate::client::{Client, Timeout};
use crate::error::ObjectsError;
use crate::intents::{Intent, MOST_FREES, MOST_STEPS};
use crate::layout::{LOCKS, span_of};
use crate::locks;
use crate::region::{Node, Platform, has_fault};
use crate::words::Words;

/// Tries before a client that waits for a lock sleeps.
const SPINS: u32 = 2000;

/// What the code of an operation works with.
pub struct Guard<'a, P: Platform = Node> {
    client: &'a mut Client<P>,
    intent: Intent,
    /// Steps that this run has come to.
    step: u64,
    frees: u64,
    /// The last lock.
    lock: Option<usize>,
}

/// Results of steps that do something.
const FAILED: u64 = 0;
const DONE: u64 = 1;
const NO_ROOM: u64 = 2;

impl<'a, P: Platform> Guard<'a, P> {
    /// At the beginning of a run.
    pub(super) fn new(client: &'a mut Client<P>, intent: Intent) -> Guard<'a, P> {
        Guard { client, intent, step: 0, frees: 0, lock: None }
    }

    /// The result of the next step, if it was done before.
    pub fn done(&mut self) -> Option<u64> {
        let is_done = self.step < self.intent.steps(&self.client.region);
        is_done.then(|| {
            self.step += 1;
            self.intent.result(&self.client.region, self.step - 1)
        })
    }

    /// Writes down the result of a step, which is done then.
    ///
    /// # Errors
    /// [`ObjectsError::Guard`]: too many steps.
    pub fn record(&mut self, result: u64) -> Result<(), ObjectsError> {
        if self.step == MOST_STEPS {
            return Err(refused("record", "it has 376 steps, the most there can be"));
        }
        let region = &self.client.region;
        if has_fault!(P, StepCountsFirst) {
            self.intent.set_steps(region, self.step + 1);
        }
        self.intent.set_result(region, self.step, result);
        self.step += 1;
        self.intent.set_steps(region, self.step); // commits
        Ok(())
    }

    /// Takes a lock of the region, 0 to 63, until the operation is over. Waits while another client has it, and completes
    /// that client's operation if it is dead.
    ///
    /// # Errors
    /// [`ObjectsError::Guard`]: locks are taken in the order of their numbers. [`ObjectsError::Damaged`]: no client that
    /// could release it has it.
    pub fn lock(&mut self, lock: usize) -> Result<(), ObjectsError> {
        if lock >= LOCKS {
            return Err(refused("lock", "a region has locks 0 to 63"));
        }
        if self.lock.is_some_and(|last| last > lock) {
            return Err(refused("lock", "it holds a lock with a higher number"));
        }
        self.lock = Some(lock);
        let (region, id) = (&self.client.region, self.client.id);
        let (mut tries, mut idle) = (0, None);
        while !locks::take(region, id, lock) {
            tries += 1;
            std::hint::spin_loop();
            if tries % SPINS != 0 {
                continue;
            }
            // To wait is not to be late.
            self.intent.touch(region);
            waits::wait(region, lock, &mut idle)?;
        }
        if tries > 0 {
            self.intent.touch(region);
        }
        Ok(())
    }

    /// Loads a word of an object. It is the same in every run.
    ///
    /// # Errors
    /// [`ObjectsError::Guard`]: not a word of an object, or too many steps.
    pub fn load(&mut self, at: NonNull<u64>) -> Result<u64, ObjectsError> {
        let offset = self.word_at(at)?;
        if !has_fault!(P, LoadIsNotRecorded)
            && let Some(known) = self.done()
        {
            return Ok(known);
        }
        let value = self.client.region.words.word(offset);
        if !has_fault!(P, LoadIsNotRecorded) {
            self.record(value)?;
        }
        Ok(value)
    }

    /// Stores a word of an object. Others see it at once; what must not be seen halfway belongs under a lock.
    ///
    /// # Errors
    /// [`ObjectsError::Guard`]: not a word of an object.
    pub fn store(&mut self, at: NonNull<u64>, value: u64) -> Result<(), ObjectsError> {
        let offset = self.word_at(at)?;
        self.client.region.words.set_word(offset, value);
        Ok(())
    }

    fn word_at(&self, at: NonNull<u64>) -> Result<usize, ObjectsError> {
        let offset = (at.addr().get() as u64).wrapping_sub(self.client.address);
        let region = &self.client.region;
        let is_one = offset < region.header.bytes
            && offset.is_multiple_of(8)
            && region.layout.spans().contains(&span_of((offset / 16) as u32));
        if is_one {
            Ok(offset as usize)
        } else {
            Err(refused("use", "it is not a word of an object"))
        }
    }

    /// Allocates an object. It belongs to the client, and is freed with it unless it is sent or linked.
    ///
    /// # Errors
    /// Those of [`Client::allocate`], and too many steps.
    pub fn allocate(&mut self, bytes: usize) -> Result<NonNull<u8>, ObjectsError> {
        self.allocated(|client| client.allocate(bytes))
    }

    /// Allocates an object with references.
    ///
    /// # Errors
    /// Those of [`Client::allocate_linkable`], and too many steps.
    pub fn allocate_linkable(
        &mut self,
        bytes: usize,
        references: u16,
    ) -> Result<NonNull<u8>, ObjectsError> {
        self.allocated(|client| client.allocate_linkable(bytes, references))
    }

    fn allocated(
        &mut self,
        allocate: impl FnOnce(&mut Client<P>) -> Result<NonNull<u8>, ObjectsError>,
    ) -> Result<NonNull<u8>, ObjectsError> {
        if let Some(known) = self.done() {
            let granule = self.client.region.granule_of(known).ok_or(ObjectsError::Full)?;
            return Ok(self.client.pointer(granule));
        }
        let object = allocate(self.client);
        let reference = object.as_ref().map_or(FAILED, |object| {
            let offset = (object.addr().get() as u64).wrapping_sub(self.client.address);
            self.client.region.reference_to((offset / 16) as u32)
        });
        self.record(reference)?;
        object
    }

    /// Frees an object of the client when the operation is over.
    ///
    /// # Errors
    /// [`ObjectsError::NotOwned`], [`ObjectsError::Guard`]: more than 64.
    pub fn free(&mut self, object: NonNull<u8>) -> Result<(), ObjectsError> {
        let granule = self.client.owned(object, "free")?;
        self.client.verify(granule, "free")?;
        if self.frees == MOST_FREES {
            return Err(refused("free", "it frees 64 objects, the most there can be"));
        }
        self.intent.set_free(&self.client.region, self.frees, granule);
        self.frees += 1;
        Ok(())
    }

    /// Changes a reference, as [`Client::change`] does.
    ///
    /// # Errors
    /// Those of [`Client::change`], and too many steps.
    pub fn change(
        &mut self,
        root: NonNull<u8>,
        from: NonNull<u8>,
        field: u16,
        to: Option<NonNull<u8>>,
    ) -> Result<(), ObjectsError> {
        if let Some(known) = self.done() {
            return again(known, "change").map(drop);
        }
        // Once more, right after it was done, it changes nothing.
        let changed = self.client.change(root, from, field, to);
        self.record(if changed.is_ok() { DONE } else { FAILED })?;
        changed
    }

    /// Sends an object through a mailbox, once; returns whether there was room.
    ///
    /// # Errors
    /// Those of [`Client::mailbox`] and [`Client::send`], and too many steps.
    pub fn send(
        &mut self,
        mailbox: &str,
        slots: u64,
        object: NonNull<u8>,
    ) -> Result<bool, ObjectsError> {
        let owned = match self.done() {
            Some(known) => again(known, "send").map(drop),
            None => {
                let owned = self.client.owned(object, "send").map(drop);
                self.record(if owned.is_ok() { DONE } else { FAILED })?;
                owned
            }
        };
        owned?;
        if let Some(known) = self.done() {
            return again(known, "send");
        }
        let sent = match self.client.owned(object, "send") {
            Ok(_) => self
                .client
                .mailbox(mailbox, slots)
                .and_then(|mailbox| self.client.send(mailbox, object, Timeout::Poll)),
            // It was the client's at the step before: sent, and the client died then.
            Err(_) => Ok(true),
        };
        self.record(match &sent {
            Ok(true) => DONE,
            Ok(false) => NO_ROOM,
            Err(_) => FAILED,
        })?;
        sent
    }
}

/// What a step returns that was done before.
fn again(known: u64, doing: &'static str) -> Result<bool, ObjectsError> {
    match known {
        FAILED => Err(refused(doing, "it failed before the operation was taken over")),
        known => Ok(known == DONE),
    }
}

fn refused(doing: &'static str, reason: &'static str) -> ObjectsError {
    ObjectsError::Guard { doing, reason }
}
