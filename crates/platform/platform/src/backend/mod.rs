//! Real nodes: the agents of this machine, and the pool that they share.
//!
//! ```text
//!  agents       an agent for each emulated node, restarted when it exits; it outlives a killed
//! platform
//!  requests     requests to agents, with time limits
//!  ghosts       makes and stops ghosts
//!  orphans      ghosts that agents have but the platform does not know
//!  start        ghost + image ─► clone, its connections (network) and its output (pipes)
//!  images       the pool's images by name; checkpoints run in a process of their own
//!  regions      regions for objects that instances get
//!  made_images  which of them this platform has made
//!  base         the image that a function's first instance is a clone of
//!  shared       the ledger of the nodes' instances and ghosts, and of the memory that they take
//!  growth       pauses busy instances that together may take more than is free
//!  frozen       freezes idle instances
//! ```
//! Invariants: an instance ends with this process, as its clone is not detached. A ghost is taken
//! for one instance. Every request to an agent has a time limit, and blocks no work on another
//! node.

mod agent;
mod agents;
mod base;
mod frozen;
mod ghosts;
mod growth;
mod images;
mod made_images;
mod network;
mod orphans;
mod regions;
mod requests;
mod shared;
mod start;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use farfork_node::{NodeError, paths};
use farfork_policy::Memory;
use farfork_policy::occupant::OccupantId;
use farfork_policy::placement::NodeFacts;
use farfork_pool::{Pool, PoolError};
use farfork_sys::numa;
use farfork_sys::process_group::ProcessCount;
use farfork_types::LocalShare;
use farfork_types::wire::{AddressRange, CloneState, Promotion};

use crate::api::region;
use crate::scheduler::Advisor;
use crate::scheduler::nodes::{
    BoxFuture, Claim, NodeGhosts, NodeLoad, NodeState, Nodes, NodesError, PoolImage, Start,
    Started, Usage,
};
pub use agents::{Agents, Budgets, ProcessCounts};
pub use base::Python;
use ghosts::GhostMaker;
use images::Images;
use made_images::MadeImages;
use network::Connector;
use orphans::OrphanGhosts;
use requests::{RequestClass, connect};
use shared::SharedLedger;

/// Period of measurements of instances.
const LOOK: Duration = Duration::from_secs(1);

/// Period of measurements of nodes.
const MEASURE: Duration = Duration::from_millis(100);

/// Starts without an image at once for each processor. They also wait for files.
const COLD_STARTS: usize = 4;

/// Processes and threads that must be free for an instance to start.
const PROCESSES_OF_START: u64 = 32;

/// Settings of the nodes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `farfork`.
    pub program: PathBuf,
    /// The pool.
    pub pool: PathBuf,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Bytes of memory that the instances of a node may take together.
    pub node_memory_bytes: u64,
    /// Thousandths of this machine's processes that the instances of all nodes may have together.
    pub processes_permille: u64,
    /// On each node, every how many clones of an image one is profiled, beginning with the first; 0
    /// for none. Hybrid tiering, promotion and attached ghosts learn about pages from these.
    pub profile_every: u32,
    /// The platform's state directory: logs and records of agents, and files of functions.
    pub state: PathBuf,
    /// How long agents of a killed platform wait for the next one.
    pub agents_outlive: Duration,
}

/// The backend cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// An agent cannot be started.
    #[error("cannot start the agent of {node}: {reason}")]
    Agent {
        /// The node.
        node: String,
        /// Why not.
        reason: String,
    },
    /// A node's memory cannot be limited.
    #[error("cannot limit the memory of {node} by a cgroup: {reason}")]
    Budget {
        /// The node.
        node: String,
        /// Why not.
        reason: String,
    },
    /// The file that shows agents that their platform lives cannot be locked.
    #[error("cannot lock agents.lock in the platform's state: {}", farfork_sys::words::of(.0))]
    Lock(#[source] io::Error),
    /// The pool cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A thread for connections or measurements cannot be started.
    #[error("cannot start a thread for connections or measurements: {}", farfork_sys::words::of(.0))]
    Connector(#[source] io::Error),
    /// A base image cannot be made.
    #[error("cannot make the base image of {kind}: {reason}")]
    Base {
        /// The runtime.
        kind: String,
        /// Why not, and what to do.
        reason: String,
    },
}

/// The nodes. Clones of this value share them.
#[derive(Clone, Debug)]
pub struct Backend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    images: Images,
    made: Arc<MadeImages>,
    ledger: Arc<SharedLedger>,
    ghosts: GhostMaker,
    orphans: OrphanGhosts,
    connector: Connector,
    budgets: Budgets,
    processes: ProcessCounts,
    advisor: Arc<Advisor>,
    /// Whether the machine, which all nodes are on, had memory nodes without processors at the start.
    has_far_memory: bool,
    /// The name of the base image, which is Python's action server.
    base: String,
}

impl Backend {
    /// Uses the running agents of these nodes, and makes the base image if it is missing. Functions
    /// need the files `needed` beside Python's, and have their working directories in `functions`.
    pub async fn begin(
        settings: Settings,
        (budgets, processes): (Budgets, ProcessCounts),
        python: &Python,
        (mut needed, functions): (Vec<PathBuf>, &Path),
        advisor: Arc<Advisor>,
    ) -> Result<Backend, BackendError> {
        let pool = Arc::new(Pool::open(&settings.pool)?);
        needed.extend(python.paths.clone());
        needed.extend([settings.program.clone(), settings.state.clone()]);
        let inner = Inner {
            made: Arc::new(MadeImages::read(&settings.state)),
            images: Images::new(pool, settings.clone()),
            ledger: Arc::new(SharedLedger::new(
                &settings.nodes,
                settings.node_memory_bytes,
                advisor.growth(),
            )),
            orphans: OrphanGhosts::default(),
            ghosts: GhostMaker::new(
                ghosts::places(&needed).with_layers(functions, &settings.state),
            ),
            connector: Connector::start().map_err(BackendError::Connector)?,
            budgets,
            processes,
            base: python.image(),
            has_far_memory: !numa::nodes_without_processors().is_empty(),
            advisor,
            settings,
        };
        let backend = Backend { inner: Arc::new(inner) };
        for node in &backend.inner.settings.nodes {
            backend.inner.look(node).await;
        }
        base::ensure(&backend.inner, python).await?;
        for node in &backend.inner.settings.nodes {
            backend.inner.refill(node, farfork_scheduler::USUAL_MB);
        }
        growth::watch(&backend.inner).map_err(BackendError::Connector)?;
        for node in &backend.inner.settings.nodes {
            tokio::spawn(watch(Arc::clone(&backend.inner), node.clone()));
        }
        tokio::spawn(tend(Arc::clone(&backend.inner)));
        Ok(backend)
    }
}

impl Inner {
    /// Measures the instances of a node, and checks whether it answers.
    async fn look(&self, node: &str) {
        let name = node.to_owned();
        match blocking(move || usages(&name)).await {
            Some(Ok(clones)) => {
                if self.ledger.record_usage(node, Some(&clones)) {
                    tracing::info!(node, "a node answers again");
                }
                self.measure_pool(node).await;
            }
            Some(Err(error)) => self.lost(node, &error),
            None => {}
        }
    }

    /// Whether another instance may have its processes on a node.
    fn has_processes(&self, node: &str) -> bool {
        let Some((has, most)) = self.processes.get(node).and_then(ProcessCount::read) else {
            return true;
        };
        let has_room = has + PROCESSES_OF_START <= most;
        if !has_room {
            tracing::warn!(
                node,
                has,
                most,
                "functions have all processes that they may have together; no \
                instance starts until some end (processes.all_permille in --policies)"
            );
        }
        has_room
    }

    /// Changes the record of made images.
    async fn record_images(&self, change: impl FnOnce(&MadeImages) + Send + 'static) {
        let made = Arc::clone(&self.made);
        blocking(move || change(&made)).await;
    }

    /// Measures how fast a node reads from the pool.
    async fn measure_pool(&self, node: &str) {
        let (name, pool) = (node.to_owned(), self.settings.pool.clone());
        let read =
            self.request(node, move || connect(&name, RequestClass::Look)?.read_rate(&pool)).await;
        let read =
            read.inspect_err(|error| tracing::debug!(node, %error, "cannot measure the pool"));
        self.ledger.record_read_rate(node, read.ok());
    }

    /// Stops using a node that does not answer, until it does.
    fn lost(&self, node: &str, error: &NodeError) {
        if self.ledger.record_usage(node, None) {
            tracing::error!(node, %error, "a node does not answer");
        }
        if let Some((mut locked, id)) = self.ledger.lock_for(node) {
            let gone = locked.ledger.forget_ghosts(id);
            locked.left(gone);
        }
        if matches!(error, NodeError::Socket { .. }) {
            // The agent has exited, but its namespace does not end while a process in it is frozen.
            farfork_node::thaw_ghosts(&paths::socket(node));
        }
    }
}

/// Measures the clones of a node, by pid.
fn usages(node: &str) -> Result<BTreeMap<i32, Usage>, NodeError> {
    let usage = |clone: CloneState| {
        let CloneState { pid, local_bytes, pool_bytes, .. } = clone;
        (pid, Usage { local_bytes, pool_bytes })
    };
    Ok(connect(node, RequestClass::Look)?.list()?.into_iter().map(usage).collect())
}

/// Watches one node, so that a slow one does not delay the others.
async fn watch(inner: Arc<Inner>, node: String) {
    let mut looked_for_orphans = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        inner.look(&node).await;
        if looked_for_orphans.elapsed() >= orphans::PERIOD {
            looked_for_orphans = Instant::now();
            inner.end_orphans(&node).await;
        }
    }
}

async fn tend(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(LOOK).await;
        inner.tend_ghosts();
    }
}

/// Runs blocking work on a thread for it; `None` if the program is about to exit.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

impl Nodes for Backend {
    fn nodes(&self, claim: Claim, image: Option<&str>) -> Vec<NodeFacts> {
        self.inner.ledger.nodes(claim, image)
    }

    fn load(&self, node: &str) -> Option<NodeLoad> {
        self.inner.ledger.load(node)
    }

    fn pool(&self) -> Memory {
        self.inner.images.room()
    }

    fn images(&self) -> u64 {
        self.inner.images.count()
    }

    fn most_cold_starts(&self) -> Option<usize> {
        // Of all nodes, as they are on this machine.
        available_parallelism().ok().map(|processors| processors.get() * COLD_STARTS)
    }

    fn survey(&self) -> Vec<NodeState> {
        self.inner.ledger.survey()
    }

    fn usage(&self, id: u64) -> Option<Usage> {
        self.inner.ledger.usage(id)
    }

    fn begin_work(&self, id: u64) -> bool {
        self.inner.ledger.begin_work(id)
    }

    fn end_work(&self, id: u64) {
        self.inner.ledger.end_work(id);
    }

    fn freeze(&self, id: u64) -> BoxFuture<Result<(), NodesError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.freeze(id).await })
    }

    fn thaw(&self, id: u64) -> BoxFuture<Result<(), NodesError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.thaw(id).await })
    }

    fn ghosts(&self, node: &str) -> NodeGhosts {
        self.inner.ledger.idle_ghosts(node)
    }

    fn stop_ghosts(&self, node: &str, ids: &[OccupantId]) -> (u64, BoxFuture<()>) {
        let (ghosts, bytes) = self.inner.ledger.withdraw(node, ids);
        let inner = Arc::clone(&self.inner);
        (bytes, Box::pin(async move { inner.stop(ghosts).await }))
    }

    fn start(&self, start: Start) -> BoxFuture<Result<Started, NodesError>> {
        let reservation = self.inner.ledger.reserve(&start.node, start.claim);
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let Some(reservation) = reservation else {
                return Err(NodesError::Full { node: start.node });
            };
            // Otherwise the start would fail, and the image be taken for the reason.
            if !inner.has_processes(&start.node) {
                return Err(NodesError::Full { node: start.node });
            }
            inner.start(start, reservation).await
        })
    }

    fn checkpoint(
        &self,
        id: u64,
        image: &str,
        hot: Vec<AddressRange>,
        has_region: bool,
    ) -> BoxFuture<Result<(), NodesError>> {
        let (inner, image) = (Arc::clone(&self.inner), image.to_owned());
        Box::pin(async move {
            let reason = "it has ended".to_owned();
            let (node, pid) = inner.ledger.location(id).ok_or(NodesError::Checkpoint { reason })?;
            let _going = inner.ledger.prevent_pause(id);
            // Recorded before it is made, so that no image is left unrecorded.
            let name = image.clone();
            inner.record_images(move |made| made.add(&name)).await;
            let supplied = has_region.then_some(region::DESCRIPTOR);
            inner.images.checkpoint((pid, &node), &image, hot, (false, supplied)).await
        })
    }

    fn promote(&self, id: u64) -> BoxFuture<Result<u64, NodesError>> {
        let (promoting, inner) = (self.inner.ledger.promote(id), Arc::clone(&self.inner));
        Box::pin(async move {
            let failed = |reason: &str| NodesError::Promotion { reason: reason.to_owned() };
            let no_room = "its node has no memory left, or it was not measured yet";
            let promoting = promoting.ok_or_else(|| failed(no_room))?;
            let (node, pid) = (promoting.node.clone(), promoting.pid);
            let pages = Promotion { hot: true, accessed: true, ranges: Vec::new() };
            let name = node.clone();
            let promote = move || connect(&name, RequestClass::Promote)?.promote(pid, pages);
            let promoted = inner.request(&node, promote).await;
            shared::until_counted(promoting);
            let promoted = promoted.map_err(|error| failed(&error.to_string()))?;
            Ok(promoted.promoted_pages)
        })
    }

    fn has_far_memory(&self) -> bool {
        self.inner.has_far_memory
    }

    fn set_share(
        &self,
        id: u64,
        from: LocalShare,
        to: LocalShare,
    ) -> Option<BoxFuture<Result<bool, NodesError>>> {
        let room = self.inner.ledger.promote_to(id, Some(from), to)?;
        Some(Box::pin(Arc::clone(&self.inner).set_share(room, to)))
    }

    fn list_images(&self) -> BoxFuture<Result<Vec<PoolImage>, NodesError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.images.list().await })
    }

    fn made_images(&self) -> Vec<String> {
        self.inner.made.all()
    }

    fn has_image(&self, image: &str) -> BoxFuture<Result<bool, NodesError>> {
        let (inner, image) = (Arc::clone(&self.inner), image.to_owned());
        Box::pin(async move { Ok(inner.images.usable(&image).await?.is_some()) })
    }

    fn remove_image(&self, image: &str) -> BoxFuture<Result<(), NodesError>> {
        let (inner, image) = (Arc::clone(&self.inner), image.to_owned());
        Box::pin(async move {
            inner.stop(inner.ledger.forget_image(&image)).await;
            inner.images.remove(&image).await?;
            inner.record_images(move |made| made.remove(&image)).await;
            Ok(())
        })
    }
}
