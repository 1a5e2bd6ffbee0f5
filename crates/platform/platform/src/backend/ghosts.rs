//! Making and stopping ghosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_node::NodeError;
use farfork_scheduler::{GhostOrder, ImageSpec, USUAL_MB};
use farfork_types::wire::{GhostCall, GhostImage, GhostState};
use tokio::sync::watch;
use tokio::time::{Duration, timeout};

use super::Inner;
use super::agents::instances_group;
use super::requests::{RequestClass, connect};
use super::shared::{Ghost, until_counted};
use crate::confine;

/// How long making a ghost waits while instances start, as it would take a processor from them.
const PATIENCE: Duration = Duration::from_millis(200);

/// Makes ghosts in advance.
#[derive(Debug)]
pub struct GhostMaker {
    /// Number of instances being started.
    starting: watch::Sender<usize>,
    /// Held while a ghost is made in advance: one at a time.
    maker: tokio::sync::Mutex<()>,
    /// Directories that each ghost has of its own.
    places: OwnPlaces,
}

/// Counts an instance as starting until it is dropped.
#[derive(Debug)]
pub struct Starting<'g> {
    count: &'g watch::Sender<usize>,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count -= 1);
    }
}

impl GhostMaker {
    /// Ghosts will have directories of their own.
    pub fn new(places: OwnPlaces) -> GhostMaker {
        let (starting, maker) = (watch::Sender::new(0), tokio::sync::Mutex::default());
        GhostMaker { starting, maker, places }
    }

    /// Counts an instance as starting until the returned value is dropped.
    pub fn starting(&self) -> Starting<'_> {
        self.starting.send_modify(|count| *count += 1);
        Starting { count: &self.starting }
    }

    /// Waits for the turn to make a ghost in advance: until no instance starts, but not for long.
    async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        let turn = self.maker.lock().await;
        let mut starting = self.starting.subscribe();
        let _ = timeout(PATIENCE, starting.wait_for(|count| *count == 0)).await;
        turn
    }

    /// The request for a ghost on a node with this memory limit.
    pub fn call(&self, node: &str, memory_mb: u64) -> GhostCall {
        GhostCall {
            group: Some(instances_group(node)),
            memory_bytes: Some(memory_mb << 20),
            pids_limit: Some(confine::MOST_PIDS),
            tmpfs: self.places.scratch.clone(),
            hidden: self.places.hidden.clone(),
            shown: self.places.shown.clone(),
            read_only: true,
            ..GhostCall::default()
        }
    }
}

/// Makes a ghost.
pub fn make(node: &str, call: GhostCall) -> Result<GhostState, NodeError> {
    connect(node, RequestClass::Container)?.start_ghost(call)
}

/// Directories of the node that instances do not share with it.
#[derive(Clone, Debug, Default)]
pub struct OwnPlaces {
    /// World-writable ones: each instance has its own.
    scratch: Vec<PathBuf>,
    /// Those that instances see empty.
    hidden: Vec<PathBuf>,
    /// What is in these all the same, since instances need it.
    shown: Vec<PathBuf>,
}

/// The directories that instances need not share with the node: they exist on it, and contain nothing of
/// what instances need, or can be hidden but for that.
pub fn places(needed: &[PathBuf]) -> OwnPlaces {
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let needed: BTreeSet<PathBuf> =
        needed.iter().flat_map(|path| [path.clone(), real(path)]).collect();
    let exists = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let existing = |all: &[&str]| -> Vec<PathBuf> {
        all.iter().map(PathBuf::from).filter(|path| exists(path)).collect()
    };
    let mut scratch = existing(&confine::SCRATCH);
    scratch.retain(|directory| is_unneeded(directory, needed.iter()));
    let mut hidden = existing(&confine::HIDDEN);
    hidden.retain(|directory| is_unneeded(directory, needed.get(directory)));
    let is_hidden = |path: &&PathBuf| hidden.iter().any(|directory| path.starts_with(directory));
    let shown = needed.iter().filter(is_hidden).cloned().collect();
    OwnPlaces { scratch, hidden, shown }
}

/// Whether none of these paths lies in a directory, or is it. Otherwise the log says which one.
fn is_unneeded<'a>(directory: &Path, paths: impl IntoIterator<Item = &'a PathBuf>) -> bool {
    let inside = paths.into_iter().find(|path| path.starts_with(directory));
    if let Some(path) = inside {
        let (directory, path) = (directory.display(), path.display());
        tracing::warn!(%directory, needed = %path, "functions share a directory with the node, read-only, as they need a path in it");
    }
    inside.is_none()
}

impl Inner {
    /// Makes as many empty ghosts as should wait.
    pub fn refill(self: &Arc<Inner>, node: &str, memory_mb: u64) {
        let advice = self.advisor.deferred();
        let Some((mut locked, id)) = self.ledger.lock_for(node) else { return };
        let now_us = locked.now_us;
        let orders = locked.ledger.order_empty(id, memory_mb, now_us, &advice);
        drop(locked);
        for order in orders {
            let call = self.ghosts.call(node, memory_mb);
            tokio::spawn(Arc::clone(self).make_later(node.to_owned(), call, order));
        }
    }

    /// Makes as many ghosts of an image as should wait.
    pub fn refill_attached(self: &Arc<Inner>, node: &str, wanted: &ImageSpec) {
        let (advice, pool) = (self.advisor.deferred(), self.images.room());
        let Some((mut locked, id)) = self.ledger.lock_for(node) else { return };
        let now_us = locked.now_us;
        let orders = locked.ledger.order_attached(id, wanted, pool, now_us, &advice);
        drop(locked);
        for order in orders {
            let image = GhostImage {
                pool: self.settings.pool.clone(),
                cid: wanted.cid.to_string(),
                name: wanted.name.clone(),
                tiering: wanted.tiering,
            };
            let call = self.ghosts.call(node, wanted.memory_mb);
            let call = GhostCall { image: Some(image), ..call };
            tokio::spawn(Arc::clone(self).make_later(node.to_owned(), call, order));
        }
    }

    /// Makes a ghost in advance.
    async fn make_later(self: Arc<Inner>, node: String, call: GhostCall, order: GhostOrder) {
        let made = self.make_in_turn(&node, call, order).await;
        self.stop(self.ledger.made(&node, order.id, made)).await;
    }

    /// Makes a ghost when it is its turn; returns the agent's name of it and its bytes. Memory is set
    /// aside for it first if the order says so.
    async fn make_in_turn(
        &self,
        node: &str,
        call: GhostCall,
        order: GhostOrder,
    ) -> Option<(String, u64)> {
        let turn = self.ghosts.turn().await;
        let room = match order.bytes {
            Some(bytes) => Some(self.ledger.set_aside(order.id, bytes)?),
            None => None,
        };
        let name = node.to_owned();
        let made = self.request(node, move || make(&name, call)).await;
        until_counted(room);
        drop(turn);
        let made =
            made.inspect_err(|error| tracing::warn!(node, reason = %error, "cannot make a ghost"));
        let GhostState { id, local_bytes, kernel_bytes, .. } = made.ok()?;
        Some((id, local_bytes + kernel_bytes.unwrap_or(0)))
    }

    /// Stops ghosts.
    pub async fn stop(&self, ghosts: impl IntoIterator<Item = Ghost>) {
        for (node, id) in ghosts {
            let name = node.clone();
            let stop = move || connect(&name, RequestClass::Container)?.stop_ghosts(Some(id));
            if let Err(error) = self.request(&node, stop).await {
                tracing::warn!(node, reason = %error, "cannot stop a ghost");
            }
        }
    }

    /// Makes missing ghosts and stops surplus ones.
    pub fn tend_ghosts(self: &Arc<Inner>) {
        let (advice, pool) = (self.advisor.deferred(), self.images.room());
        let mut locked = self.ledger.lock();
        let now_us = locked.now_us;
        let surplus = locked.ledger.surplus(pool, now_us, &advice);
        let surplus = locked.named(surplus);
        drop((locked, advice));
        let mut of_nodes = BTreeMap::<String, Vec<Ghost>>::new();
        for ghost in surplus {
            of_nodes.entry(ghost.0.clone()).or_default().push(ghost);
        }
        for ghosts in of_nodes.into_values() {
            let inner = Arc::clone(self);
            tokio::spawn(async move { inner.stop(ghosts).await });
        }
        for node in &self.settings.nodes {
            // A node that answers again has none.
            let waiting = self.ledger.lock_for(node);
            let has_none = waiting
                .is_some_and(|(locked, node)| locked.ledger.waiting_empty(node, USUAL_MB) == 0);
            if has_none {
                self.refill(node, USUAL_MB);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ghosts_are_made_one_at_a_time_and_after_starts() {
        let ghosts = GhostMaker::new(OwnPlaces::default());
        let soon = Duration::from_millis(1);
        let turn = timeout(soon, ghosts.turn()).await.expect("no instance starts");
        assert!(timeout(soon, ghosts.turn()).await.is_err(), "another is being made");
        drop(turn);
        let (one, other) = (ghosts.starting(), ghosts.starting());
        drop(one);
        assert!(timeout(soon, ghosts.turn()).await.is_err(), "an instance starts");
        drop(other);
        assert!(timeout(soon, ghosts.turn()).await.is_ok());
        let _always = ghosts.starting();
        assert!(timeout(PATIENCE - soon, ghosts.turn()).await.is_err());
        assert!(timeout(PATIENCE + soon, ghosts.turn()).await.is_ok(), "its wait is limited");
    }

    #[test]
    fn directories_with_needed_files_are_not_private() {
        let all = places(&[]);
        let has = |places: &[PathBuf], path: &str| places.contains(&PathBuf::from(path));
        assert!(has(&all.scratch, "/tmp") && has(&all.hidden, "/run"), "{all:?}");
        assert!(!has(&places(&["/tmp/x/bin/python".into()]).scratch, "/tmp"));
        assert!(all.shown.is_empty());
        let inside = places(&["/run/x/python".into()]);
        assert!(has(&inside.hidden, "/run") && has(&inside.shown, "/run/x/python"), "{inside:?}");
        assert!(!has(&places(&["/run".into()]).hidden, "/run"));
        let link = tempfile::tempdir().unwrap();
        let link = link.path().join("link");
        std::os::unix::fs::symlink("/dev/shm", &link).unwrap();
        assert!(!has(&places(&[link]).scratch, "/dev/shm"));
    }
}
