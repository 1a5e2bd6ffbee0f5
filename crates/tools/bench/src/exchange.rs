//! One connection to a subject, and the clock.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::protocol::{Answerer, Protocol};

/// Limit of an answer. A cold start of the largest subject takes seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Microseconds since `start_ns`.
pub fn us_since(start_ns: u64) -> f64 {
    now_ns().saturating_sub(start_ns) as f64 / 1000.0
}

/// Creates a socket that listens at `path`.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let _ = std::fs::remove_file(path);
    Ok(UnixListener::bind(path)?.into())
}

/// A connection on which requests go out and answers come back.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    answer: Vec<u8>,
}

impl Connection {
    /// Connects to a listening socket.
    pub fn open(path: &Path) -> io::Result<Connection> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Connection { stream, answer: Vec::with_capacity(1 << 16) })
    }

    /// Creates a socket that listens at `path`, for a process yet to be started, and connects to it.
    pub fn with_listener(path: &Path) -> io::Result<(OwnedFd, Connection)> {
        let listener = listen(path)?;
        Ok((listener, Connection::open(path)?))
    }

    /// Sends request `number`.
    pub fn send(
        &mut self,
        protocol: &dyn Protocol,
        number: u64,
        answerer: Answerer,
    ) -> io::Result<()> {
        self.send_bytes(&protocol.request(number, answerer))
    }

    /// Sends bytes that are not a numbered request.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for a complete answer, which [`Connection::answer`] then returns.
    pub fn receive(&mut self, protocol: &dyn Protocol) -> io::Result<()> {
        self.answer.clear();
        let mut part = [0; 1 << 14];
        while !protocol.is_complete(&self.answer) {
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.answer.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The last answer.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// Waits until the other end hangs up.
    pub fn wait_for_end(&mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).map(drop)
    }
}
