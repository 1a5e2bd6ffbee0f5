//! Has instances pause where those at work come to take more of their node than all of them may at once.
//!
//! ```text
//!  instances begin to work ─► crowded? ─► every 3 ms: what the kernel has charged ─► policy ─► agents
//! ```
//! A thread for each node does this, which waits for nothing but the agent: whoever allocates does not wait
//! either. Where all may come to their limits at once it only measures, as others need to know that too.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::requests::{RequestClass, agent};
use super::{Inner, MEASURE, usages};

/// How often it is looked at what instances take that may take more than is free.
const CLOSELY: Duration = Duration::from_millis(3);

/// Looks at nodes for as long as they are used, each by itself: an agent may take its time to answer.
pub fn watch(inner: &Arc<Inner>) -> io::Result<()> {
    inner.settings.nodes.iter().try_for_each(|node| {
        let (inner, node) = (Arc::downgrade(inner), node.clone());
        let watching = move || {
            while let Some(inner) = inner.upgrade() {
                inner.look_at_growth(&node);
                if inner.table.wait_until_crowded(&node, MEASURE) {
                    thread::sleep(CLOSELY);
                }
            }
        };
        thread::Builder::new().name("growth".to_owned()).spawn(watching).map(drop)
    })
}

impl Inner {
    /// Measures a node, and has those pause or go on that are to.
    fn look_at_growth(&self, node: &str) {
        if let Some(group) = self.budgets.get(node) {
            self.table.measured(node, group.used_bytes());
        }
        if self.apply_pauses(node) {
            // They may take less than they could when they were last looked at, and need not pause then.
            if let Ok(clones) = usages(node) {
                self.table.seen(node, Some(clones));
            }
            self.apply_pauses(node);
        }
    }

    /// Asks who is to pause, and tells those that do not yet, or do no more. Whether some pause now that did not.
    fn apply_pauses(&self, node: &str) -> bool {
        let Some(mut facts) = self.table.growth(node) else { return false };
        let ghosts = self.attached.idle(node).into_iter().chain(self.ghosts.idle(node));
        facts.idle_bytes += ghosts.map(|ghost| ghost.bytes).sum::<u64>();
        let decision = self.advisor.policies.growth.decide(&facts);
        // Whoever takes memory does not wait until this is on record.
        let told = self.send_pauses(node, &decision.choice);
        // What stays as it is is no decision.
        if !told.is_empty() {
            self.advisor.record(node, &facts, &decision);
        }
        told.contains(&true)
    }

    /// What those were told that heard it.
    fn send_pauses(&self, node: &str, ids: &[String]) -> Vec<bool> {
        let mut told = Vec::new();
        for (id, pid, paused) in self.table.pause(node, ids) {
            match agent(node, RequestClass::Look).and_then(|client| client.pause(pid, paused)) {
                Ok(()) => told.push(paused),
                Err(error) => {
                    // It may have ended meanwhile. If not, it is told again.
                    self.table.undo_pause(id, paused);
                    tracing::debug!(node, pid, paused, %error, "an instance does not hear whether to pause");
                }
            }
        }
        told
    }
}
