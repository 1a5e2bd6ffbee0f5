//! Pauses instances where busy ones together may take more memory than is free.
//!
//! ```text
//!  instances become busy ─► crowded? ─► every 3 ms: what the kernel has charged ─► policy ─►
//! agents
//! ```
//! A thread per node does this and waits for nothing but the agent, as instances allocate
//! meanwhile.
//! Where all may reach their limits at once it only measures, which other decisions need, too.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farfork_policy::occupant::OccupantId;
use farfork_scheduler::PauseChange;

use super::requests::{RequestClass, connect};
use super::{Inner, MEASURE, usages};

/// Period of measurements on a crowded node.
const CLOSELY: Duration = Duration::from_millis(3);

/// Starts a thread per node, as one agent may answer slowly. They end with `inner`.
pub fn watch(inner: &Arc<Inner>) -> io::Result<()> {
    inner.settings.nodes.iter().try_for_each(|node| {
        let (inner, node) = (Arc::downgrade(inner), node.clone());
        let watching = move || {
            while let Some(inner) = inner.upgrade() {
                inner.check_growth(&node);
                if inner.ledger.wait_until_crowded(&node, MEASURE) {
                    thread::sleep(CLOSELY);
                }
            }
        };
        thread::Builder::new().name("growth".to_owned()).spawn(watching).map(drop)
    })
}

impl Inner {
    /// Measures a node, and pauses or resumes instances.
    fn check_growth(&self, node: &str) {
        if let Some(group) = self.budgets.get(node) {
            self.ledger.record_measured(node, group.used_bytes());
        }
        if self.apply_pauses(node) {
            // By newer measurements they may need less, and need not pause.
            if let Ok(clones) = usages(node) {
                self.ledger.record_usage(node, Some(&clones));
            }
            self.apply_pauses(node);
        }
    }

    /// Decides which instances pause, and pauses or resumes those that change. Returns whether any
    /// was paused.
    fn apply_pauses(&self, node: &str) -> bool {
        let Some(facts) = self.ledger.growth(node) else { return false };
        let decision = self.advisor.consider(&facts);
        // Before the decision is recorded, as instances take memory meanwhile.
        let changed = self.send_pauses(node, &decision.choice);
        // Without a change, no decision is recorded.
        if !changed.is_empty() {
            self.advisor.record(&node, &facts, &decision);
        }
        changed.contains(&true)
    }

    /// Sends pauses and resumes to the agent; returns those that succeeded, true for a pause.
    fn send_pauses(&self, node: &str, ids: &[OccupantId]) -> Vec<bool> {
        let mut changed = Vec::new();
        for PauseChange { id, pid, paused } in self.ledger.pause(node, ids) {
            match connect(node, RequestClass::Look).and_then(|client| client.pause(pid, paused)) {
                Ok(()) => changed.push(paused),
                Err(error) => {
                    // It may have ended meanwhile. If not, this is retried.
                    self.ledger.undo_pause(id, paused);
                    tracing::debug!(node, pid, paused, %error, "cannot pause or resume an instance");
                }
            }
        }
        changed
    }
}
