//! Monitors that have connected, and have not handed over everything.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::handover::{HandOver, HandOverError};
use crate::peer::Peer;

/// How long a hand-over may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Connections that may be waited for; the oldest goes when there are more.
const MOST: usize = 256;

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
