//! The reading end of a connection.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farfork_sys::words;

use super::handshake::{self, Failed};
use super::pending::Pending;
use super::sealed::{self, Receiver, Sender};
use super::wire::{self, Header, Kind, MAX_CALL_BYTES, MAX_SEGMENTS, VERSION};
use crate::MAX_SEGMENT_BYTES;
use crate::error::FabricError;
use crate::fabric::{Batch, Completions, Fabric, Segment};
use crate::key::SharedKey;

/// How a client behaves.
#[derive(Debug, Clone, Copy)]
pub struct ClientSettings {
    /// How long connecting and the handshake may take, and how long sending may block.
    pub timeout: Duration,
    /// Bytes that may be asked for and not have arrived.
    pub window_bytes: u64,
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings { timeout: Duration::from_secs(5), window_bytes: 16 << 20 }
    }
}

/// A connection to a [`Server`](super::Server).
pub struct TcpFabric {
    pending: Arc<Pending>,
    sender: Mutex<Sender>,
    reader: Option<JoinHandle<()>>,
}

impl TcpFabric {
    /// Connects to `address`, such as `10.0.0.2:7070`, and proves the shared key.
    ///
    /// # Errors
    ///
    /// Nothing listens there, it has another version or key, or does not answer in time.
    pub fn connect(
        address: &str,
        key: &SharedKey,
        settings: ClientSettings,
    ) -> Result<TcpFabric, FabricError> {
        let failed = |error: io::Error| FabricError::Connect {
            peer: address.to_owned(),
            why: words::of(&error),
        };
        let mut stream = dial(address, settings.timeout).map_err(failed)?;
        handshake::prepare(&stream, settings.timeout, settings.timeout).map_err(failed)?;
        let state = handshake::connect(&mut stream, key)
            .map_err(|error| handshake_error(address, error))?;
        // From now on deadlines are those of requests, and the reading thread waits for frames.
        stream.set_read_timeout(None).map_err(failed)?;
        let (sender, receiver) = sealed::halves(stream, state).map_err(failed)?;
        let pending = Arc::new(Pending::new(address.to_owned(), settings.window_bytes));
        let sender = Mutex::new(sender);
        let thread = std::thread::Builder::new().name("fabric-client".to_owned());
        let shared = Arc::clone(&pending);
        let reader = thread.spawn(move || receive_all(&shared, receiver)).map_err(failed)?;
        Ok(TcpFabric { pending, sender, reader: Some(reader) })
    }

    fn send(&self, frame: &[u8]) -> Result<(), FabricError> {
        let mut sender = lock(&self.sender);
        if let Some(error) = self.pending.broken() {
            return Err(error);
        }
        sender.send([frame]).map_err(|error| {
            let why = format!("sending failed: {}", words::of(&error));
            let error = FabricError::Broken { peer: self.peer().to_owned(), why };
            self.pending.end(error.clone());
            sender.close();
            error
        })
    }

    /// Asks for segments whose credits were taken.
    fn ask(
        &self,
        first: usize,
        segments: &[Segment],
        completions: &Completions,
    ) -> Result<(), FabricError> {
        if segments.is_empty() {
            return Ok(());
        }
        let request = self.pending.read(first, segments, completions)?;
        let mut frame = Vec::new();
        let header = Header { segment: segments.len() as u32, ..Header::new(Kind::Read, request) };
        header.append_to(&mut frame);
        segments.iter().for_each(|segment| wire::append_segment(segment, &mut frame));
        self.send(&frame)
    }
}

impl Fabric for TcpFabric {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn is_one_sided(&self) -> bool {
        false
    }

    fn peer(&self) -> &str {
        self.pending.peer()
    }

    fn broken(&self) -> Option<FabricError> {
        self.pending.broken()
    }

    fn submit(&self, segments: &[Segment], deadline: Instant) -> Result<Batch, FabricError> {
        if let Some(long) = segments.iter().find(|segment| segment.bytes > MAX_SEGMENT_BYTES) {
            return Err(FabricError::TooLong { bytes: long.bytes });
        }
        let (batch, completions) = Batch::new(self.peer(), segments.len(), deadline);
        let mut first = 0;
        for (index, segment) in segments.iter().enumerate() {
            let is_full = index - first == MAX_SEGMENTS;
            let has_credit = !is_full && self.pending.try_take(segment.bytes);
            if has_credit {
                continue;
            }
            // What was asked for must be on its way before waiting for credits that it will bring.
            self.ask(first, &segments[first..index], &completions)?;
            first = index;
            self.pending.take(segment.bytes, deadline)?;
        }
        self.ask(first, &segments[first..], &completions)?;
        Ok(batch)
    }

    fn call(&self, request: &[u8], deadline: Instant) -> Result<Vec<u8>, FabricError> {
        if request.len() > MAX_CALL_BYTES {
            let bytes = request.len();
            return Err(FabricError::CallTooLong { bytes, limit: MAX_CALL_BYTES });
        }
        let (sender, reply) = sync_channel(1);
        let number = self.pending.call(sender)?;
        let mut frame = Vec::with_capacity(request.len() + wire::HEADER_BYTES);
        Header::new(Kind::Call, number).append_to(&mut frame);
        frame.extend_from_slice(request);
        self.send(&frame)?;
        let wait = deadline.saturating_duration_since(Instant::now());
        let late = |_| Err(FabricError::DeadlinePassed { peer: self.peer().to_owned() });
        reply.recv_timeout(wait).unwrap_or_else(late)
    }
}

impl Drop for TcpFabric {
    fn drop(&mut self) {
        let why = "this side closed it".to_owned();
        self.pending.end(FabricError::Broken { peer: self.peer().to_owned(), why });
        lock(&self.sender).close();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Takes in frames until the connection ends.
fn receive_all(pending: &Pending, mut receiver: Receiver) {
    let why = loop {
        match receiver.next() {
            Ok(Some(frame)) => {
                if let Err(error) = pending.receive(frame) {
                    break words::of(&error);
                }
            }
            Ok(None) => break "the server closed it, or was ended".to_owned(),
            Err(error) => break words::of(&error),
        }
    };
    pending.end(FabricError::Broken { peer: pending.peer().to_owned(), why });
    receiver.close();
}

fn dial(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn handshake_error(address: &str, failed: Failed) -> FabricError {
    let peer = address.to_owned();
    match failed {
        Failed::Io(error) => {
            let why = format!("the handshake failed: {}", words::of(&error));
            FabricError::Connect { peer, why }
        }
        Failed::OtherVersion(found) => FabricError::OtherVersion { peer, found, known: VERSION },
        Failed::NoSuchKey => FabricError::WrongSharedKey { peer },
        Failed::TooMany => {
            FabricError::Connect { peer, why: "it has too many connections".to_owned() }
        }
        Failed::PeerWithoutKey => FabricError::PeerWithoutKey { peer },
    }
}

fn lock(sender: &Mutex<Sender>) -> std::sync::MutexGuard<'_, Sender> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}
