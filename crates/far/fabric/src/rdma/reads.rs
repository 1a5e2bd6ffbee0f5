//! Reads that a device was given, or will be, and the places for their bytes.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::verbs::{DEPTH, Queue, Registered};
use super::wire::Window;
use crate::error::FabricError;
use crate::fabric::{Completion, Completions, Segment};
use crate::memory::Places;

/// One read.
pub struct Read {
    /// Which segment of its batch.
    pub index: usize,
    pub segment: Segment,
    pub window: Window,
    pub completions: Completions,
    pub deadline: Instant,
    started: Instant,
    /// How often it has failed.
    pub attempts: u32,
    /// Where its bytes go.
    place: u64,
}

/// All reads of a connection. Invariant: the place of a read is taken until the device has answered, or has lost its
/// queue pair: until then it may write there.
pub struct Reads {
    peer: String,
    state: Mutex<State>,
    /// There is work, or a place, or all has ended.
    changed: Condvar,
}

struct State {
    /// None while a new one is made: reads wait for it.
    queue: Option<Queue>,
    next: u64,
    open: HashMap<u64, Read>,
    places: Places,
    /// Reads of a queue pair that has failed, which the next one gets.
    held: usize,
    /// When the device last answered.
    answered: Instant,
    ended: Option<FabricError>,
}

impl Read {
    pub fn new(
        index: usize,
        segment: Segment,
        window: Window,
        completions: &Completions,
        deadline: Instant,
    ) -> Read {
        let completions = completions.clone();
        let started = Instant::now();
        Read { index, segment, window, completions, deadline, started, attempts: 0, place: 0 }
    }

    /// Whether half of its time has passed: the other half belongs to another way.
    pub fn is_late(&self) -> bool {
        Instant::now() > self.started + (self.deadline - self.started) / 2
    }
}

impl Reads {
    pub fn new(peer: &str, queue: Queue, buffer_bytes: u64) -> Reads {
        let places = Places::new(buffer_bytes);
        let (queue, open) = (Some(queue), HashMap::new());
        // Number 0 was the first read of the connection, of a token.
        let (held, ended, answered) = (0, None, Instant::now());
        let state = Mutex::new(State { queue, next: 1, open, places, held, answered, ended });
        Reads { peer: peer.to_owned(), state, changed: Condvar::new() }
    }

    /// Starts a read, once there is a place for it.
    pub fn start(&self, mut read: Read) -> Result<(), FabricError> {
        let mut state = self.state();
        loop {
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            let has_room = state.open.len() + state.held < DEPTH as usize;
            let place = has_room.then(|| state.places.take(read.segment.bytes)).flatten();
            if let Some(place) = place {
                read.place = place;
                state.post(read);
                drop(state);
                self.changed.notify_all();
                return Ok(());
            }
            let wait = read.deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(FabricError::DeadlinePassed { peer: self.peer.clone() });
            }
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until there are reads; false when all has ended.
    pub fn wait(&self) -> bool {
        let mut state = self.state();
        while state.open.is_empty() && state.ended.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.ended.is_none()
    }

    /// Whether reads wait for a queue pair.
    pub fn lacks_queue(&self) -> bool {
        let state = self.state();
        state.queue.is_none() && state.ended.is_none()
    }

    pub fn is_open(&self, number: u64) -> bool {
        self.state().open.contains_key(&number)
    }

    /// The device has read all bytes.
    pub fn complete(&self, number: u64, buffer: &Registered) {
        let mut state = self.state();
        state.answered = Instant::now();
        let Some(read) = state.open.remove(&number) else { return };
        drop(state);
        let bytes = buffer.copy(read.place, read.segment.bytes);
        let peer = || self.peer.clone();
        let result = bytes.ok_or_else(|| FabricError::Broken {
            peer: peer(),
            why: "a read has no place".to_owned(),
        });
        self.finish(read, result);
    }

    /// Gives the place of a read back, and hands in how it ended.
    pub fn finish(&self, read: Read, result: Result<Vec<u8>, FabricError>) {
        self.state().places.give(read.place, read.segment.bytes);
        self.changed.notify_all();
        read.completions.put(Completion { segment: read.index, result });
    }

    /// Gives the place of a read back that goes another way; where its end is handed in.
    pub fn release(&self, read: Read) -> Completions {
        self.state().places.give(read.place, read.segment.bytes);
        self.changed.notify_all();
        read.completions
    }

    /// Takes all reads from the device, whose queue pair failed at this one.
    pub fn fail(&self, number: u64) -> (Option<Read>, Vec<Read>) {
        let mut state = self.state();
        state.queue = None;
        let failed = state.open.remove(&number);
        let others: Vec<Read> = std::mem::take(&mut state.open).into_values().collect();
        state.held = others.len() + usize::from(failed.is_some());
        (failed, others)
    }

    /// Goes on with a new queue pair, with those reads and those that have been started meanwhile.
    pub fn go_on(&self, queue: Queue, reads: Vec<Read>) {
        let mut state = self.state();
        if state.ended.is_some() {
            drop(state);
            let error = self.ended();
            reads.into_iter().for_each(|read| self.finish_as(read, error.as_ref()));
            return;
        }
        let waiting: Vec<Read> = std::mem::take(&mut state.open).into_values().collect();
        state.queue = Some(queue);
        state.held = 0;
        reads.into_iter().chain(waiting).for_each(|read| state.post(read));
    }

    /// Ends everything with this error. The first error counts.
    pub fn end(&self, error: FabricError, reads: Vec<Read>) {
        let mut state = self.state();
        // The device writes to no place any more.
        state.queue = None;
        let error = state.ended.get_or_insert(error).clone();
        let open = std::mem::take(&mut state.open);
        drop(state);
        self.changed.notify_all();
        for read in reads.into_iter().chain(open.into_values()) {
            self.finish_as(read, Some(&error));
        }
    }

    /// Whether the device has answered nothing for so long that a read had better go another way: that must have half of
    /// its time.
    pub fn is_overdue(&self) -> bool {
        let (state, now) = (self.state(), Instant::now());
        state
            .open
            .values()
            .any(|read| now > read.started.max(state.answered) + (read.deadline - read.started) / 2)
    }

    /// Ends reads by the device, and returns those that it has not answered, with their places: without its queue pair it writes to
    /// none.
    pub fn leave(&self, error: FabricError) -> Vec<Read> {
        let mut state = self.state();
        state.queue = None;
        state.ended.get_or_insert(error);
        let open: Vec<Read> = std::mem::take(&mut state.open).into_values().collect();
        drop(state);
        self.changed.notify_all();
        open
    }

    pub fn ended(&self) -> Option<FabricError> {
        self.state().ended.clone()
    }

    fn finish_as(&self, read: Read, error: Option<&FabricError>) {
        if let Some(error) = error {
            self.finish(read, Err(error.clone()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Hands a read to the device, if there is a queue pair. One that takes no more has failed; the read waits for the
    /// next one.
    fn post(&mut self, read: Read) {
        let number = self.next;
        self.next += 1;
        let (Window { key, address, .. }, Segment { offset, bytes, .. }) =
            (read.window, read.segment);
        let place = read.place;
        if let Some(queue) = &mut self.queue
            && queue.read(number, key, address.wrapping_add(offset), place, bytes).is_err()
        {
            self.queue = None;
        }
        self.open.insert(number, read);
    }
}
