//! Monitors that have connected, and have not handed over everything.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use farfork_sys::pidfd;
use nix::sys::socket::{getsockopt, sockopt};

use crate::handover::{HandOver, HandOverError};

/// How long a hand-over may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Connections that may be waited for; the oldest goes when there are more.
const MOST: usize = 256;

/// The process at the other end of a socket.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its pid, if it can be seen from here.
    pub(super) pid: Option<i32>,
    process: Option<OwnedFd>,
}

impl Peer {
    fn of(socket: &OwnedFd) -> Peer {
        let credentials = getsockopt(socket, sockopt::PeerCredentials).ok();
        let pid = credentials.map(|credentials| credentials.pid()).filter(|pid| *pid > 0);
        Peer { pid, process: pidfd::of_peer(socket).ok() }
    }

    pub(super) fn try_clone(&self) -> io::Result<Peer> {
        let process = self.process.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Peer { pid: self.pid, process })
    }

    /// Kills it; whether it was killed.
    pub(super) fn kill(&self) -> bool {
        let kill = |process: &OwnedFd| pidfd::send_signal(process, kill_signal()).is_ok();
        self.process.as_ref().is_some_and(kill)
    }
}

fn kill_signal() -> i32 {
    rustix::process::Signal::KILL.as_raw()
}

/// A connection.
pub(super) struct Joining {
    pub(super) socket: OwnedFd,
    pub(super) hand_over: HandOver,
    pub(super) peer: Peer,
    until: Instant,
}

impl Joining {
    pub(super) fn add(all: &mut Vec<Joining>, socket: OwnedFd) {
        if all.len() >= MOST {
            let oldest = (0..all.len()).min_by_key(|index| all[*index].until);
            oldest.map(|index| all.swap_remove(index));
        }
        let peer = Peer::of(&socket);
        let until = Instant::now() + LIMIT;
        all.push(Joining { socket, hand_over: HandOver::default(), peer, until });
    }

    /// Until it is given up.
    pub(super) fn time_left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Takes what has come; whether all is there.
    pub(super) fn receive(&mut self) -> Result<bool, HandOverError> {
        let is_complete = self.hand_over.receive(&self.socket)?;
        if !is_complete && self.time_left().is_zero() {
            return Err(HandOverError::TimedOut(self.hand_over.missing()));
        }
        Ok(is_complete)
    }
}
