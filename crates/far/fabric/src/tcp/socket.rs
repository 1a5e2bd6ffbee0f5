//! What a connection runs over: TCP, or a Unix socket where both ends are on one host.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};

use super::wire::{SOCKET_EXTENSION, invalid};

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
        })
    }

    pub fn shut_down(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
            Socket::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Prepares a socket: no waiting for more to send, no waiting for ever, and probes of a peer that is
    /// silent.
    pub fn prepare(&self, write: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(write))?;
                net::sockopt::set_socket_keepalive(stream, true)?;
                net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
                net::sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
                net::sockopt::set_tcp_keepcnt(stream, 3)?;
                Ok(())
            }
            Socket::Unix(stream) => stream.set_write_timeout(Some(write)),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            Socket::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket whose reads end at one moment, however slowly bytes come: a peer that sends one byte after the other
/// must not outlast a deadline.
pub struct Until<'s> {
    socket: &'s mut Socket,
    end: Instant,
}

impl<'s> Until<'s> {
    pub fn new(socket: &'s mut Socket, wait: Duration) -> Until<'s> {
        Until { socket, end: Instant::now() + wait }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time");
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => late(),
            _ => error,
        })
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Connects to a socket of this host, at once or not: a server that accepts nothing is not waited for.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    if !path.is_absolute() || path.extension() != Some(OsStr::new(SOCKET_EXTENSION)) {
        return Err(invalid("the path is not that of a socket of a server"));
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Demands that the peer of a Unix socket is the same user, or root. Memory goes along with the socket: what
/// stands between two ends of other users could keep it, although it cannot open a frame.
pub fn demand_same_user(stream: &UnixStream) -> io::Result<()> {
    let peer = getsockopt(stream, PeerCredentials).map_err(io::Error::from)?.uid();
    let own = rustix::process::geteuid().as_raw();
    let is_same = peer == own || peer == 0;
    is_same.then_some(()).ok_or_else(|| invalid("the peer on this host is another user"))
}

/// Sends a descriptor, with one byte.
pub fn send_descriptor(stream: &UnixStream, descriptor: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptor that [`send_descriptor`] has sent.
pub fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(stream, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let first = descriptors.next().and_then(|mut descriptors| descriptors.next());
    first.filter(|_| received.bytes == 1).ok_or_else(|| invalid("the peer sent no memory"))
}

#[cfg(test)]
mod tests {
    use rustix::process::geteuid;
    use rustix::thread::set_thread_res_uid;

    use super::*;

    #[test]
    fn peers_of_other_users_are_refused() {
        let (one, other) = UnixStream::pair().unwrap();
        demand_same_user(&one).unwrap();
        demand_same_user(&other).unwrap();
        if !geteuid().is_root() {
            return;
        }
        // The ids of that thread alone.
        let pair = std::thread::spawn(|| {
            let user = rustix::process::Uid::from_raw(12_345);
            set_thread_res_uid(user, user, user).unwrap();
            UnixStream::pair().unwrap()
        });
        let (foreign, _other) = pair.join().unwrap();
        assert!(demand_same_user(&foreign).is_err());
    }
}
