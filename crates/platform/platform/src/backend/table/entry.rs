//! What is known of one instance.

use std::time::Duration;

use farfork_policy::growth::{Demand, Worker};
use tokio::time::Instant;

use crate::scheduler::nodes::{Claim, Usage};

/// One instance.
#[derive(Debug)]
pub struct Entry {
    /// Where it is.
    pub node: String,
    /// As seen here, once it has started.
    pub pid: Option<i32>,
    /// What it was last seen to take.
    pub usage: Option<Usage>,
    /// Whether it has something to do, or is starting.
    pub is_at_work: bool,
    /// What of it is becoming local, in bytes.
    pub promoted_bytes: u64,
    /// Whether it must not pause.
    pub goes_on: bool,
    /// Whether it stands still as it has nothing to do, or may.
    pub is_frozen: bool,
    claim: Claim,
    paused_since: Option<Instant>,
    paused_before: Duration,
}

impl Entry {
    /// One that is to be started.
    pub fn starting(node: &str, claim: Claim) -> Entry {
        Entry {
            node: node.to_owned(),
            pid: None,
            usage: None,
            is_at_work: true,
            promoted_bytes: 0,
            goes_on: false,
            is_frozen: false,
            claim,
            paused_since: None,
            paused_before: Duration::ZERO,
        }
    }

    /// What it demands when it is at work. What it was last seen to hold, or is expected to; what it is
    /// promoted by it could have taken itself.
    pub fn demand(&self) -> Demand {
        let held = self.usage.map_or(self.claim.first_bytes(), |usage| usage.local_bytes);
        let held_bytes = held + self.promoted_bytes;
        Demand { held_bytes, headroom_bytes: self.claim.most_bytes().saturating_sub(held_bytes) }
    }

    /// What it is about to take, until that was seen.
    pub fn begun_bytes(&self) -> u64 {
        match self.usage {
            None if self.is_at_work => self.claim.first_bytes(),
            _ => 0,
        }
    }

    /// What it takes of a node whose memory nobody measures, but for what it is about to take.
    pub fn held_if_not_measured(&self) -> u64 {
        match self.usage {
            None if self.is_at_work => 0,
            // One that has not been looked at yet counts as if it held all that it may.
            None => self.claim.most_bytes(),
            Some(usage) => usage.local_bytes,
        }
    }

    /// As the policy sees it that decides who pauses; nothing if it has nothing to do.
    pub fn worker(&self, id: u64) -> Option<Worker> {
        self.is_at_work.then(|| Worker {
            id: id.to_string(),
            demand: self.demand(),
            is_paused: self.is_paused(),
            // One that stands still is told to go on before it has anything to do.
            goes_on: self.goes_on || self.is_frozen || self.pid.is_none(),
        })
    }

    /// Whether it pauses.
    pub fn is_paused(&self) -> bool {
        self.paused_since.is_some()
    }

    /// It pauses from now on, or does no more.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused_before = self.paused();
        self.paused_since = paused.then(Instant::now);
    }

    /// For how long it has paused in all.
    pub fn paused(&self) -> Duration {
        let now = self.paused_since.map(|since| since.elapsed());
        self.paused_before + now.unwrap_or_default()
    }
}
