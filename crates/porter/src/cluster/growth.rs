//! Has instances pause where those at work come to take more of their node than all of them may at once.
//!
//! ```text
//!  instances begin to work ─► crowded? ─► every 3 ms: what the kernel has charged ─► policy ─► agents
//! ```
//! A thread of its own does this, which waits for nothing but the agents: whoever allocates does not wait
//! either. Where all may come to their limits at once it only measures, as others need to know that too.

use std::collections::BTreeSet;
use std::io;
use std::sync::Weak;
use std::thread;
use std::time::Duration;

use farfork_node::client::Client;
use farfork_policy::growth::Worker;

use super::{Inner, MEASURE, usages};

/// How often it is looked at what instances take that may take more than is free.
const CLOSELY: Duration = Duration::from_millis(3);

/// Looks at nodes for as long as they are used.
pub fn watch(inner: Weak<Inner>) -> io::Result<()> {
    let watching = move || {
        while let Some(inner) = inner.upgrade() {
            let nodes = &inner.settings.nodes;
            nodes.iter().for_each(|node| inner.look_at_growth(node));
            if inner.table.wait_until_crowded(MEASURE) {
                thread::sleep(CLOSELY);
            }
        }
    };
    thread::Builder::new().name("growth".to_owned()).spawn(watching).map(drop)
}

impl Inner {
    /// Measures a node, and has those pause or go on that are to.
    fn look_at_growth(&self, node: &str) {
        if let Some(group) = self.budgets.get(node) {
            self.table.measured(node, group.used_bytes());
        }
        if self.have_pause(node) {
            // They may take less than they could when they were last looked at, and need not pause then.
            if let Ok(clones) = usages(node) {
                self.table.seen(node, Some(clones));
            }
            self.have_pause(node);
        }
    }

    /// Asks who is to pause, and tells those that do not yet, or do no more. Whether some pause now that did not.
    fn have_pause(&self, node: &str) -> bool {
        let Some(facts) = self.table.growth(node) else { return false };
        let policy = &*self.advisor.policies.growth;
        let is_paused = |worker: &&Worker| worker.is_paused;
        let before: BTreeSet<&String> =
            facts.workers.iter().filter(is_paused).map(|worker| &worker.id).collect();
        // What stays as it is is no decision to be kept on record.
        let choice = policy.decide(&facts).choice;
        if choice.iter().collect::<BTreeSet<_>>() != before {
            self.advisor.ask(policy, node, &facts);
        }
        self.tell_who_pauses(node, &choice);
        choice.iter().any(|id| !before.contains(id))
    }

    fn tell_who_pauses(&self, node: &str, ids: &[String]) {
        for (pid, paused) in self.table.pause(node, ids) {
            let told = Client::connect(node).and_then(|client| client.pause(pid, paused));
            if let Err(error) = told {
                // It may have ended meanwhile.
                tracing::warn!(node, pid, paused, %error, "an instance is not told to pause or go on");
            }
        }
    }
}
