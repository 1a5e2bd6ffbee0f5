//! Requests of a client that are not complete, and the bytes that may be in flight.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use farfork_sys::sync::{locked, unpoisoned};

use super::wire::{self, Header, Kind, LAST, MAX_REPLY_BYTES, PLACED, invalid};
use crate::MAX_SEGMENT_BYTES;
use crate::error::{FabricError, Refusal};
use crate::fabric::{Completion, Completions, Segment};
use crate::memory::{Places, SharedMemory};

/// The answer to a call.
pub type Reply = Result<Vec<u8>, FabricError>;

/// Requests in progress.
pub struct Pending {
    peer: String,
    window_bytes: u64,
    /// Where answers are written, if both ends are on one host.
    memory: Option<SharedMemory>,
    state: Mutex<State>,
    /// Credits came back, or the connection broke.
    changed: Condvar,
}

struct State {
    next: u64,
    requests: HashMap<u64, Request>,
    in_flight_bytes: u64,
    /// Free places of the shared memory.
    places: Option<Places>,
    broken: Option<FabricError>,
}

enum Request {
    Read(Read),
    Call { so_far: Vec<u8>, reply: SyncSender<Reply> },
}

struct Read {
    /// Place in the batch of this request's first segment.
    first: usize,
    segments: Vec<Partial>,
    left: usize,
    completions: Completions,
}

/// A segment that has some of its bytes.
struct Partial {
    bytes: u32,
    /// Where its bytes will be in shared memory.
    place: u64,
    so_far: Vec<u8>,
    is_open: bool,
}

/// What is not in flight when a request begins: credits for its bytes, and a place for them.
#[derive(Debug, Clone, Copy)]
pub struct Credit {
    /// Where the bytes will be in shared memory; 0 without it.
    pub place: u64,
}

impl Pending {
    pub fn new(peer: String, window_bytes: u64) -> Pending {
        Pending::with_memory(peer, window_bytes, None)
    }

    /// Requests whose answers are written to this memory, of [`memory_bytes`].
    pub fn with_memory(peer: String, window_bytes: u64, memory: Option<SharedMemory>) -> Pending {
        let places = memory.as_ref().map(|_| Places::new(memory_bytes(window_bytes)));
        let requests = HashMap::new();
        let state = State { next: 1, requests, in_flight_bytes: 0, places, broken: None };
        Pending { peer, window_bytes, memory, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The memory that both ends share.
    pub fn memory(&self) -> Option<&SharedMemory> {
        self.memory.as_ref()
    }

    pub fn peer(&self) -> &str {
        &self.peer
    }

    pub fn broken(&self) -> Option<FabricError> {
        self.state().broken.clone()
    }

    /// Takes credits for a segment, without waiting; `None` if there are not enough. A segment that is larger
    /// than the window goes alone.
    pub fn try_take(&self, bytes: u32) -> Option<Credit> {
        Self::take_from(&mut self.state(), bytes, self.window_bytes)
    }

    fn take_from(state: &mut State, bytes: u32, window: u64) -> Option<Credit> {
        let after = state.in_flight_bytes + u64::from(bytes);
        if after > window && state.in_flight_bytes > 0 {
            return None;
        }
        let place = state.places.as_mut().map_or(Some(0), |places| places.take(bytes))?;
        state.in_flight_bytes = after;
        Some(Credit { place })
    }

    /// Takes credits for a segment, and waits for them.
    pub fn take(&self, bytes: u32, deadline: Instant) -> Result<Credit, FabricError> {
        let mut state = self.state();
        loop {
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            if let Some(credit) = Self::take_from(&mut state, bytes, self.window_bytes) {
                return Ok(credit);
            }
            let wait = deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(FabricError::DeadlinePassed { peer: self.peer.clone() });
            }
            let waited = self.changed.wait_timeout(state, wait);
            state = unpoisoned(waited).0;
        }
    }

    /// Enters a request for segments, whose credits were taken. Returns its number.
    pub fn read(
        &self,
        first: usize,
        segments: &[(Segment, Credit)],
        completions: &Completions,
    ) -> Result<u64, FabricError> {
        let partial = |(segment, credit): &(Segment, Credit)| {
            let (bytes, place) = (segment.bytes, credit.place);
            Partial { bytes, place, so_far: Vec::new(), is_open: true }
        };
        let left = segments.len();
        let segments = segments.iter().map(partial).collect();
        let completions = completions.clone();
        self.enter(Request::Read(Read { first, segments, left, completions }))
    }

    /// Enters a call. Returns its number.
    pub fn call(&self, reply: SyncSender<Reply>) -> Result<u64, FabricError> {
        self.enter(Request::Call { so_far: Vec::new(), reply })
    }

    fn enter(&self, request: Request) -> Result<u64, FabricError> {
        let mut state = self.state();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let number = state.next;
        state.next += 1;
        state.requests.insert(number, request);
        Ok(number)
    }

    /// Takes in a frame from the server.
    ///
    /// # Errors
    ///
    /// The frame does not fit what was asked for: nothing more that the peer says can be trusted.
    pub fn receive(&self, frame: &[u8]) -> io::Result<()> {
        let (header, payload) = Header::split(frame)
            .ok_or_else(|| invalid("the peer sent a frame that is not one of this protocol"))?;
        let mut state = self.state();
        let known = state.requests.get_mut(&header.request);
        let request =
            known.ok_or_else(|| invalid("the peer answered a request that was not made"))?;
        let (returned, ended) = match request {
            Request::Read(read) => self.read_part(read, &header, payload)?,
            Request::Call { so_far, reply } => {
                (None, self.call_part(so_far, reply, &header, payload)?)
            }
        };
        if ended {
            state.requests.remove(&header.request);
        }
        let Some((place, bytes)) = returned else { return Ok(()) };
        state.in_flight_bytes -= u64::from(bytes);
        if let Some(places) = state.places.as_mut() {
            places.give(place, bytes);
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Part of a segment, or its refusal: place and credits that come back, and whether the request is
    /// complete.
    fn read_part(
        &self,
        read: &mut Read,
        header: &Header,
        payload: &[u8],
    ) -> io::Result<(Option<(u64, u32)>, bool)> {
        let index = header.segment as usize;
        let partial = read.segments.get_mut(index).filter(|partial| partial.is_open);
        let partial = partial.ok_or_else(|| {
            invalid("the peer answered a segment that was not asked for, or answered it twice")
        })?;
        let result = match header.kind {
            Kind::Data if header.code == PLACED => {
                let is_due = payload.is_empty() && header.offset == 0;
                let memory = self.memory.as_ref().filter(|_| is_due);
                let memory = memory.ok_or_else(|| {
                    invalid("the peer put bytes to a place that was not asked for")
                })?;
                Ok(memory.read(partial.place, partial.bytes)?)
            }
            Kind::Data if self.memory.is_none() => {
                let end = partial.so_far.len() + payload.len();
                let fits = header.offset == partial.so_far.len() as u64
                    && end <= partial.bytes as usize
                    && (!payload.is_empty() || partial.bytes == 0);
                if !fits {
                    return Err(invalid("the peer sent other bytes of a segment than were due"));
                }
                partial.so_far.reserve_exact(partial.bytes as usize - partial.so_far.len());
                partial.so_far.extend_from_slice(payload);
                if end < partial.bytes as usize {
                    return Ok((None, false));
                }
                Ok(std::mem::take(&mut partial.so_far))
            }
            Kind::Refused => Err(self.refused(header, payload)?),
            _ => return Err(invalid("the peer answered a read with something else")),
        };
        partial.is_open = false;
        partial.so_far = Vec::new();
        read.completions.put(Completion { segment: read.first + index, result });
        read.left -= 1;
        Ok((Some((partial.place, partial.bytes)), read.left == 0))
    }

    /// Part of a reply, or the refusal of a call; whether the call is complete.
    fn call_part(
        &self,
        so_far: &mut Vec<u8>,
        reply: &SyncSender<Reply>,
        header: &Header,
        payload: &[u8],
    ) -> io::Result<bool> {
        let result = match header.kind {
            Kind::Reply => {
                let is_due = header.offset == so_far.len() as u64;
                if !is_due || so_far.len() + payload.len() > MAX_REPLY_BYTES {
                    return Err(invalid("the peer sent another part of a reply than was due"));
                }
                so_far.extend_from_slice(payload);
                if header.code != LAST {
                    return Ok(false);
                }
                Ok(std::mem::take(so_far))
            }
            Kind::Refused => Err(self.refused(header, payload)?),
            _ => return Err(invalid("the peer answered a call with something else")),
        };
        // Nothing waits for it once the deadline has passed.
        let _ = reply.try_send(result);
        Ok(true)
    }

    fn refused(&self, header: &Header, payload: &[u8]) -> io::Result<FabricError> {
        let refusal: Option<Refusal> = wire::refusal(header, payload);
        let refusal = refusal.ok_or_else(|| invalid("the peer refused for an unknown reason"))?;
        Ok(FabricError::Refused { peer: self.peer.clone(), refusal })
    }

    /// Ends everything with this error. The first error counts.
    pub fn end(&self, error: FabricError) {
        let mut state = self.state();
        let error = state.broken.get_or_insert(error).clone();
        let requests = std::mem::take(&mut state.requests);
        // Places are not given back: the peer may still write to them, and nothing more is asked.
        state.in_flight_bytes = 0;
        drop(state);
        self.changed.notify_all();
        for request in requests.into_values() {
            match request {
                Request::Read(read) => {
                    for (index, partial) in read.segments.iter().enumerate() {
                        if partial.is_open {
                            let (segment, result) = (read.first + index, Err(error.clone()));
                            read.completions.put(Completion { segment, result });
                        }
                    }
                }
                Request::Call { reply, .. } => drop(reply.try_send(Err(error.clone()))),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

/// Bytes of shared memory for a window: the largest segment fits in any case.
pub fn memory_bytes(window_bytes: u64) -> u64 {
    window_bytes.max(u64::from(MAX_SEGMENT_BYTES)).next_multiple_of(4096)
}
