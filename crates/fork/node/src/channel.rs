//! Documents and descriptors over a packet socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use farfork_types::wire::MAX_DOCUMENT_BYTES;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, UnixCredentials, getsockopt, recv, recvmsg,
    sendmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeVal;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::NodeError;

const MAX_FDS: usize = 200;

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    peer: i32,
    /// How long the other end may take for a document.
    limit: Option<Duration>,
}

/// What came in.
#[derive(Debug)]
pub struct Received<T> {
    /// The document.
    pub document: T,
    /// Descriptors beside it.
    pub fds: Vec<OwnedFd>,
    /// Pid of the process that this is about, as seen here, if the other end has sent it.
    pub about: Option<i32>,
}

impl Channel {
    /// Wraps a connected socket.
    pub fn new(socket: OwnedFd) -> Result<Channel, NodeError> {
        setsockopt(&socket, sockopt::PassCred, &true).map_err(broken)?;
        let peer = getsockopt(&socket, sockopt::PeerCredentials).map_err(broken)?.pid();
        Ok(Channel { socket, peer, limit: None })
    }

    /// Wraps a connected socket of which neither sending nor receiving takes longer than `limit`, which
    /// [`limit_waiting`] has seen to.
    pub fn within(socket: OwnedFd, limit: Duration) -> Result<Channel, NodeError> {
        Ok(Channel { limit: Some(limit), ..Channel::new(socket)? })
    }

    /// Waits no longer than `limit` for each document from here on.
    pub fn with_limit(self, limit: Duration) -> Result<Channel, NodeError> {
        limit_waiting(&self.socket, limit).map_err(broken)?;
        Ok(Channel { limit: Some(limit), ..self })
    }

    /// Waits as long as it takes from here on.
    pub fn without_limit(self) -> Result<Channel, NodeError> {
        limit_waiting(&self.socket, Duration::ZERO).map_err(broken)?;
        Ok(Channel { limit: None, ..self })
    }

    /// Sends a document and descriptors.
    pub fn send(&self, document: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), NodeError> {
        let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        self.send_with(document, if fds.is_empty() { &[] } else { &rights })
    }

    /// Sends a document about the process `pid`, whose number the kernel translates for a receiver in
    /// another PID namespace. Without the right to do so, or if the process has ended, only the document
    /// is sent.
    pub fn send_about(&self, document: &impl Serialize, pid: i32) -> Result<(), NodeError> {
        let about = UnixCredentials::from(libc::ucred {
            pid,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        });
        match self.send_with(document, &[ControlMessage::ScmCredentials(&about)]) {
            Err(NodeError::Connection(error))
                if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ESRCH)) =>
            {
                self.send_with(document, &[])
            }
            other => other,
        }
    }

    fn send_with(
        &self,
        document: &impl Serialize,
        control: &[ControlMessage<'_>],
    ) -> Result<(), NodeError> {
        let bytes =
            serde_json::to_vec(document).map_err(|error| NodeError::Protocol(error.to_string()))?;
        let vectors = [IoSlice::new(&bytes)];
        let fd = self.socket.as_raw_fd();
        sendmsg::<()>(fd, &vectors, control, MsgFlags::MSG_NOSIGNAL, None)
            .map_err(|errno| self.failed(errno))?;
        Ok(())
    }

    /// Receives a document; nothing when the other end has closed.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<Received<T>>, NodeError> {
        let mut bytes = vec![0u8; self.next_length()?.min(MAX_DOCUMENT_BYTES)];
        let mut space = nix::cmsg_space!([i32; MAX_FDS], libc::ucred);
        let (length, fds, sender) = self.receive_raw(&mut bytes, &mut space)?;
        if length == 0 {
            return Ok(None);
        }
        let document = serde_json::from_slice(&bytes[..length])
            .map_err(|error| NodeError::Protocol(error.to_string()))?;
        // The kernel adds the sender's own pid where none was given.
        let about = Some(sender).filter(|pid| ![0, self.peer].contains(pid));
        Ok(Some(Received { document, fds, about }))
    }

    /// Waits for a document and returns its length; 0 when the other end has closed. A buffer for the
    /// longest document has 16 pages, which would have to be cleared for a few hundred bytes.
    fn next_length(&self) -> Result<usize, NodeError> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        loop {
            match recv(self.socket.as_raw_fd(), &mut [], flags) {
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Ok(0),
                other => return other.map_err(|errno| self.failed(errno)),
            }
        }
    }

    #[allow(unsafe_code)] // reason: received descriptor numbers become owned descriptors
    fn receive_raw(
        &self,
        bytes: &mut [u8],
        space: &mut [u8],
    ) -> Result<(usize, Vec<OwnedFd>, i32), NodeError> {
        let mut vectors = [IoSliceMut::new(bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = loop {
            match recvmsg::<()>(self.socket.as_raw_fd(), &mut vectors, Some(space), flags) {
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Ok((0, Vec::new(), 0)),
                other => break other.map_err(|errno| self.failed(errno))?,
            }
        };
        if message.flags.contains(MsgFlags::MSG_CTRUNC) {
            close_rights(space);
            return Err(NodeError::TooManyFiles);
        }
        let (mut fds, mut sender) = (Vec::new(), 0);
        for control in message.cmsgs().map_err(broken)? {
            match control {
                ControlMessageOwned::ScmRights(numbers) => {
                    // SAFETY: the kernel has just made these descriptors for this process.
                    fds.extend(numbers.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                }
                ControlMessageOwned::ScmCredentials(from) => sender = from.pid(),
                _ => {}
            }
        }
        Ok((message.bytes, fds, sender))
    }

    fn failed(&self, errno: Errno) -> NodeError {
        match self.limit {
            Some(limit) if errno == Errno::EAGAIN => NodeError::Late(limit),
            _ => broken(errno),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Closes the descriptors that there was still room for, where some of a message were cut off.
#[allow(unsafe_code)] // reason: received descriptor numbers become owned descriptors
fn close_rights(control: &[u8]) {
    // struct cmsghdr: length in 8 bytes, level and type in 4 each; the next is aligned to 8.
    let number = |bytes: &[u8]| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut rest = control;
    while rest.len() > 16 {
        let length = number(rest) as usize;
        if length <= 16 || length > rest.len() {
            return;
        }
        if [number(&rest[8..]), number(&rest[12..])] == [libc::SOL_SOCKET, libc::SCM_RIGHTS] {
            for fd in rest[16..length].chunks_exact(4).map(number) {
                // SAFETY: the kernel has just made this descriptor for this process.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        rest = &rest[length.next_multiple_of(8).min(rest.len())..];
    }
}

/// Has calls on a socket fail with `EAGAIN` that would wait longer, `connect` among them; never if it is
/// zero.
pub fn limit_waiting(socket: &OwnedFd, limit: Duration) -> nix::Result<()> {
    let limit = TimeVal::new(limit.as_secs() as i64, i64::from(limit.subsec_micros()));
    setsockopt(socket, sockopt::SendTimeout, &limit)?;
    setsockopt(socket, sockopt::ReceiveTimeout, &limit)
}

fn broken(errno: Errno) -> NodeError {
    NodeError::Connection(io::Error::from(errno))
}
