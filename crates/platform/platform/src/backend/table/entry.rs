//! The entry of one instance.

use std::time::Duration;

use farfork_policy::growth::{Demand, Worker};
use tokio::time::Instant;

use crate::scheduler::nodes::{Claim, Usage};

/// An instance.
#[derive(Debug)]
pub struct Entry {
    /// Its node.
    pub node: String,
    /// Its pid, once it has started.
    pub pid: Option<i32>,
    /// Its last measured memory.
    pub usage: Option<Usage>,
    /// Whether it is busy or starting.
    pub is_busy: bool,
    /// Bytes that are being promoted.
    pub promoted_bytes: u64,
    /// Whether it must not be paused.
    pub goes_on: bool,
    /// Whether it is frozen, or may be.
    pub is_frozen: bool,
    claim: Claim,
    paused_since: Option<Instant>,
    paused_before: Duration,
}

impl Entry {
    /// An instance to be started.
    pub fn starting(node: &str, claim: Claim) -> Entry {
        Entry {
            node: node.to_owned(),
            pid: None,
            usage: None,
            is_busy: true,
            promoted_bytes: 0,
            goes_on: false,
            is_frozen: false,
            claim,
            paused_since: None,
            paused_before: Duration::ZERO,
        }
    }

    /// Its demand while busy. It counts as holding what was last measured, or is expected, plus
    /// what is being promoted, which is a part of its limit.
    pub fn demand(&self) -> Demand {
        let held = self.usage.map_or(self.claim.first_bytes(), |usage| usage.local_bytes);
        let held_bytes = held + self.promoted_bytes;
        Demand { held_bytes, headroom_bytes: self.claim.most_bytes().saturating_sub(held_bytes) }
    }

    /// Bytes that it is about to take, until measured.
    pub fn begun_bytes(&self) -> u64 {
        match self.usage {
            None if self.is_busy => self.claim.first_bytes(),
            _ => 0,
        }
    }

    /// Bytes that it holds if the kernel does not count the node's memory, without what it is about
    /// to take.
    pub fn held_if_not_measured(&self) -> u64 {
        match self.usage {
            None if self.is_busy => 0,
            // Without a measurement it counts as holding all that it may.
            None => self.claim.most_bytes(),
            Some(usage) => usage.local_bytes,
        }
    }

    /// The facts for the decision which instances pause; `None` if it is idle.
    pub fn worker(&self, id: u64) -> Option<Worker> {
        self.is_busy.then(|| Worker {
            id: id.to_string(),
            demand: self.demand(),
            is_paused: self.is_paused(),
            // A frozen one is thawed before its call, which a pause would undo.
            goes_on: self.goes_on || self.is_frozen || self.pid.is_none(),
        })
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused_since.is_some()
    }

    /// Pauses or resumes it.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused_before = self.paused();
        self.paused_since = paused.then(Instant::now);
    }

    /// How long it was paused in all.
    pub fn paused(&self) -> Duration {
        let now = self.paused_since.map(|since| since.elapsed());
        self.paused_before + now.unwrap_or_default()
    }
}
