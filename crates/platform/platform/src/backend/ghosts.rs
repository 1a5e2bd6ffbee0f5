//! Making and stopping ghosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_node::NodeError;
use farfork_scheduler::{GhostOrder, ImageId, ImageSpec, USUAL_MB};
use farfork_sys::layer::Layer;
use farfork_sys::words;
use farfork_types::wire::{GhostCall, GhostImage, GhostState};
use farfork_types::{Cid, Tiering};
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
            layered: self.places.layered.clone(),
            read_only: true,
            ..GhostCall::default()
        }
    }
}

/// Makes a ghost.
pub fn make(node: &str, call: GhostCall) -> Result<GhostState, NodeError> {
    connect(node, RequestClass::Container)?.start_ghost(call)
}

/// An image to start a clone of, or to attach to ghosts.
#[derive(Clone, Debug)]
pub struct WantedImage {
    /// Its name.
    pub name: String,
    /// Its CID.
    pub cid: Cid,
    /// The tiering policy.
    pub tiering: Tiering,
    /// Memory limit of an instance, in megabytes.
    pub memory_mb: u64,
}

impl WantedImage {
    /// The same for the ledger, where it has this number.
    pub fn spec(&self, image: ImageId) -> ImageSpec {
        let WantedImage { name: _, cid, tiering, memory_mb } = *self;
        ImageSpec { image, cid, tiering, memory_mb }
    }
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
    /// Those to which each instance can write, in a layer of its own.
    layered: Vec<PathBuf>,
}

/// The directories that instances need not share with the node: they exist on it, and can be hidden but for what
/// instances need of them. What is needed as a whole is shared, read-only; a world-writable one through a layer.
pub fn places(needed: &[PathBuf]) -> OwnPlaces {
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let needed: BTreeSet<PathBuf> =
        needed.iter().flat_map(|path| [path.clone(), real(path)]).collect();
    let exists = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let existing = |all: &[&str]| -> Vec<PathBuf> {
        all.iter().map(PathBuf::from).filter(|path| exists(path)).collect()
    };
    let split = |all: &[&str]| -> (Vec<PathBuf>, Vec<PathBuf>) {
        existing(all).into_iter().partition(|path| needed.contains(path))
    };
    let (layered, scratch) = split(&confine::SCRATCH);
    let (shared, hidden) = split(&confine::HIDDEN);
    for directory in shared.iter().chain(&layered) {
        tracing::warn!(directory = %directory.display(), "functions share a directory with the node: they need all of it");
    }
    let mut shown = Vec::new();
    for path in needed.iter().filter(|path| path.exists()) {
        // What is below another is shown with it.
        if (is_below(path, &hidden) || is_below(path, &scratch)) && !is_below(path, &shown) {
            shown.push(path.clone());
        }
    }
    OwnPlaces { scratch, hidden, shown, layered }
}

/// Whether a path is one of these, or below it.
fn is_below(path: &Path, directories: &[PathBuf]) -> bool {
    directories.iter().any(|directory| path.starts_with(directory))
}

impl OwnPlaces {
    /// With the directories of functions, to which their instances can write. Layers that this kernel cannot mount are
    /// left out: the directory is shared, read-only then. They are tried in a directory that is made in `state`.
    pub fn with_layers(mut self, functions: &Path, state: &Path) -> OwnPlaces {
        self.layered.push(functions.to_owned());
        let at = tempfile::tempdir_in(state);
        let try_out = |lower: &Path| {
            let at = at.as_ref().map_err(words::of)?.path();
            let layer = Layer { name: "farfork-trial", lower, at, most_bytes: None };
            layer.try_out().map_err(|error| words::of(&error))
        };
        self.layered.retain(|lower| match try_out(lower) {
            Ok(()) => true,
            Err(reason) => {
                let directory = lower.display();
                tracing::warn!(%directory, %reason, "functions cannot write to a directory of theirs: overlayfs cannot be mounted over it");
                false
            }
        });
        self
    }
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
    pub fn refill_attached(self: &Arc<Inner>, node: &str, wanted: &WantedImage) {
        let (advice, pool) = (self.advisor.deferred(), self.images.room());
        let Some((mut locked, id)) = self.ledger.lock_for(node) else { return };
        let now_us = locked.now_us;
        // It may have been removed meanwhile.
        let Some(image) = locked.ledger.known_image(&wanted.name) else { return };
        let spec = wanted.spec(image);
        let orders = locked.ledger.order_attached(id, &spec, pool, now_us, &advice);
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
        let surplus = locked.left(surplus);
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
    fn what_is_needed_is_shown_in_directories_of_an_instances_own() {
        let all = places(&[]);
        let has = |places: &[PathBuf], path: &str| places.contains(&PathBuf::from(path));
        assert!(has(&all.scratch, "/tmp") && has(&all.hidden, "/run"), "{all:?}");
        assert!(all.shown.is_empty() && all.layered.is_empty(), "{all:?}");
        for (own, directory) in [("/tmp", "/tmp"), ("/run", "/run"), ("/dev/shm", "/dev/shm")] {
            let above = tempfile::tempdir_in(directory).unwrap();
            let python = above.path().join("python");
            std::fs::write(&python, "").unwrap();
            let link = above.path().join("link");
            std::os::unix::fs::symlink(&python, &link).unwrap();
            let missing = above.path().join("missing.zip");
            let found = places(&[python.clone(), missing]);
            assert!(has(&found.scratch, own) || has(&found.hidden, own), "{found:?}");
            assert_eq!(found.shown, std::slice::from_ref(&python));
            assert_eq!(places(&[python, above.path().to_owned()]).shown, [above.path()]);
            let shown = places(std::slice::from_ref(&link)).shown;
            assert_eq!(shown.len(), 2, "the link and what it leads to");
        }
    }

    #[test]
    fn what_cannot_be_a_layer_is_left_out() {
        let bed = tempfile::tempdir().unwrap();
        let functions = bed.path().join("code");
        std::fs::create_dir(&functions).unwrap();
        let missing = PathBuf::from("/nowhere/at/all");
        let places = || OwnPlaces { layered: vec![missing.clone()], ..OwnPlaces::default() };
        if rustix::process::geteuid().is_root() {
            let found = places().with_layers(&functions, bed.path()).layered;
            assert_eq!(found, std::slice::from_ref(&functions));
        }
        assert!(places().with_layers(&functions, &missing).layered.is_empty());
    }

    #[test]
    fn a_directory_that_is_needed_as_a_whole_is_shared() {
        let has = |places: &[PathBuf], path: &str| places.contains(&PathBuf::from(path));
        let all = places(&["/run".into(), "/tmp".into()]);
        assert!(!has(&all.hidden, "/run") && !has(&all.scratch, "/tmp"), "{all:?}");
        assert_eq!((all.layered, all.shown.len()), (vec![PathBuf::from("/tmp")], 0));
    }
}
