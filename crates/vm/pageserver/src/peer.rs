//! The process at the other end of a machine's socket: its monitor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use farfork_sys::pidfd;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// A monitor.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its pid, if it can be seen from here.
    pub(crate) pid: Option<i32>,
    process: Option<OwnedFd>,
}

impl Peer {
    pub(crate) fn of(socket: &OwnedFd) -> Peer {
        let credentials = getsockopt(socket, sockopt::PeerCredentials).ok();
        let pid = credentials.map(|credentials| credentials.pid()).filter(|pid| *pid > 0);
        Peer { pid, process: pidfd::of_peer(socket).ok() }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Peer> {
        let process = self.process.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Peer { pid: self.pid, process })
    }

    /// Kills it; whether it was killed.
    pub(crate) fn kill(&self) -> bool {
        let kill = |process: &OwnedFd| pidfd::send_signal(process, kill_signal()).is_ok();
        self.process.as_ref().is_some_and(kill)
    }
}

fn kill_signal() -> i32 {
    rustix::process::Signal::KILL.as_raw()
}

/// Whether the other end is closed; what it has sent instead means nothing.
pub(crate) fn has_hung_up(socket: impl AsFd) -> bool {
    let mut sent = [0; 4096];
    match recv(socket, &mut sent, RecvFlags::DONTWAIT) {
        Ok((0, _)) => true,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}
