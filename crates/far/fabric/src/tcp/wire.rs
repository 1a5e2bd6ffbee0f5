//! The bytes of hellos and frames.

use std::io;

use crate::error::Refusal;
use crate::fabric::Segment;
use crate::region::RegionKey;

pub const MAGIC: [u8; 8] = *b"farforkF";
pub const VERSION: u32 = 1;
pub const HELLO_BYTES: usize = 32;
pub const ANSWER_BYTES: usize = 16;
pub const HEADER_BYTES: usize = 24;
/// The most bytes of a frame before it is sealed. A sealed message has at most 65,535 bytes.
pub const MAX_FRAME_BYTES: usize = 65_535 - 16;
/// The most bytes of a segment in one frame: whole pages.
pub const MAX_DATA_BYTES: usize = 15 * 4096;
pub const SEGMENT_BYTES: usize = RegionKey::BYTES + 12;
/// The most segments of one request.
pub const MAX_SEGMENTS: usize = 1024;
/// The most bytes of the request of a call.
pub const MAX_CALL_BYTES: usize = MAX_FRAME_BYTES - HEADER_BYTES;
/// The most bytes of the reply to a call.
pub const MAX_REPLY_BYTES: usize = 16 << 20;

const _: () =
    assert!(MAX_SEGMENTS * (SEGMENT_BYTES + PLACE_BYTES) + HEADER_BYTES <= MAX_FRAME_BYTES);
const _: () = assert!(MAX_DATA_BYTES + HEADER_BYTES <= MAX_FRAME_BYTES);

/// What an answer to a hello says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    GoOn = 0,
    NoSuchKey = 1,
    OtherVersion = 2,
    TooMany = 3,
    NeedsCertificates = 4,
    WithoutCertificates = 5,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Read = 1,
    Call = 2,
    Data = 3,
    Refused = 4,
    Reply = 5,
}

/// The beginning of each frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub code: u8,
    pub segment: u32,
    pub request: u64,
    pub offset: u64,
}

/// The last part of a reply.
pub const LAST: u8 = 1;
/// A read whose answers go to places in shared memory, which follow its segments; and such an answer.
pub const PLACED: u8 = 1;
/// A call that the fabric answers itself: how to reach the server on the same host.
pub const LOCAL: u8 = 1;
/// Bytes of a server's token, which begins the answer to it. The path of its socket follows.
pub const TOKEN_BYTES: usize = 16;
/// Extension of the file name of a server's socket: nothing else is connected to at a server's word.
pub const SOCKET_EXTENSION: &str = "fabric";
/// Bytes of a place.
pub const PLACE_BYTES: usize = 8;

impl Header {
    pub fn new(kind: Kind, request: u64) -> Header {
        Header { kind, code: 0, segment: 0, request, offset: 0 }
    }

    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&[self.kind as u8, self.code, 0, 0]);
        bytes.extend_from_slice(&self.segment.to_le_bytes());
        bytes.extend_from_slice(&self.request.to_le_bytes());
        bytes.extend_from_slice(&self.offset.to_le_bytes());
    }

    /// The header of a frame, and what follows it; `None` if it is not a frame.
    pub fn split(frame: &[u8]) -> Option<(Header, &[u8])> {
        let (header, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let kind = match header[0] {
            1 => Kind::Read,
            2 => Kind::Call,
            3 => Kind::Data,
            4 => Kind::Refused,
            5 => Kind::Reply,
            _ => return None,
        };
        let reserved_is_zero = header[2..4] == [0, 0];
        let segment = u32_at(header, 4)?;
        let (request, offset) = (u64_at(header, 8)?, u64_at(header, 16)?);
        let header = Header { kind, code: header[1], segment, request, offset };
        reserved_is_zero.then_some((header, payload))
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn append_segment(segment: &Segment, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&segment.key.to_bytes());
    bytes.extend_from_slice(&segment.offset.to_le_bytes());
    bytes.extend_from_slice(&segment.bytes.to_le_bytes());
}

/// The segments of a request; `None` if they are not whole or too many.
pub fn segments(payload: &[u8], count: u32) -> Option<Vec<Segment>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_SEGMENTS)?;
    let (whole, rest) = payload.as_chunks::<SEGMENT_BYTES>();
    if !rest.is_empty() || whole.len() != count {
        return None;
    }
    let segment = |bytes: &[u8; SEGMENT_BYTES]| {
        let key = RegionKey::from_bytes(bytes.first_chunk()?);
        let at = RegionKey::BYTES;
        Some(Segment { key, offset: u64_at(bytes, at)?, bytes: u32_at(bytes, at + 8)? })
    };
    whole.iter().map(segment).collect()
}

/// The segments of a placed request, and their places; `None` as with [`segments`].
pub fn placed_segments(payload: &[u8], count: u32) -> Option<(Vec<Segment>, Vec<u64>)> {
    let split = usize::try_from(count).ok()?.checked_mul(SEGMENT_BYTES)?;
    let (found, places) = payload.split_at_checked(split)?;
    let found = segments(found, count)?;
    let (whole, rest) = places.as_chunks::<PLACE_BYTES>();
    let places: Vec<u64> = whole.iter().map(|place| u64::from_le_bytes(*place)).collect();
    (rest.is_empty() && places.len() == found.len()).then_some((found, places))
}

/// A refusal as code, number and words.
pub fn encode_refusal(refusal: &Refusal) -> (u8, u64, &str) {
    match refusal {
        Refusal::UnknownRegion => (1, 0, ""),
        Refusal::StaleKey => (2, 0, ""),
        Refusal::WrongKey => (3, 0, ""),
        Refusal::OutOfBounds { bytes } => (4, *bytes, ""),
        Refusal::Failed { why } => (5, 0, why),
    }
}

/// The refusal of a frame; `None` for an unknown code.
pub fn refusal(header: &Header, payload: &[u8]) -> Option<Refusal> {
    Some(match header.code {
        1 => Refusal::UnknownRegion,
        2 => Refusal::StaleKey,
        3 => Refusal::WrongKey,
        4 => Refusal::OutOfBounds { bytes: header.offset },
        5 => {
            let words = String::from_utf8_lossy(payload);
            // The words end up in logs and on terminals.
            let why = words.chars().filter(|c| !c.is_control()).take(512).collect();
            Refusal::Failed { why }
        }
        _ => return None,
    })
}

/// What the peer sent breaks the protocol.
pub fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
