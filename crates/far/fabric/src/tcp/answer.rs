//! Requests of clients, and the answers of a server.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use farfork_sys::sync::locked;

use super::sealed::Sender;
use super::shared::Shared;
use super::wire::{
    self, Header, Kind, LAST, LOCAL, MAX_DATA_BYTES, MAX_REPLY_BYTES, PLACED, invalid,
};
use crate::MAX_SEGMENT_BYTES;
use crate::error::Refusal;
use crate::fabric::Segment;
use crate::lane::{FIRST_CODE, Lane};
use crate::memory::SharedMemory;

/// A worker sends when it has so many bytes.
const SEND_AT_BYTES: usize = 3 * MAX_DATA_BYTES;
/// Bytes that are read at once for a place: they stay in a core's cache.
const PLACED_PIECE_BYTES: usize = 256 << 10;

/// What a client asks.
pub enum Request {
    /// With places, if the answers go there.
    Read { request: u64, segments: Vec<Segment>, places: Vec<u64> },
    /// How to reach this server on its host.
    Local { request: u64 },
    /// For the lane of the connection.
    Lane { request: u64, code: u8, bytes: Vec<u8> },
    /// For the service.
    Call { request: u64, bytes: Vec<u8> },
    /// One too many of its kind.
    TooMany { request: u64 },
}

/// The request of a frame; `None` if it is not one.
pub fn request(frame: &[u8]) -> Option<Request> {
    let (header, payload) = Header::split(frame)?;
    let request = header.request;
    match header.kind {
        Kind::Read if header.code == PLACED => {
            let (segments, places) = wire::placed_segments(payload, header.segment)?;
            Some(Request::Read { request, segments, places })
        }
        Kind::Read => {
            let segments = wire::segments(payload, header.segment)?;
            Some(Request::Read { request, segments, places: Vec::new() })
        }
        Kind::Call if header.code == LOCAL => Some(Request::Local { request }),
        Kind::Call if header.code >= FIRST_CODE => {
            Some(Request::Lane { request, code: header.code, bytes: payload.to_vec() })
        }
        Kind::Call => Some(Request::Call { request, bytes: payload.to_vec() }),
        Kind::Data | Kind::Refused | Kind::Reply => None,
    }
}

/// Frames of an answer that are not sent yet.
pub struct Answer<'s> {
    sender: &'s Mutex<Sender>,
    /// Where bytes of segments go, if the client is on this host.
    memory: Option<&'s SharedMemory>,
    lane: Option<&'s dyn Lane>,
    frames: Vec<Vec<u8>>,
    bytes: usize,
}

impl<'s> Answer<'s> {
    /// An answer to one request.
    pub fn new(
        sender: &'s Mutex<Sender>,
        memory: Option<&'s SharedMemory>,
        lane: Option<&'s dyn Lane>,
    ) -> Answer<'s> {
        Answer { sender, memory, lane, frames: Vec::new(), bytes: 0 }
    }

    /// Answers a request. The last frames are not sent before [`Answer::send`].
    pub fn give(&mut self, request: Request, shared: &Shared) -> io::Result<()> {
        match request {
            Request::Read { request, segments, places } => {
                for (index, segment) in segments.iter().enumerate() {
                    match (self.memory, places.get(index)) {
                        (None, None) => self.segment(request, index as u32, segment, shared)?,
                        (Some(memory), Some(place)) => {
                            let to = (memory, *place);
                            self.placed_segment(request, index as u32, segment, to, shared)?;
                        }
                        _ => return Err(invalid("the client asked for another way of answers")),
                    }
                }
                Ok(())
            }
            Request::Local { request } => match &shared.local {
                Some((token, path)) => {
                    let path = path.as_os_str().as_encoded_bytes();
                    self.reply(request, &[&token[..], path].concat())
                }
                None => self.refuse(request, 0, &failed("it has no shared memory")),
            },
            Request::Lane { request, code, bytes } => {
                let none = || Err(failed("it offers no other way to its regions"));
                match self.lane.map_or_else(none, |lane| lane.answer(code, &bytes)) {
                    Ok(reply) => self.reply(request, &reply),
                    Err(refusal) => self.refuse(request, 0, &refusal),
                }
            }
            Request::Call { request, bytes } => match (shared.settings.service)(&bytes) {
                Ok(reply) if reply.len() <= MAX_REPLY_BYTES => self.reply(request, &reply),
                Ok(_) => self.refuse(request, 0, &failed("its answer is too long")),
                Err(why) => self.refuse(request, 0, &failed(&why)),
            },
            Request::TooMany { request } => {
                self.refuse(request, 0, &failed("too many such calls wait for their answers"))
            }
        }
    }

    /// Reads a segment piece by piece. The key is checked for each piece, and no lock of the region is held
    /// while the piece is sent: a client that does not read cannot delay a revocation.
    fn segment(
        &mut self,
        request: u64,
        index: u32,
        segment: &Segment,
        shared: &Shared,
    ) -> io::Result<()> {
        if let Err(refusal) = check(segment, shared) {
            return self.refuse(request, index, &refusal);
        }
        let total = segment.bytes as usize;
        let mut at = 0;
        loop {
            let bytes = (total - at).min(MAX_DATA_BYTES);
            let offset = at as u64;
            let header = Header { segment: index, offset, ..Header::new(Kind::Data, request) };
            let mut frame = Vec::with_capacity(wire::HEADER_BYTES + bytes);
            header.append_to(&mut frame);
            frame.resize(wire::HEADER_BYTES + bytes, 0);
            let into = &mut frame[wire::HEADER_BYTES..];
            let read = shared.settings.regions.read(&segment.key, segment.offset + offset, into);
            if let Err(refusal) = read {
                return self.refuse(request, index, &refusal);
            }
            shared.served_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            self.push(frame)?;
            at += bytes;
            if at == total {
                return Ok(());
            }
        }
    }

    /// Reads a segment piece by piece, and writes it to its place. Key and locks are as with
    /// [`Answer::segment`]: what is written lies in memory of this process, not in the region.
    fn placed_segment(
        &mut self,
        request: u64,
        index: u32,
        segment: &Segment,
        (memory, place): (&SharedMemory, u64),
        shared: &Shared,
    ) -> io::Result<()> {
        if let Err(refusal) = check(segment, shared) {
            return self.refuse(request, index, &refusal);
        }
        if !memory.has(place, segment.bytes) {
            return Err(invalid("the client asked for bytes outside of its memory"));
        }
        let total = segment.bytes as usize;
        let mut piece = vec![0; total.min(PLACED_PIECE_BYTES)];
        for at in (0..total).step_by(PLACED_PIECE_BYTES) {
            let into = &mut piece[..(total - at).min(PLACED_PIECE_BYTES)];
            let read = shared.settings.regions.read(&segment.key, segment.offset + at as u64, into);
            if let Err(refusal) = read {
                return self.refuse(request, index, &refusal);
            }
            memory.write(place + at as u64, into)?;
            shared.served_bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        }
        let header = Header { code: PLACED, segment: index, ..Header::new(Kind::Data, request) };
        let mut frame = Vec::with_capacity(wire::HEADER_BYTES);
        header.append_to(&mut frame);
        self.push(frame)
    }

    fn refuse(&mut self, request: u64, segment: u32, refusal: &Refusal) -> io::Result<()> {
        let (code, offset, words) = wire::encode_refusal(refusal);
        let header = Header { code, segment, offset, ..Header::new(Kind::Refused, request) };
        let mut frame = Vec::new();
        header.append_to(&mut frame);
        frame.extend_from_slice(&words.as_bytes()[..words.len().min(MAX_DATA_BYTES)]);
        self.push(frame)
    }

    fn reply(&mut self, request: u64, reply: &[u8]) -> io::Result<()> {
        let mut offset = 0;
        loop {
            let part = &reply[offset..reply.len().min(offset + MAX_DATA_BYTES)];
            let end = offset + part.len();
            let code = if end == reply.len() { LAST } else { 0 };
            let header =
                Header { code, offset: offset as u64, ..Header::new(Kind::Reply, request) };
            let mut frame = Vec::with_capacity(wire::HEADER_BYTES + part.len());
            header.append_to(&mut frame);
            frame.extend_from_slice(part);
            self.push(frame)?;
            if code == LAST {
                return Ok(());
            }
            offset = end;
        }
    }

    fn push(&mut self, frame: Vec<u8>) -> io::Result<()> {
        self.bytes += frame.len();
        self.frames.push(frame);
        if self.bytes >= SEND_AT_BYTES { self.send() } else { Ok(()) }
    }

    /// Sends what is not sent yet.
    pub fn send(&mut self) -> io::Result<()> {
        self.bytes = 0;
        let frames = std::mem::take(&mut self.frames);
        let mut sender = locked(self.sender);
        sender.send(frames.iter().map(Vec::as_slice))
    }
}

/// The end of a segment first, so that one that is not in the region is refused without a read.
fn check(segment: &Segment, shared: &Shared) -> Result<(), Refusal> {
    if segment.bytes > MAX_SEGMENT_BYTES {
        return Err(failed("the segment is too long"));
    }
    let end = segment.offset.checked_add(u64::from(segment.bytes));
    shared.settings.regions.read(&segment.key, end.unwrap_or(u64::MAX), &mut [])
}

fn failed(why: &str) -> Refusal {
    Refusal::Failed { why: why.to_owned() }
}
