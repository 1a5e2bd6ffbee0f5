//! The serving end: threads that answer requests from the regions of this node.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::handshake;
use super::sealed::{self, Receiver, Sender, invalid};
use super::streams::Streams;
use super::wire::{self, Header, Kind, LAST, MAX_DATA_BYTES, MAX_REPLY_BYTES};
use crate::MAX_SEGMENT_BYTES;
use crate::error::Refusal;
use crate::fabric::Segment;
use crate::key::KeyRing;
use crate::region::Regions;

/// Answers calls. It runs on a thread of the connection.
pub type Service = Arc<dyn Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// What a server serves, and to which clients.
#[derive(Clone)]
pub struct ServerSettings {
    /// What clients may read.
    pub regions: Arc<Regions>,
    /// The keys that clients may have.
    pub keys: KeyRing,
    /// Answers calls.
    pub service: Service,
    /// Threads that answer requests of one connection.
    pub workers: usize,
    /// The most connections of clients that have proved their key.
    pub connections: usize,
    /// The most others. When there are more, the oldest of them is closed.
    pub strangers: usize,
    /// How long a handshake may take, and how long a client may leave an answer unread.
    pub timeout: Duration,
}

impl ServerSettings {
    /// Serves these regions to clients with these keys, and refuses calls.
    pub fn new(regions: Arc<Regions>, keys: KeyRing) -> ServerSettings {
        ServerSettings {
            regions,
            keys,
            service: Arc::new(|_| Err("it answers no calls".to_owned())),
            workers: 2,
            connections: 64,
            strangers: 32,
            timeout: Duration::from_secs(10),
        }
    }
}

/// A running server. It stops when it is dropped.
pub struct Server {
    address: SocketAddr,
    listener: TcpListener,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    settings: ServerSettings,
    is_stopping: AtomicBool,
    streams: Mutex<Streams>,
    served_bytes: AtomicU64,
}

/// Requests that wait for a worker. The reader waits when there are more.
const QUEUE: usize = 64;
/// A worker sends when it has so many bytes.
const SEND_AT_BYTES: usize = 3 * MAX_DATA_BYTES;

impl Server {
    /// Serves connections to `listener` on threads of its own.
    ///
    /// # Errors
    ///
    /// The listener has no address, or no thread can be started.
    pub fn start(listener: TcpListener, settings: ServerSettings) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            settings,
            is_stopping: AtomicBool::new(false),
            streams: Mutex::default(),
            served_bytes: AtomicU64::new(0),
        });
        let (accepting, for_thread) = (listener.try_clone()?, Arc::clone(&shared));
        let acceptor = std::thread::Builder::new()
            .name("fabric-accept".to_owned())
            .spawn(move || accept_all(&accepting, &for_thread))?;
        Ok(Server { address, listener, shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes of segments that were sent so far.
    pub fn served_bytes(&self) -> u64 {
        self.shared.served_bytes.load(Ordering::Relaxed)
    }

    /// Connections at the moment.
    pub fn connections(&self) -> usize {
        self.shared.streams().len()
    }

    /// Closes the listener's port and all connections.
    pub fn stop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // On Linux this ends a waiting accept.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.shared.streams().shut_down();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    for number in 0.. {
        let accepted = listener.accept();
        if shared.is_stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, or the client went away.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(known) = stream.try_clone() else { continue };
        shared.streams().add(number, known, shared.settings.strangers);
        // A stop between the look above and here must end this stream, too.
        if shared.is_stopping.load(Ordering::SeqCst) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let for_thread = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("fabric-serve".to_owned());
        let started = thread.spawn(move || {
            // How a connection ends concerns its client, which reports it.
            let _ = serve(stream, number, &for_thread);
            for_thread.streams().remove(number);
        });
        if started.is_err() {
            shared.streams().remove(number);
        }
    }
}

/// One connection, from its handshake to its end.
fn serve(mut stream: TcpStream, number: u64, shared: &Shared) -> io::Result<()> {
    let timeout = shared.settings.timeout;
    handshake::prepare(&stream, timeout, timeout)?;
    let admit = || shared.streams().admit(number, shared.settings.connections);
    let state = handshake::accept(&mut stream, &shared.settings.keys, admit)
        .map_err(|_| invalid("the handshake failed"))?;
    stream.set_read_timeout(None)?;
    let (sender, receiver) = sealed::halves(stream, state)?;
    let sender = Mutex::new(sender);
    let (requests, queue) = sync_channel(QUEUE);
    let queue = Mutex::new(queue);
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(request) = next else { return };
            let mut answer = Answer { sender: &sender, frames: Vec::new(), bytes: 0 };
            if answer.give(request, shared).and_then(|()| answer.send()).is_err() {
                // The reader ends with the stream, and then the queue.
                lock(&sender).close();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..shared.settings.workers.max(1) {
            std::thread::Builder::new().name("fabric-work".to_owned()).spawn_scoped(scope, work)?;
        }
        // The reader owns the queue's sender: when it ends, the workers end.
        receive_all(receiver, requests)
    })
}

enum Request {
    Read { request: u64, segments: Vec<Segment> },
    Call { request: u64, bytes: Vec<u8> },
}

/// Hands requests to the workers until the connection ends.
fn receive_all(mut receiver: Receiver, requests: SyncSender<Request>) -> io::Result<()> {
    let ended = loop {
        let request = match receiver.next() {
            Ok(Some(frame)) => request(frame),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        match request {
            Some(request) => {
                if let Err(mpsc::SendError(_)) = requests.send(request) {
                    break Ok(());
                }
            }
            None => break Err(invalid("the client sent a frame that is not a request")),
        }
    };
    receiver.close();
    ended
}

fn request(frame: &[u8]) -> Option<Request> {
    let (header, payload) = Header::split(frame)?;
    let request = header.request;
    match header.kind {
        Kind::Read => {
            Some(Request::Read { request, segments: wire::segments(payload, header.segment)? })
        }
        Kind::Call => Some(Request::Call { request, bytes: payload.to_vec() }),
        Kind::Data | Kind::Refused | Kind::Reply => None,
    }
}

/// Frames of an answer that are not sent yet.
struct Answer<'s> {
    sender: &'s Mutex<Sender>,
    frames: Vec<Vec<u8>>,
    bytes: usize,
}

impl Answer<'_> {
    fn give(&mut self, request: Request, shared: &Shared) -> io::Result<()> {
        match request {
            Request::Read { request, segments } => {
                for (index, segment) in segments.iter().enumerate() {
                    self.segment(request, index as u32, segment, shared)?;
                }
                Ok(())
            }
            Request::Call { request, bytes } => match (shared.settings.service)(&bytes) {
                Ok(reply) if reply.len() <= MAX_REPLY_BYTES => self.reply(request, &reply),
                Ok(_) => self.refuse(request, 0, &failed("its answer is too long")),
                Err(why) => self.refuse(request, 0, &failed(&why)),
            },
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
        if segment.bytes > MAX_SEGMENT_BYTES {
            return self.refuse(request, index, &failed("the segment is too long"));
        }
        // The end first, so that a segment that is not in the region is refused without a read.
        let end = segment.offset.checked_add(u64::from(segment.bytes));
        let checked = shared.settings.regions.read(&segment.key, end.unwrap_or(u64::MAX), &mut []);
        if let Err(refusal) = checked {
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

    fn send(&mut self) -> io::Result<()> {
        self.bytes = 0;
        let frames = std::mem::take(&mut self.frames);
        lock(self.sender).send(frames.iter().map(Vec::as_slice))
    }
}

fn failed(why: &str) -> Refusal {
    Refusal::Failed { why: why.to_owned() }
}

fn lock(sender: &Mutex<Sender>) -> MutexGuard<'_, Sender> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}
