//! The layout of frames, and what a client takes in from a server that lies.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use super::pending::{Pending, Reply};
use super::wire::{
    Header, Kind, LAST, MAX_REPLY_BYTES, append_segment, encode_refusal, refusal, segments,
};
use crate::error::{FabricError, Refusal};
use crate::fabric::{Batch, Segment};
use crate::region::RegionKey;

fn segment(bytes: u32) -> Segment {
    let key = RegionKey::from_bytes(&std::array::from_fn(|at| at as u8));
    Segment { key, offset: 0x0102_0304_0506_0708, bytes }
}

#[test]
fn frames_have_the_layout_of_the_document() {
    let mut frame = Vec::new();
    let header =
        Header { kind: Kind::Read, code: 0, segment: 1, request: 0x1122_3344_5566_7788, offset: 5 };
    header.append_to(&mut frame);
    append_segment(&segment(0xa1b2_c3d4), &mut frame);
    let mut expected = vec![1, 0, 0, 0, 1, 0, 0, 0];
    expected.extend([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 5, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend(0..36);
    expected.extend([8, 7, 6, 5, 4, 3, 2, 1, 0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(frame, expected);
    let (read, payload) = Header::split(&frame).unwrap();
    assert_eq!(read, header);
    assert_eq!(segments(payload, 1).unwrap(), [segment(0xa1b2_c3d4)]);
}

#[test]
fn other_bytes_are_not_frames() {
    let mut frame = Vec::new();
    Header::new(Kind::Read, 1).append_to(&mut frame);
    append_segment(&segment(1), &mut frame);
    assert!(Header::split(&frame[..23]).is_none());
    for (at, value) in [(0, 0), (0, 6), (2, 1), (3, 1)] {
        let mut other = frame.clone();
        other[at] = value;
        assert!(Header::split(&other).is_none(), "{at}");
    }
    let payload = &frame[24..];
    for (bytes, count) in [(payload, 0), (payload, 2), (&payload[..47], 1), (payload, u32::MAX)] {
        assert!(segments(bytes, count).is_none());
    }
}

#[test]
fn refusals_survive_the_wire() {
    for original in [
        Refusal::UnknownRegion,
        Refusal::StaleKey,
        Refusal::WrongKey,
        Refusal::OutOfBounds { bytes: 77 },
        Refusal::Failed { why: "it cannot".to_owned() },
    ] {
        let (code, offset, words) = encode_refusal(&original);
        let header = Header { code, offset, ..Header::new(Kind::Refused, 1) };
        assert_eq!(refusal(&header, words.as_bytes()), Some(original));
    }
    assert_eq!(refusal(&Header { code: 99, ..Header::new(Kind::Refused, 1) }, b""), None);
}

/// A client that waits for two segments, of 10 and of 0 bytes.
struct Waiting {
    pending: Pending,
    batch: Batch,
    request: u64,
}

fn waiting() -> Waiting {
    let pending = Pending::new("10.0.0.9:1".to_owned(), 100);
    let deadline = Instant::now() + Duration::from_millis(20);
    let (batch, completions) = Batch::new("10.0.0.9:1", 2, deadline);
    assert!(pending.try_take(10) && pending.try_take(0));
    let request = pending.read(0, &[segment(10), segment(0)], &completions).unwrap();
    Waiting { pending, batch, request }
}

fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    header.append_to(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

impl Waiting {
    fn data(&self, segment: u32, offset: u64, payload: &[u8]) -> Result<(), String> {
        let header = Header { segment, offset, ..Header::new(Kind::Data, self.request) };
        self.receive(header, payload)
    }

    fn receive(&self, header: Header, payload: &[u8]) -> Result<(), String> {
        self.pending.receive(&frame(header, payload)).map_err(|error| error.to_string())
    }
}

#[test]
fn parts_of_segments_come_in_any_order_of_segments() {
    let mut waiting = waiting();
    waiting.data(0, 0, b"0123").unwrap();
    waiting.data(1, 0, b"").unwrap();
    waiting.data(0, 4, b"456789").unwrap();
    let first = waiting.batch.next().unwrap();
    assert_eq!((first.segment, first.result.unwrap()), (1, Vec::new()));
    let second = waiting.batch.next().unwrap();
    assert_eq!((second.segment, second.result.unwrap()), (0, b"0123456789".to_vec()));
    assert!(waiting.batch.next().is_none());
    assert!(waiting.pending.try_take(100), "all credits are back");
    assert!(waiting.data(0, 0, b"0").unwrap_err().contains("request that was not made"));
}

#[test]
fn lies_about_segments_are_seen() {
    type Lie<'l> = (&'l str, &'l dyn Fn(&Waiting) -> Result<(), String>);
    let lies: [Lie<'_>; 9] = [
        ("too many bytes", &|w| w.data(0, 0, b"0123456789a")),
        ("too many bytes in the end", &|w| {
            w.data(0, 0, b"0123").and_then(|()| w.data(0, 4, b"4567890"))
        }),
        ("a gap", &|w| w.data(0, 1, b"123")),
        ("a part twice", &|w| w.data(0, 0, b"0123").and_then(|()| w.data(0, 0, b"0123"))),
        ("nothing, which would go on for ever", &|w| w.data(0, 0, b"")),
        ("a segment that was not asked for", &|w| w.data(2, 0, b"")),
        ("a segment twice", &|w| w.data(1, 0, b"").and_then(|()| w.data(1, 0, b""))),
        ("another request", &|w| w.receive(Header::new(Kind::Data, w.request + 1), b"")),
        ("a reply to a read", &|w| w.receive(Header::new(Kind::Reply, w.request), b"")),
    ];
    for (what, lie) in lies {
        assert!(lie(&waiting()).is_err(), "{what}");
    }
    assert!(waiting().pending.receive(b"short").is_err());
}

#[test]
fn short_data_ends_at_the_deadline() {
    let mut waiting = waiting();
    waiting.data(0, 0, b"012345678").unwrap();
    waiting.data(1, 0, b"").unwrap();
    assert!(waiting.batch.next().unwrap().result.is_ok());
    let late = waiting.batch.next().unwrap();
    assert_eq!(late.segment, 0);
    assert!(matches!(late.result, Err(FabricError::DeadlinePassed { .. })));
}

fn call() -> (Pending, Receiver<Reply>, u64) {
    let pending = Pending::new("10.0.0.9:1".to_owned(), 100);
    let (sender, reply) = sync_channel(1);
    let request = pending.call(sender).unwrap();
    (pending, reply, request)
}

#[test]
fn lies_about_replies_are_seen() {
    let part = |request, offset, code, payload: &[u8]| {
        frame(Header { offset, code, ..Header::new(Kind::Reply, request) }, payload)
    };
    let (pending, reply, request) = call();
    pending.receive(&part(request, 0, 0, b"ab")).unwrap();
    pending.receive(&part(request, 2, LAST, b"c")).unwrap();
    assert_eq!(reply.recv().unwrap().unwrap(), b"abc");
    assert!(pending.receive(&part(request, 0, LAST, b"")).is_err(), "a reply twice");
    let (pending, _reply, request) = call();
    assert!(pending.receive(&part(request, 1, LAST, b"")).is_err(), "a gap");
    let data = frame(Header::new(Kind::Data, request), b"");
    assert!(pending.receive(&data).is_err(), "data of a call");
    let many = vec![0; 1 << 20];
    let all = (0..).map(|at| pending.receive(&part(request, at << 20, 0, &many)));
    let taken = all.take_while(Result::is_ok).count();
    assert_eq!(taken, MAX_REPLY_BYTES >> 20, "a reply without an end");
}
