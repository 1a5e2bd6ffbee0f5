//! The reading end of a connection.

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farfork_sys::sync::locked;
use farfork_sys::words;
use snow::StatelessTransportState;

use super::failed::Failed;
use super::handshake;
use super::pending::{Credit, Pending, Reply, memory_bytes};
use super::sealed::{self, Receiver, Sender};
use super::socket::{self, Socket, Until};
use super::tls;
use super::wire::{
    self, Header, Kind, LOCAL, MAX_CALL_BYTES, MAX_SEGMENTS, PLACED, TOKEN_BYTES, VERSION,
};
use crate::MAX_SEGMENT_BYTES;
use crate::certificates::{self, Certificates};
use crate::error::FabricError;
use crate::fabric::{Batch, Completions, Fabric, Segment};
use crate::key::SharedKey;
use crate::memory::{MAX_MEMORY_BYTES, SharedMemory};

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// How long connecting and the handshake may take, and how long sending may block.
    pub timeout: Duration,
    /// Bytes that may be asked for and not have arrived.
    pub window_bytes: u64,
    /// What proves this end beside the key. The server is demanded to prove itself in the same way.
    pub certificates: Option<Certificates>,
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            timeout: Duration::from_secs(5),
            window_bytes: 16 << 20,
            certificates: None,
        }
    }
}

/// How long a server may take to answer at its socket. It has just answered by TCP.
const LOCAL_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection to a [`Server`](super::Server), by TCP alone or with shared memory.
pub struct Connection {
    pending: Arc<Pending>,
    sender: Mutex<Sender>,
    reader: Option<JoinHandle<()>>,
    is_verified: bool,
    /// The address of this end; `None` on one host.
    local_ip: Option<IpAddr>,
}

/// Where the reply to a call comes.
pub type Answered = mpsc::Receiver<Reply>;

/// What a server answers about its host.
#[derive(PartialEq, Eq)]
struct Local {
    /// Random: no other server has it.
    token: [u8; TOKEN_BYTES],
    /// Its socket.
    path: PathBuf,
}

impl Connection {
    /// Connects to `address`, such as `10.0.0.2:7070`, by TCP, and proves the shared key.
    ///
    /// # Errors
    ///
    /// Nothing listens there, it has another version or key, or does not answer in time.
    pub fn connect(
        address: &str,
        key: &SharedKey,
        settings: ClientSettings,
    ) -> Result<Connection, FabricError> {
        let failed = cannot_connect(address);
        let stream = dial(address, settings.timeout).map_err(&failed)?;
        let local_ip = stream.local_addr().map_err(&failed)?.ip();
        let mut socket = Socket::Tcp(stream);
        let state = greet(address, &mut socket, key, &settings, settings.timeout)?;
        let pending = Pending::new(address.to_owned(), settings.window_bytes);
        let is_verified = settings.certificates.is_some();
        Connection::over(socket, state, pending, is_verified, Some(local_ip))
    }

    /// Connects in the same way, and goes on with shared memory if the server is on this host and offers it.
    /// That it is the same server is proved by its token.
    ///
    /// # Errors
    ///
    /// As with [`Connection::connect`]. Without shared memory the connection is one of TCP.
    pub fn connect_nearest(
        address: &str,
        key: &SharedKey,
        settings: ClientSettings,
    ) -> Result<Connection, FabricError> {
        let deadline = Instant::now() + settings.timeout;
        let far = Connection::connect(address, key, settings.clone())?;
        let Some(local) = far.local(deadline) else { return Ok(far) };
        let timeout = deadline.saturating_duration_since(Instant::now());
        let settings = ClientSettings { timeout, ..settings };
        let soon = Instant::now() + 2 * LOCAL_TIMEOUT;
        match Connection::by_memory(address, &local.path, key, settings) {
            Ok(near) if near.local(deadline.min(soon)).as_ref() == Some(&local) => Ok(near),
            _ => Ok(far),
        }
    }

    /// Connects to the socket of a server of this host, which `address` names in messages.
    fn by_memory(
        address: &str,
        path: &Path,
        key: &SharedKey,
        settings: ClientSettings,
    ) -> Result<Connection, FabricError> {
        let failed = cannot_connect(address);
        let stream = socket::connect(path).map_err(&failed)?;
        socket::demand_same_user(&stream).map_err(&failed)?;
        let bytes = memory_bytes(settings.window_bytes).min(MAX_MEMORY_BYTES);
        let memory = SharedMemory::new(bytes).map_err(&failed)?;
        let mut socket = Socket::Unix(stream.try_clone().map_err(&failed)?);
        let timeout = settings.timeout.min(LOCAL_TIMEOUT);
        let state = greet(address, &mut socket, key, &settings, timeout)?;
        socket::send_descriptor(&stream, &memory).map_err(&failed)?;
        let window = settings.window_bytes.min(bytes);
        let pending = Pending::with_memory(address.to_owned(), window, Some(memory));
        Connection::over(socket, state, pending, settings.certificates.is_some(), None)
    }

    fn over(
        socket: Socket,
        state: StatelessTransportState,
        pending: Pending,
        is_verified: bool,
        local_ip: Option<IpAddr>,
    ) -> Result<Connection, FabricError> {
        let peer = pending.peer().to_owned();
        let failed = cannot_connect(&peer);
        // From now on deadlines are those of requests, and the reading thread waits for frames.
        socket.set_read_timeout(None).map_err(&failed)?;
        let (sender, receiver) = sealed::halves(socket, state).map_err(&failed)?;
        let (pending, sender) = (Arc::new(pending), Mutex::new(sender));
        let thread = std::thread::Builder::new().name("fabric-client".to_owned());
        let shared = Arc::clone(&pending);
        let reader = thread.spawn(move || receive_all(&shared, receiver)).map_err(&failed)?;
        Ok(Connection { pending, sender, reader: Some(reader), is_verified, local_ip })
    }

    /// How the server is reached on its host; `None` if it offers nothing, or another version answers.
    fn local(&self, deadline: Instant) -> Option<Local> {
        let answer = self.ask_service(LOCAL, &[], deadline).ok()?;
        let (token, path) = answer.split_first_chunk()?;
        Some(Local { token: *token, path: PathBuf::from(OsStr::from_bytes(path)) })
    }

    /// Sends a frame.
    pub(super) fn send(&self, frame: &[u8]) -> Result<(), FabricError> {
        let mut sender = locked(&self.sender);
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
        segments: &mut Vec<(Segment, Credit)>,
        completions: &Completions,
    ) -> Result<(), FabricError> {
        if segments.is_empty() {
            return Ok(());
        }
        let request = self.pending.read(first, segments, completions)?;
        let mut frame = Vec::new();
        let code = if self.pending.memory().is_some() { PLACED } else { 0 };
        let segment = segments.len() as u32;
        Header { code, segment, ..Header::new(Kind::Read, request) }.append_to(&mut frame);
        segments.iter().for_each(|(segment, _)| wire::append_segment(segment, &mut frame));
        if code == PLACED {
            segments.iter().for_each(|(_, credit)| frame.extend(credit.place.to_le_bytes()));
        }
        segments.clear();
        self.send(&frame)
    }

    /// The address of this end; `None` if both ends are on one host and use shared memory.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.local_ip
    }

    /// Asks for segments, the first of which is that one of its batch.
    ///
    /// # Errors
    ///
    /// As with [`Fabric::submit`].
    pub(crate) fn submit_into(
        &self,
        before: usize,
        segments: &[Segment],
        completions: &Completions,
        deadline: Instant,
    ) -> Result<(), FabricError> {
        let (mut first, mut asked) = (before, Vec::new());
        for (index, segment) in segments.iter().enumerate() {
            let is_full = asked.len() == MAX_SEGMENTS;
            let credit = if is_full { None } else { self.pending.try_take(segment.bytes) };
            if let Some(credit) = credit {
                asked.push((*segment, credit));
                continue;
            }
            // What was asked for must be on its way before waiting for credits that it will bring.
            self.ask(first, &mut asked, completions)?;
            first = before + index;
            asked.push((*segment, self.pending.take(segment.bytes, deadline)?));
        }
        self.ask(first, &mut asked, completions)
    }

    /// Sends a call, and waits for its reply. The service gets calls with code 0.
    pub(crate) fn ask_service(
        &self,
        code: u8,
        request: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, FabricError> {
        let reply = self.begin_ask(code, request)?;
        let wait = deadline.saturating_duration_since(Instant::now());
        let late = |_| Err(FabricError::DeadlinePassed { peer: self.peer().to_owned() });
        reply.recv_timeout(wait).unwrap_or_else(late)
    }

    /// Sends a call. Where its reply comes, at any time.
    pub(crate) fn begin_ask(&self, code: u8, request: &[u8]) -> Result<Answered, FabricError> {
        if request.len() > MAX_CALL_BYTES {
            let bytes = request.len();
            return Err(FabricError::CallTooLong { bytes, limit: MAX_CALL_BYTES });
        }
        let (sender, reply) = sync_channel(1);
        let number = self.pending.call(sender)?;
        let mut frame = Vec::with_capacity(request.len() + wire::HEADER_BYTES);
        Header { code, ..Header::new(Kind::Call, number) }.append_to(&mut frame);
        frame.extend_from_slice(request);
        self.send(&frame)?;
        Ok(reply)
    }
}

impl Fabric for Connection {
    fn name(&self) -> &'static str {
        match (self.pending.memory(), self.is_verified) {
            (None, false) => "tcp",
            (None, true) => "tcp+tls",
            (Some(_), false) => "shm",
            (Some(_), true) => "shm+tls",
        }
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
        self.submit_into(0, segments, &completions, deadline)?;
        Ok(batch)
    }

    fn call(&self, request: &[u8], deadline: Instant) -> Result<Vec<u8>, FabricError> {
        self.ask_service(0, request, deadline)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let why = "this side closed it".to_owned();
        self.pending.end(FabricError::Broken { peer: self.peer().to_owned(), why });
        locked(&self.sender).close();
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

/// Proves the key to the server, which answers within `timeout`.
fn greet(
    address: &str,
    socket: &mut Socket,
    key: &SharedKey,
    settings: &ClientSettings,
    timeout: Duration,
) -> Result<StatelessTransportState, FabricError> {
    let least = Duration::from_millis(1);
    socket.prepare(settings.timeout.max(least)).map_err(cannot_connect(address))?;
    let mut socket = Until::new(socket, timeout.max(least));
    handshake::connect(&mut socket, address, key, settings.certificates.as_ref())
        .map_err(|error| handshake_error(address, error))
}

/// For `map_err`.
fn cannot_connect(address: &str) -> impl Fn(io::Error) -> FabricError {
    |error| FabricError::Connect { peer: address.to_owned(), why: words::of(&error) }
}

fn dial(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let end = Instant::now() + timeout;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1))) {
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
        Failed::Tls(error) => {
            FabricError::BadCertificate { peer, why: certificates::words(&error) }
        }
        Failed::CertificateRefused(alert) => {
            FabricError::CertificateRefused { peer, why: tls::alert_words(alert) }
        }
        Failed::PeerWithoutTls => FabricError::PeerWithoutCertificate { peer },
        Failed::ClientWithoutTls => FabricError::NeedsCertificate { peer },
    }
}
