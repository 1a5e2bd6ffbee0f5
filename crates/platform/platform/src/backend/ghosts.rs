//! Empty ghosts, by node and memory limit.
//!
//! A ghost takes one clone, once. So it can serve any user: no user's data is left in it for
//! another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_node::NodeError;
use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::ghosts::EmptyFacts;
use farfork_policy::placement::NodeFacts;
use farfork_types::wire::{GhostCall, GhostImage, GhostState};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, timeout};

use super::Inner;
use super::agents::instances_group;
use super::arrivals::{ArrivalWindow, Worth};
use super::attached::{Ghost, ImageSpec};
use super::requests::{RequestClass, connect};
use super::table::until_counted;
use crate::confine;
use crate::scheduler::Advisor;
use crate::scheduler::nodes::Claim;

/// The default memory limit of actions, in megabytes. Ghosts with it always wait.
pub const USUAL_MB: u64 = 256;
/// Ghosts with another limit are stopped if none was taken for this long.
const UNUSED: Duration = Duration::from_secs(600);
/// Period of the check for surplus ghosts.
const TRIM: Duration = Duration::from_secs(30);
/// Memory of a ghost, including the kernel's, until one was measured.
const GUESSED_BYTES: u64 = 600 << 10;
/// What an empty ghost saves, making a container, in microseconds.
const SAVES_US: u64 = 30_000;
/// After ghosts were evicted for an instance, none are made on its node for this long: it is still
/// starting.
const NONE: Duration = Duration::from_secs(1);

/// How long making a ghost waits while instances start, as it would take a processor from them.
const PATIENCE: Duration = Duration::from_millis(200);

/// Waiting empty ghosts.
#[derive(Debug)]
pub struct Ghosts {
    /// Keyed by node and megabytes.
    stocks: Mutex<BTreeMap<(String, u64), Stock>>,
    trimmed: Mutex<Instant>,
    /// Until when no ghosts are made, by node.
    none_until: Mutex<BTreeMap<String, Instant>>,
    /// Number of instances being started.
    starting: watch::Sender<usize>,
    /// Held while a ghost is made in advance: one at a time.
    maker: tokio::sync::Mutex<()>,
    advisor: Arc<Advisor>,
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

#[derive(Debug, Default)]
struct Stock {
    ids: Vec<String>,
    /// Number of ghosts being made.
    making: u64,
    arrivals: ArrivalWindow,
    /// Measured memory of the last ghost.
    bytes: Option<u64>,
}

impl Stock {
    fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(GUESSED_BYTES)
    }

    fn take(&mut self, now: Instant) -> Option<String> {
        self.arrivals.add(now);
        self.ids.pop()
    }
}

impl Ghosts {
    /// No ghosts yet. Each will have directories of its own.
    pub fn new(advisor: Arc<Advisor>, places: OwnPlaces) -> Ghosts {
        let trimmed = Mutex::new(Instant::now());
        let (starting, maker) = (watch::Sender::new(0), tokio::sync::Mutex::default());
        let (stocks, none_until) = Default::default();
        Ghosts { stocks, trimmed, none_until, starting, maker, advisor, places }
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

    fn stocks(&self) -> MutexGuard<'_, BTreeMap<(String, u64), Stock>> {
        // Every step leaves the table valid.
        self.stocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub fn waiting(&self, node: &str, memory_mb: u64) -> u64 {
        let key = (node.to_owned(), memory_mb);
        self.stocks().get(&key).map_or(0, |stock| stock.ids.len() as u64)
    }

    /// How many wait, with any memory limit.
    pub fn all_waiting(&self, node: &str) -> u64 {
        let stocks = self.stocks();
        let here = stocks.iter().filter(|((other, _), _)| other == node);
        here.map(|(_, stock)| stock.ids.len() as u64).sum()
    }

    /// The ghosts of a node as candidates for eviction.
    pub fn idle(&self, node: &str) -> Vec<Idle> {
        let (mut stocks, now) = (self.stocks(), Instant::now());
        let here = stocks.iter_mut().filter(|((other, _), _)| other == node);
        let idle = here.flat_map(|(_, stock)| {
            let bytes = stock.bytes();
            stock.arrivals.idle(&stock.ids, Worth { bytes, saves_us: SAVES_US }, now)
        });
        idle.collect()
    }

    /// The ids of the ghosts on a node.
    pub fn ids(&self, node: &str) -> BTreeSet<String> {
        let stocks = self.stocks();
        let here = stocks.iter().filter(|((other, _), _)| other == node);
        here.flat_map(|(_, stock)| stock.ids.iter().cloned()).collect()
    }

    /// Removes those of these ghosts that wait on a node; returns them and their bytes.
    pub fn withdraw(&self, node: &str, ids: &BTreeSet<&str>) -> (Vec<Ghost>, u64) {
        let (mut withdrawn, mut bytes) = (Vec::new(), 0);
        for ((other, _), stock) in &mut *self.stocks() {
            if other == node {
                let each = stock.bytes();
                let taken = withdraw(&mut stock.ids, ids);
                bytes += taken.len() as u64 * each;
                withdrawn.extend(taken.into_iter().map(|id| (node.to_owned(), id)));
            }
        }
        (withdrawn, bytes)
    }

    /// Makes no ghosts on a node for a moment, as its free memory is meant for an instance.
    pub fn make_none(&self, node: &str) {
        let mut none_until = self.none_until.lock().unwrap_or_else(PoisonError::into_inner);
        none_until.insert(node.to_owned(), Instant::now() + NONE);
    }

    /// Whether ghosts may be made on a node.
    fn may_make(&self, node: &str) -> bool {
        let none_until = self.none_until.lock().unwrap_or_else(PoisonError::into_inner);
        none_until.get(node).is_none_or(|until| *until <= Instant::now())
    }

    /// Takes a waiting ghost.
    pub fn take(&self, node: &str, memory_mb: u64) -> Option<String> {
        let mut stocks = self.stocks();
        stocks.entry((node.to_owned(), memory_mb)).or_default().take(Instant::now())
    }

    /// Forgets the ghosts of a node, which are gone.
    pub fn forget(&self, node: &str) {
        for ((other, _), stock) in &mut *self.stocks() {
            if other == node {
                stock.ids.clear();
            }
        }
    }

    /// How many should wait.
    fn wanted(&self, key: &(String, u64), stock: &mut Stock, memory: Memory) -> u64 {
        let burst = stock.arrivals.burst(Instant::now());
        let facts = EmptyFacts { burst, ghost_bytes: stock.bytes(), memory };
        let about = format!("{}/{}", key.0, key.1);
        self.advisor.decide(&*self.advisor.policies.empty_ghosts, &about, &facts)
    }

    /// How many ghosts to make. They count as being made from now on.
    fn lacking(&self, node: &str, memory_mb: u64, memory: Memory) -> u64 {
        let mut stocks = self.stocks();
        let key = (node.to_owned(), memory_mb);
        let stock = stocks.entry(key.clone()).or_default();
        let wanted = self.wanted(&key, stock, memory);
        let lacking = wanted.saturating_sub(stock.ids.len() as u64 + stock.making);
        stock.making += lacking;
        lacking
    }

    /// Removes surplus ghosts, at intervals.
    fn surplus(&self, nodes: &[NodeFacts]) -> Vec<(String, String)> {
        let mut trimmed = self.trimmed.lock().unwrap_or_else(PoisonError::into_inner);
        if trimmed.elapsed() < TRIM {
            return Vec::new();
        }
        *trimmed = Instant::now();
        let mut surplus = Vec::new();
        for (key, stock) in &mut *self.stocks() {
            let Some(node) = nodes.iter().find(|node| node.name == key.0) else { continue };
            let wanted =
                usize::try_from(self.wanted(key, stock, node.memory)).unwrap_or(usize::MAX);
            let kept = wanted.min(stock.ids.len());
            surplus.extend(stock.ids.drain(kept..).map(|id| (key.0.clone(), id)));
        }
        surplus
    }

    /// Adds a ghost that was made, with its bytes, or notes that making it failed.
    fn made(&self, node: &str, memory_mb: u64, ghost: Option<(String, u64)>) {
        let mut stocks = self.stocks();
        let stock = stocks.entry((node.to_owned(), memory_mb)).or_default();
        stock.making -= 1;
        if let Some((id, bytes)) = ghost {
            stock.ids.push(id);
            stock.bytes = Some(bytes);
        }
    }

    /// Removes ghosts with unusual limits that were not taken for long.
    fn unused(&self) -> Vec<(String, String)> {
        let now = Instant::now();
        let mut unused = Vec::new();
        self.stocks().retain(|(node, memory_mb), stock| {
            let is_used =
                stock.arrivals.last().is_some_and(|last| now - last < UNUSED) || stock.making > 0;
            if is_used || *memory_mb == USUAL_MB {
                return true;
            }
            unused.extend(stock.ids.drain(..).map(|id| (node.clone(), id)));
            false
        });
        unused
    }
}

/// Removes the ghosts in `ids` from a stock; returns them.
pub fn withdraw(stock: &mut Vec<String>, ids: &BTreeSet<&str>) -> Vec<String> {
    stock.extract_if(.., |id| ids.contains(id.as_str())).collect()
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
    /// The current facts of a node, if it answers and ghosts may be made there.
    fn may_make_on(&self, node: &str) -> Option<NodeFacts> {
        let nodes =
            self.ghosts.may_make(node).then(|| self.table.nodes(Claim::default(), |_| 0))?;
        nodes.into_iter().find(|found| found.name == node)
    }

    /// Makes as many empty ghosts as should wait.
    pub fn refill(self: &Arc<Inner>, node: &str, memory_mb: u64) {
        let Some(found) = self.may_make_on(node) else { return };
        for _ in 0..self.ghosts.lacking(node, memory_mb, found.memory) {
            let (inner, node) = (Arc::clone(self), node.to_owned());
            tokio::spawn(async move {
                let call = inner.ghosts.call(&node, memory_mb);
                let made = inner.make_later(&node, call, None).await;
                inner.ghosts.made(&node, memory_mb, made);
            });
        }
    }

    /// Makes as many ghosts of an image as should wait.
    pub fn refill_attached(self: &Arc<Inner>, node: &str, wanted: &ImageSpec) {
        let Some(found) = self.may_make_on(node) else { return };
        for _ in 0..self.attached.lacking(&found, &wanted.name, self.images.room()) {
            let (inner, node, wanted) = (Arc::clone(self), node.to_owned(), wanted.clone());
            tokio::spawn(async move {
                let image = GhostImage {
                    pool: inner.settings.pool.clone(),
                    cid: wanted.cid.to_string(),
                    name: wanted.name.clone(),
                    tiering: wanted.tiering,
                };
                let call = inner.ghosts.call(&node, wanted.memory_mb);
                let call = GhostCall { image: Some(image), ..call };
                let bytes = inner.attached.bytes(&node, &wanted);
                let made = inner.make_later(&node, call, Some(bytes)).await;
                let useless = inner.attached.made(&node, &wanted, made);
                inner.stop(useless).await;
            });
        }
    }

    /// Makes a ghost in advance; returns its id and bytes. With `bytes`, that memory is set aside
    /// for it.
    async fn make_later(
        &self,
        node: &str,
        call: GhostCall,
        bytes: Option<u64>,
    ) -> Option<(String, u64)> {
        let turn = self.ghosts.turn().await;
        let room = match bytes {
            Some(bytes) => Some(self.table.set_aside(node, bytes)?),
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
        let nodes = self.table.nodes(Claim::default(), |_| 0);
        let surplus = self.ghosts.unused().into_iter().chain(self.ghosts.surplus(&nodes));
        let surplus = surplus.chain(self.attached.surplus(&nodes, self.images.room()));
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
            if self.ghosts.waiting(node, USUAL_MB) == 0 {
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
        let advisor = Advisor::new(farfork_policy::Settings::default(), None).unwrap();
        let ghosts = Ghosts::new(Arc::new(advisor), OwnPlaces::default());
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

    #[tokio::test(start_paused = true)]
    async fn surplus_ghosts_of_a_burst_are_stopped() {
        let advisor = Advisor::new(farfork_policy::Settings::default(), None).unwrap();
        let ghosts = Ghosts::new(Arc::new(advisor), OwnPlaces::default());
        let memory = Memory { used_bytes: 0, budget_bytes: 1 << 40 };
        let node = NodeFacts { name: "a".to_owned(), memory, ..NodeFacts::default() };
        let make_all = || {
            let lacking = ghosts.lacking("a", USUAL_MB, memory);
            let made = |id: u64| ghosts.made("a", USUAL_MB, Some((id.to_string(), 400 << 10)));
            (0..lacking).for_each(made);
            lacking
        };
        assert_eq!((make_all(), make_all()), (1, 0));
        (0..5).for_each(|_| drop(ghosts.take("a", USUAL_MB)));
        assert_eq!(make_all(), 6);
        tokio::time::advance(TRIM + Duration::from_secs(1)).await;
        assert!(ghosts.surplus(std::slice::from_ref(&node)).is_empty(), "it may come again");
        tokio::time::advance(Duration::from_secs(60)).await;
        let surplus = ghosts.surplus(std::slice::from_ref(&node));
        assert_eq!((surplus.len(), ghosts.waiting("a", USUAL_MB)), (5, 1));
        // A ghost with another limit is stopped when none was taken for long.
        assert_eq!(ghosts.all_waiting("a"), 1);
        let (only, uses) = (ghosts.idle("a").remove(0), 5);
        assert_eq!((only.bytes, only.uses_per_hour), (400 << 10, uses));
        let ids = BTreeSet::from([&*only.id, "7"]);
        assert_eq!(ghosts.withdraw("b", &ids), (vec![], 0));
        assert_eq!(ghosts.withdraw("a", &ids).1, 400 << 10);
        assert_eq!(ghosts.all_waiting("a"), 0);
        ghosts.make_none("a");
        assert!(!ghosts.may_make("a") && ghosts.may_make("b"));
        tokio::time::advance(NONE).await;
        assert!(ghosts.may_make("a"));
        make_all();
        ghosts.take("a", 64);
        assert_eq!(ghosts.lacking("a", 64, memory), 2);
        ghosts.made("a", 64, Some(("x".to_owned(), 1)));
        assert_eq!((ghosts.all_waiting("a"), ghosts.waiting("a", 64)), (2, 1));
        ghosts.made("a", 64, None);
        assert!(ghosts.unused().is_empty());
        tokio::time::advance(UNUSED).await;
        assert_eq!(ghosts.unused(), [("a".to_owned(), "x".to_owned())]);
    }
}
