//! An instance on a node.

use farfork_policy::growth::{Demand, Worker};
use farfork_policy::occupant::OccupantId;

use crate::claim::{Claim, Usage};
use crate::node::Share;

/// An instance, which is starting until it has a pid.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its node, by index.
    pub node: usize,
    /// Its pid, once it has started.
    pub pid: Option<i32>,
    /// Its last measured memory.
    pub usage: Option<Usage>,
    /// Whether it is busy or starting.
    pub is_busy: bool,
    /// Bytes that are being promoted.
    pub promoted_bytes: u64,
    /// Bytes that a change of its share of near memory takes.
    pub share_bytes: u64,
    /// Whether it must not be paused.
    pub goes_on: bool,
    /// Whether it is frozen, or may be.
    pub is_frozen: bool,
    claim: Claim,
    paused_since_us: Option<u64>,
    paused_before_us: u64,
}

impl Instance {
    /// An instance to be started.
    pub fn starting(node: usize, claim: Claim) -> Instance {
        Instance {
            node,
            pid: None,
            usage: None,
            is_busy: true,
            promoted_bytes: 0,
            share_bytes: 0,
            goes_on: false,
            is_frozen: false,
            claim,
            paused_since_us: None,
            paused_before_us: 0,
        }
    }

    /// Its demand while busy. It counts as holding what was last measured, or is expected, plus
    /// what is being promoted, which is a part of its limit.
    pub fn demand(&self) -> Demand {
        let held_bytes = self.seen_bytes() + self.promised_bytes();
        Demand { held_bytes, headroom_bytes: self.claim.most_bytes().saturating_sub(held_bytes) }
    }

    /// Most bytes that it may take.
    pub fn most_bytes(&self) -> u64 {
        self.claim.most_bytes()
    }

    /// Bytes that were measured, or are expected.
    fn seen_bytes(&self) -> u64 {
        self.usage.map_or(self.claim.first_bytes(), |usage| usage.local_bytes)
    }

    /// Bytes that are being promoted or that a change of its share takes, as far as its limit leaves room for them.
    fn promised_bytes(&self) -> u64 {
        let held = self.seen_bytes().max(self.held_if_not_measured());
        (self.promoted_bytes + self.share_bytes).min(self.most_bytes().saturating_sub(held))
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
    fn held_if_not_measured(&self) -> u64 {
        match self.usage {
            None if self.is_busy => 0,
            // Without a measurement it counts as holding all that it may.
            None => self.claim.most_bytes(),
            Some(usage) => usage.local_bytes,
        }
    }

    /// What it adds to the sums of its node.
    pub fn share(&self) -> Share {
        let held_bytes = self.held_if_not_measured();
        Share {
            held_bytes,
            idle_bytes: if self.is_busy { 0 } else { held_bytes },
            begun_bytes: self.begun_bytes() + self.promised_bytes(),
            headroom_bytes: if self.is_busy { self.demand().headroom_bytes } else { 0 },
            starting: u64::from(self.pid.is_none()),
            paused: u64::from(self.is_paused()),
        }
    }

    /// The facts for the decision which instances pause; `None` if it is idle.
    pub fn worker(&self, id: u64) -> Option<Worker> {
        self.is_busy.then(|| Worker {
            id: OccupantId::instance(id),
            demand: self.demand(),
            is_paused: self.is_paused(),
            // A frozen one is thawed before its call, which a pause would undo.
            goes_on: self.goes_on || self.is_frozen || self.pid.is_none(),
        })
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused_since_us.is_some()
    }

    /// Pauses or resumes it.
    pub fn set_paused(&mut self, is_paused: bool, now_us: u64) {
        self.paused_before_us = self.paused_us(now_us);
        self.paused_since_us = is_paused.then_some(now_us);
    }

    /// How long it was paused in all, in microseconds.
    pub fn paused_us(&self, now_us: u64) -> u64 {
        let now = self.paused_since_us.map_or(0, |since| now_us.saturating_sub(since));
        self.paused_before_us + now
    }
}
