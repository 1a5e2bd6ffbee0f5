//! Ghosts that are orphans: an agent has them, and nobody here knows of them.
//!
//! A start in a ghost fails before the agent takes it, an answer is lost, a node is given up that only stood
//! still. A ghost that is being made, or is about to become a clone, is unknown for a moment as well; so those go
//! that were unknown for longer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_types::wire::{GhostPhase, GhostState};
use tokio::time::{Duration, Instant};

use super::Inner;
use super::attached::Ghost;
use super::requests::{RequestClass, agent};

/// How often it is looked for them.
pub const LOOK: Duration = Duration::from_secs(5);
/// Who is unknown for so long is orphans.
const AFTER: Duration = Duration::from_secs(30);

/// Ghosts that were unknown when they were last looked at, and since when.
#[derive(Debug, Default)]
pub struct OrphanGhosts {
    unknown: Mutex<BTreeMap<Ghost, Instant>>,
}

impl OrphanGhosts {
    fn unknown(&self) -> MutexGuard<'_, BTreeMap<Ghost, Instant>> {
        // Every step leaves the table valid.
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in which ghosts of a node are unknown now; those that are orphans.
    fn seen(&self, node: &str, ids: &BTreeSet<String>) -> Vec<Ghost> {
        let (mut unknown, now) = (self.unknown(), Instant::now());
        unknown.retain(|(of, id), _| of != node || ids.contains(id));
        for id in ids {
            unknown.entry((node.to_owned(), id.clone())).or_insert(now);
        }
        let here = unknown.iter().filter(|((of, _), since)| of == node && now - **since >= AFTER);
        here.map(|(ghost, _)| ghost.clone()).collect()
    }
}

impl Inner {
    /// Ends the ghosts of a node that are orphans.
    pub async fn end_orphans(&self, node: &str) {
        let name = node.to_owned();
        let Ok(ghosts) =
            self.request(node, move || agent(&name, RequestClass::Look)?.ghosts()).await
        else {
            return;
        };
        // Looked at after the agent was: one that has been made meanwhile is known.
        let mut known = self.ghosts.ids(node);
        known.extend(self.attached.ids(node));
        let waiting = ghosts.into_iter().filter(waits).map(|ghost| ghost.id);
        let orphans = self.orphans.seen(node, &waiting.filter(|id| !known.contains(id)).collect());
        if !orphans.is_empty() {
            tracing::warn!(node, count = orphans.len(), "ghosts that nobody knows are stopped");
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
    async fn those_go_that_were_unknown_all_the_time() {
        let orphans = OrphanGhosts::default();
        assert_eq!(orphans.seen("a", &ids(["x", "y"])), []);
        assert_eq!(orphans.seen("b", &ids(["z"])), []);
        tokio::time::advance(AFTER / 2).await;
        // Somebody knows this one now, or it has become a clone.
        assert_eq!(orphans.seen("a", &ids(["x"])), []);
        tokio::time::advance(AFTER / 2).await;
        assert_eq!(orphans.seen("a", &ids(["x", "y"])), [ghost("a", "x")]);
        assert_eq!(orphans.seen("b", &ids(["z"])), [ghost("b", "z")]);
        assert_eq!(orphans.seen("a", &ids([])), []);
        assert_eq!(orphans.seen("a", &ids(["x"])), [], "it is another of this name");
    }
}
