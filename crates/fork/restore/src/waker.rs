//! The socket of a clone that waits before its last steps.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use farfork_plan::protocol::{VERSION, Wake, WakeKind};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use zerocopy::IntoBytes;

use crate::error::RestoreError;
use crate::template::{failed, packet_pair};

/// Wakes a clone that waits. The clone ends once every copy of the socket is closed.
#[derive(Debug)]
pub struct Waker {
    socket: OwnedFd,
    peer: PeerEnd,
}

/// The clone's end of its socket. As long as this process has it open too, the clone's `close`, on the
/// way to its first instruction, does not have to tear down the connection.
#[derive(Debug)]
pub struct PeerEnd(OwnedFd);

impl AsFd for PeerEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Waker {
    /// A waker, and the end that the clone sleeps on: the last descriptor of its request.
    pub fn new() -> Result<(Waker, OwnedFd), RestoreError> {
        let (socket, theirs) = packet_pair()?;
        let kept = theirs.try_clone().map_err(failed("make a socket for the restorer"))?;
        Ok((Waker { socket, peer: PeerEnd(kept) }, theirs))
    }

    /// Closes this end, and returns the other one, to be kept until the clone runs.
    pub fn leave(self) -> PeerEnd {
        self.peer
    }

    /// Sends the clone its external descriptors, in the order of the plan. The clone goes on waiting.
    pub fn supply(&self, externals: &[OwnedFd]) -> Result<(), RestoreError> {
        let fds: Vec<i32> = externals.iter().map(AsRawFd::as_raw_fd).collect();
        send(self.as_fd(), WakeKind::Supply, 0, &fds)
            .map_err(failed("send descriptors to the waiting clone"))
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Wakes the clone behind `socket`, a copy of its [`Waker`], for a start that was asked for at
/// `requested_ns` of `CLOCK_MONOTONIC`.
pub fn wake(socket: BorrowedFd<'_>, requested_ns: u64) -> io::Result<()> {
    send(socket, WakeKind::Start, requested_ns, &[])
}

fn send(socket: BorrowedFd<'_>, kind: WakeKind, requested_ns: u64, fds: &[i32]) -> io::Result<()> {
    let wake = Wake { kind: kind as u32, version: VERSION, requested_ns };
    let (bytes, rights) = ([IoSlice::new(wake.as_bytes())], [ControlMessage::ScmRights(fds)]);
    let control = if fds.is_empty() { &[][..] } else { &rights };
    sendmsg::<()>(socket.as_raw_fd(), &bytes, control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}
