//! Reads that a device was given, or will be, and the places for their bytes.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farfork_sys::sync::{locked, unpoisoned};

use super::verbs::{DEPTH, Queue, Registered};
use super::wire::Window;
use crate::error::FabricError;
use crate::fabric::{Completion, Completions, Segment};
use crate::memory::Places;

/// How long a device is silent before it is given up, at least. Half of a read's time may be less, and passes also with one that
/// is busy.
const PATIENCE: Duration = Duration::from_secs(1);

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
    /// Whether the connection was asked for its bytes, too. The first answer counts.
    is_asked_elsewhere: bool,
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
    /// When the device last answered, or was asked for something after it had answered all.
    silent_since: Instant,
    /// How often it has failed since it last answered.
    failures: u32,
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
        Read {
            index,
            segment,
            window,
            completions,
            deadline,
            started,
            attempts: 0,
            is_asked_elsewhere: false,
            place: 0,
        }
    }

    /// Half of its time. The other half belongs to another way.
    fn half(&self) -> Duration {
        self.deadline.saturating_duration_since(self.started) / 2
    }
}

impl Reads {
    pub fn new(peer: &str, queue: Queue, buffer_bytes: u64) -> Reads {
        let places = Places::new(buffer_bytes);
        let (queue, open) = (Some(queue), HashMap::new());
        // Number 0 was the first read of the connection, of a token.
        let (held, ended, silent_since, failures) = (0, None, Instant::now(), 0);
        let state = State { queue, next: 1, open, places, held, silent_since, failures, ended };
        let state = Mutex::new(state);
        Reads { peer: peer.to_owned(), state, changed: Condvar::new() }
    }

    /// Starts a read, once there is a place for it. Returns one for which there was none in half of its time, or that no device
    /// will answer.
    pub fn start(&self, mut read: Read) -> Result<(), Box<Read>> {
        let mut state = self.state();
        loop {
            if state.ended.is_some() {
                return Err(Box::new(read));
            }
            let has_room = state.open.len() + state.held < DEPTH as usize;
            let place = has_room.then(|| state.places.take(read.segment.bytes)).flatten();
            if let Some(place) = place {
                read.place = place;
                if state.open.is_empty() {
                    state.silent_since = Instant::now();
                }
                state.post(read);
                drop(state);
                self.changed.notify_all();
                return Ok(());
            }
            let wait = (read.started + read.half()).saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(Box::new(read));
            }
            let waited = self.changed.wait_timeout(state, wait);
            state = unpoisoned(waited).0;
        }
    }

    /// Waits until there are reads; false when all has ended.
    pub fn wait(&self) -> bool {
        let mut state = self.state();
        while state.open.is_empty() && state.ended.is_none() {
            state = unpoisoned(self.changed.wait(state));
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
        state.has_answered();
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
        self.give_back(&read);
        // What the connection answers is not known yet.
        if result.is_ok() || !read.is_asked_elsewhere {
            read.completions.put(Completion { segment: read.index, result });
        }
    }

    /// Gives the place of a read back that goes another way; where its end is handed in, if it does not go there already.
    pub fn release(&self, read: Read) -> Option<Completions> {
        self.give_back(&read);
        (!read.is_asked_elsewhere).then_some(read.completions)
    }

    fn give_back(&self, read: &Read) {
        self.state().places.give(read.place, read.segment.bytes);
        self.changed.notify_all();
    }

    /// Takes all reads from the device, whose queue pair failed at this one. Those that go another way already end there.
    pub fn fail(&self, number: u64) -> (Option<Read>, Vec<Read>) {
        let mut state = self.state();
        state.queue = None;
        let failed = state.open.remove(&number);
        let all = std::mem::take(&mut state.open).into_values();
        let (elsewhere, others): (Vec<Read>, Vec<Read>) =
            all.partition(|read| read.is_asked_elsewhere);
        state.held = others.len() + usize::from(failed.is_some());
        drop(state);
        elsewhere.iter().for_each(|read| self.give_back(read));
        (failed, others)
    }

    /// The device has answered with a refusal.
    pub fn note_answer(&self) {
        self.state().has_answered();
    }

    /// The device has failed: how often, since it last answered.
    pub fn count_failure(&self) -> u32 {
        let mut state = self.state();
        state.failures += 1;
        state.failures
    }

    /// Has `ask` ask elsewhere for what the device has not answered within half of its time, until it returns false. The device may
    /// still write to the places of these reads: they stay taken.
    pub fn ask_elsewhere(&self, ask: impl Fn(usize, Segment, &Completions) -> bool) {
        let now = Instant::now();
        let is_late = |read: &Read| {
            !read.is_asked_elsewhere && now > read.started + read.half() && now < read.deadline
        };
        let state = self.state();
        let late = state.open.iter().filter(|(_, read)| is_late(read));
        let late: Vec<_> = late
            .map(|(number, read)| (*number, read.index, read.segment, read.completions.clone()))
            .collect();
        // Asking may wait for the network, which nothing else should.
        drop(state);
        for (number, index, segment, completions) in late {
            if !ask(index, segment, &completions) {
                return;
            }
            if let Some(read) = self.state().open.get_mut(&number) {
                read.is_asked_elsewhere = true;
            }
        }
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
        state.silent_since = Instant::now();
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

    /// Whether the device has answered nothing for half of a read's time, and long enough to be given up.
    pub fn is_silent(&self) -> bool {
        let (state, now) = (self.state(), Instant::now());
        let limit = state.open.values().map(|read| read.half().max(PATIENCE)).min();
        limit.is_some_and(|limit| now > state.silent_since + limit)
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
        locked(&self.state)
    }
}

impl State {
    fn has_answered(&mut self) {
        self.silent_since = Instant::now();
        self.failures = 0;
    }

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
