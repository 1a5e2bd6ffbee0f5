//! Orphan ghosts: an agent has them, but the platform does not know them.
//!
//! They arise when a start in a ghost fails before the agent takes it, an answer is lost, or a node
//! that was only stopped is given up. A ghost that is being made, or is about to become a clone, is
//! unknown for a moment as well, so only ghosts that stay unknown for long are stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use farfork_sys::sync::locked;
use farfork_types::wire::{GhostPhase, GhostState};
use tokio::time::{Duration, Instant};

use super::Inner;
use super::requests::{RequestClass, connect};
use super::shared::Ghost;

/// Period of the check.
pub const PERIOD: Duration = Duration::from_secs(5);
/// A ghost that is unknown for this long is an orphan.
const AFTER: Duration = Duration::from_secs(30);

/// Ghosts that were unknown at the last check, and since when.
#[derive(Debug, Default)]
pub struct OrphanGhosts {
    unknown: Mutex<BTreeMap<Ghost, Instant>>,
}

impl OrphanGhosts {
    fn unknown(&self) -> MutexGuard<'_, BTreeMap<Ghost, Instant>> {
        // Every step leaves the table valid.
        locked(&self.unknown)
    }

    /// Records the ghosts of a node that are unknown now; returns the orphans.
    fn update(&self, node: &str, ids: &BTreeSet<String>) -> Vec<Ghost> {
        let (mut unknown, now) = (self.unknown(), Instant::now());
        unknown.retain(|(other, id), _| other != node || ids.contains(id));
        for id in ids {
            unknown.entry((node.to_owned(), id.clone())).or_insert(now);
        }
        let here =
            unknown.iter().filter(|((other, _), since)| other == node && now - **since >= AFTER);
        here.map(|(ghost, _)| ghost.clone()).collect()
    }
}

impl Inner {
    /// Stops the orphans of a node.
    pub async fn end_orphans(&self, node: &str) {
        let name = node.to_owned();
        let Ok(ghosts) =
            self.request(node, move || connect(&name, RequestClass::Look)?.ghosts()).await
        else {
            return;
        };
        // Read after the agent's list, so that a ghost made meanwhile is known.
        let known = self.ledger.ghost_names(node);
        let waiting = ghosts.into_iter().filter(waits).map(|ghost| ghost.id);
        let orphans =
            self.orphans.update(node, &waiting.filter(|id| !known.contains(id)).collect());
        if !orphans.is_empty() {
            tracing::warn!(node, count = orphans.len(), "stopping unknown ghosts");
            self.stop(orphans).await;
        }
    }
}

fn waits(ghost: &GhostState) -> bool {
    ghost.state != GhostPhase::Running
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids<const N: usize>(ids: [&str; N]) -> BTreeSet<String> {
        ids.map(str::to_owned).into()
    }

    fn ghost(node: &str, id: &str) -> Ghost {
        (node.to_owned(), id.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn ghosts_that_stay_unknown_are_orphans() {
        let orphans = OrphanGhosts::default();
        assert_eq!(orphans.update("a", &ids(["x", "y"])), []);
        assert_eq!(orphans.update("b", &ids(["z"])), []);
        tokio::time::advance(AFTER / 2).await;
        // y is known now, or has become a clone.
        assert_eq!(orphans.update("a", &ids(["x"])), []);
        tokio::time::advance(AFTER / 2).await;
        assert_eq!(orphans.update("a", &ids(["x", "y"])), [ghost("a", "x")]);
        assert_eq!(orphans.update("b", &ids(["z"])), [ghost("b", "z")]);
        assert_eq!(orphans.update("a", &ids([])), []);
        assert_eq!(orphans.update("a", &ids(["x"])), [], "it is a new one of this name");
    }
}
