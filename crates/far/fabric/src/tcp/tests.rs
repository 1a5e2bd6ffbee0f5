//! The layout of frames, and what a client takes in from a server that lies.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::pending::{Pending, Reply, memory_bytes};
use super::wire::{
    Header, Kind, LAST, MAX_REPLY_BYTES, PLACED, append_segment, encode_refusal, placed_segments,
    refusal, segments,
};
use super::{ClientSettings, Connection, Server, ServerSettings};
use crate::error::{FabricError, Refusal};
use crate::fabric::{Batch, Fabric, Segment};
use crate::key::SharedKey;
use crate::lane::{FIRST_CODE, Lane};
use crate::memory::SharedMemory;
use crate::region::{Region, RegionKey, Regions};

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
    waiting_with(Pending::new("10.0.0.9:1".to_owned(), 100))
}

/// The same, where answers come by shared memory.
fn waiting_for_memory() -> Waiting {
    let memory = SharedMemory::new(memory_bytes(100)).unwrap();
    waiting_with(Pending::with_memory("10.0.0.9:1".to_owned(), 100, Some(memory)))
}

fn waiting_with(pending: Pending) -> Waiting {
    let deadline = Instant::now() + Duration::from_millis(20);
    let (batch, completions) = Batch::new("10.0.0.9:1", 2, deadline);
    let credits = [pending.try_take(10).unwrap(), pending.try_take(0).unwrap()];
    let asked = [(segment(10), credits[0]), (segment(0), credits[1])];
    let request = pending.read(0, &asked, &completions).unwrap();
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

    fn placed(&self, segment: u32, offset: u64, payload: &[u8]) -> Result<(), String> {
        let header = Header::new(Kind::Data, self.request);
        self.receive(Header { code: PLACED, segment, offset, ..header }, payload)
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
    assert!(waiting.pending.try_take(100).is_some(), "all credits are back");
    assert!(waiting.data(0, 0, b"0").unwrap_err().contains("request that was not made"));
}

#[test]
fn places_have_the_bytes_of_their_segments() {
    let mut waiting = waiting_for_memory();
    // The first place; the empty segment has none.
    waiting.pending.memory().unwrap().write(0, b"0123456789").unwrap();
    waiting.placed(1, 0, b"").unwrap();
    waiting.placed(0, 0, b"").unwrap();
    assert_eq!(waiting.batch.next().unwrap().result.unwrap(), b"");
    assert_eq!(waiting.batch.next().unwrap().result.unwrap(), b"0123456789");
    let credit = waiting.pending.try_take(100).unwrap();
    assert_eq!(credit.place, 0, "credits and places are back");
}

/// While an answer is due its place belongs to it, whatever its deadline was.
#[test]
fn places_of_late_answers_are_not_used_again() {
    let mut waiting = waiting_for_memory();
    while waiting.batch.next().is_some() {}
    assert_ne!(waiting.pending.try_take(10).unwrap().place, 0);
    waiting.placed(0, 0, b"").unwrap();
    assert_eq!(waiting.pending.try_take(10).unwrap().place, 0);
}

#[test]
fn lies_about_places_are_seen() {
    type Lie<'l> = (&'l str, &'l dyn Fn(&Waiting) -> Result<(), String>);
    let lies: [Lie<'_>; 6] = [
        ("bytes in the frame", &|w| w.data(0, 0, b"0123456789")),
        ("bytes beside a place", &|w| w.placed(0, 0, b"0")),
        ("an offset", &|w| w.placed(0, 1, b"")),
        ("a segment that was not asked for", &|w| w.placed(2, 0, b"")),
        ("a segment twice", &|w| w.placed(0, 0, b"").and_then(|()| w.placed(0, 0, b""))),
        ("another request", &|w| {
            let header = Header { code: PLACED, ..Header::new(Kind::Data, w.request + 1) };
            w.receive(header, b"")
        }),
    ];
    for (what, lie) in lies {
        assert!(lie(&waiting_for_memory()).is_err(), "{what}");
    }
    assert!(waiting().placed(0, 0, b"").is_err(), "a place without memory");
}

#[test]
fn placed_requests_have_the_layout_of_the_document() {
    let mut payload = Vec::new();
    append_segment(&segment(1), &mut payload);
    append_segment(&segment(2), &mut payload);
    payload.extend([5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]);
    let expected = (vec![segment(1), segment(2)], vec![5, 6 << 56]);
    assert_eq!(placed_segments(&payload, 2), Some(expected));
    for (bytes, count) in [(&payload[..], 1), (&payload[..], 3), (&payload[..111], 2)] {
        assert_eq!(placed_segments(bytes, count), None);
    }
    assert_eq!(placed_segments(&payload, u32::MAX), None);
}

/// A region that counts its reads.
struct Counted(AtomicU64);

impl Region for Counted {
    fn bytes(&self) -> u64 {
        10_000
    }

    fn read(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        into.fill(7);
        Ok(())
    }
}

/// Clients that ask for bytes outside of their memory, or in the other transport's way.
#[test]
fn bad_requests_for_places_end_the_connection_without_a_read() {
    let folder = tempfile::tempdir().unwrap();
    let regions = Arc::new(Regions::new());
    let counted = Arc::new(Counted(AtomicU64::new(0)));
    let key = regions.register(counted.clone()).unwrap();
    let shared = SharedKey::random().unwrap();
    let mut settings = ServerSettings::new(regions, shared.clone().alone());
    settings.local = Some(folder.path().join("s.fabric"));
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap();
    let address = server.address().to_string();
    let near = || Connection::connect_nearest(&address, &shared, ClientSettings::default());
    let far = || Connection::connect(&address, &shared, ClientSettings::default());
    let segment = Segment { key, offset: 0, bytes: 4096 };
    let memory = memory_bytes(ClientSettings::default().window_bytes);
    let placed = |place: u64| (PLACED, place.to_le_bytes().to_vec());
    for (connection, (code, place)) in [
        (near().unwrap(), placed(memory - 4095)),
        (near().unwrap(), placed(u64::MAX)),
        (near().unwrap(), (0, Vec::new())),
        (far().unwrap(), placed(0)),
    ] {
        let mut payload = Vec::new();
        append_segment(&segment, &mut payload);
        payload.extend(place);
        let header = Header { code, segment: 1, ..Header::new(Kind::Read, 99) };
        connection.send(&frame(header, &payload)).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while connection.broken().is_none() {
            assert!(Instant::now() < end, "{} goes on", connection.name());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(counted.0.load(Ordering::SeqCst), 0);
    near()
        .unwrap()
        .read(key, 9_000, &mut [0; 1000], Instant::now() + Duration::from_secs(5))
        .unwrap();
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

/// A lane with calls that do not end before they may.
#[derive(Default)]
struct Slow {
    begun: AtomicU64,
    may_end: Mutex<u64>,
    changed: Condvar,
}

const SLOW: u8 = FIRST_CODE + 1;

impl Slow {
    fn may_end(&self, calls: u64) {
        *self.may_end.lock().unwrap() += calls;
        self.changed.notify_all();
    }
}

/// The lane of each connection.
struct SlowLane(Arc<Slow>);

impl Lane for SlowLane {
    fn answer(&self, code: u8, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        if code == SLOW {
            self.0.begun.fetch_add(1, Ordering::SeqCst);
            let may_end = self.0.may_end.lock().unwrap();
            *self.0.changed.wait_while(may_end, |calls| *calls == 0).unwrap() -= 1;
        }
        Ok(request.to_vec())
    }

    fn is_slow(&self, code: u8) -> bool {
        code == SLOW
    }
}

fn with_slow_lane() -> (Arc<Slow>, Server, RegionKey, Connection) {
    let (slow, regions) = (Arc::new(Slow::default()), Arc::new(Regions::new()));
    let key = regions.register(Arc::new(vec![7; 5000])).unwrap();
    let shared = SharedKey::random().unwrap();
    let mut settings = ServerSettings::new(regions, shared.clone().alone());
    let for_lanes = Arc::clone(&slow);
    settings.lanes = Some(Arc::new(move || Box::new(SlowLane(Arc::clone(&for_lanes)))));
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap();
    let address = server.address().to_string();
    let client = Connection::connect(&address, &shared, ClientSettings::default()).unwrap();
    (slow, server, key, client)
}

fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn no_read_waits_for_slow_calls_of_a_lane() {
    let (slow, _server, key, client) = with_slow_lane();
    let asked: Vec<_> = (0..5_u8).map(|i| client.begin_ask(SLOW, &[i]).unwrap()).collect();
    client.read(key, 0, &mut [0; 5000], in_time()).unwrap();
    assert_eq!(client.ask_service(FIRST_CODE, b"fast", in_time()).unwrap(), b"fast");
    assert!(asked.iter().all(|reply| reply.try_recv().is_err()));
    slow.may_end(5);
    for (i, reply) in (0..5_u8).zip(asked) {
        let reply = reply.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(reply.unwrap(), [i]);
    }
}

#[test]
fn too_many_slow_calls_are_refused() {
    let (slow, _server, key, client) = with_slow_lane();
    let asked: Vec<_> = (0..80).map(|_| client.begin_ask(SLOW, b"").unwrap()).collect();
    let last = asked.last().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(last.unwrap_err().to_string().contains("too many such calls"));
    client.read(key, 0, &mut [0; 5000], in_time()).unwrap();
    slow.may_end(80);
    let mut answered = 0;
    for reply in &asked[..79] {
        answered += u32::from(reply.recv_timeout(Duration::from_secs(20)).unwrap().is_ok());
    }
    // One that was begun, perhaps, and those that waited.
    assert!((64..=65).contains(&answered), "{answered}");
}

#[test]
fn nothing_is_begun_for_a_client_that_has_gone() {
    let (slow, server, _, client) = with_slow_lane();
    let asked: Vec<_> = (0..60).map(|_| client.begin_ask(SLOW, b"").unwrap()).collect();
    // Those before it have been handed on then.
    client.ask_service(FIRST_CODE, b"", in_time()).unwrap();
    drop(client);
    assert!(asked.iter().all(|reply| reply.recv().unwrap().is_err()));
    // One after the other, because the server takes its time to see the end of the stream.
    let end = in_time();
    while server.connections() > 0 {
        assert!(Instant::now() < end, "the connection does not end");
        slow.may_end(1);
        std::thread::sleep(Duration::from_millis(50));
    }
    let begun = slow.begun.load(Ordering::SeqCst);
    assert!(begun < 60, "{begun}");
}
