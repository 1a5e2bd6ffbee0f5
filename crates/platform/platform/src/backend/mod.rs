//! Nodes for real: the agents of this machine, and the pool that they share.
//!
//! ```text
//!  orphans   ghosts that agents have and nobody knows
//!  ask      how agents are asked, and for how long
//!  agents   an agent for each emulated node, started again when it ends; it outlives a platform that is killed
//!  ghosts   containers that wait on each node; attached: those that have an image
//!  start    ghost + image ─► clone, its connections (network) and its output (pipes)
//!  images   names of the pool's images; checkpoints are made by a process of their own
//!  made     which of them this platform has made
//!  base     the image that a function's first instance is a clone of
//!  table    which instances there are, and what memory they take
//!  growth   who of them pauses when those at work take more than all may at once
//!  frozen   those that have nothing to do stand still
//! ```
//! Invariants: an instance ends with this process, as its clone is no detached one; a ghost is taken for
//! one instance; no agent is waited for without end, and none by who has to do with another node.

mod agent;
mod agents;
mod arrivals;
mod attached;
mod base;
mod frozen;
mod ghosts;
mod growth;
mod images;
mod made_images;
mod network;
mod orphans;
mod requests;
mod start;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use farfork_node::{NodeError, paths};
use farfork_policy::Memory;
use farfork_policy::placement::NodeFacts;
use farfork_pool::{Pool, PoolError};
use farfork_types::wire::{AddressRange, CloneState, Promotion};

use crate::scheduler::Advisor;
use crate::scheduler::nodes::{
    BoxFuture, Claim, NodeGhosts, NodeState, Nodes, NodesError, PoolImage, Start, Started, Usage,
};
pub use agents::{Agents, Budgets};
use attached::Attached;
pub use base::Python;
use ghosts::Ghosts;
use images::Images;
use made_images::MadeImages;
use network::Connector;
use orphans::OrphanGhosts;
use requests::{RequestClass, agent};
use table::Table;

/// How often it is looked at what memory instances take.
const LOOK: Duration = Duration::from_secs(1);

/// How often it is looked at what memory nodes take.
const MEASURE: Duration = Duration::from_millis(100);

/// What names of ghosts begin with where instances have names, too.
const GHOST: &str = "ghost-";

/// What the nodes are.
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
    /// One clone of each image in so many is watched, on each node, beginning with the first; none if this
    /// is 0. What hybrid tiering, promotion and ghosts with an image know of pages comes from these.
    pub profile_every: u32,
    /// Where the platform keeps its files: logs of agents, which processes those are, and files of functions.
    pub state: PathBuf,
    /// For so long agents of a platform that was killed wait for another.
    pub agents_outlive: Duration,
}

/// The nodes cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// An agent does not start.
    #[error("cannot start the agent of {node}: {reason}")]
    Agent {
        /// Which.
        node: String,
        /// Why not.
        reason: String,
    },
    /// A node's memory cannot be limited.
    #[error("cannot limit the memory of {node} by a cgroup: {reason}")]
    Budget {
        /// Which.
        node: String,
        /// Why not.
        reason: String,
    },
    /// Agents cannot be told that somebody keeps them.
    #[error("cannot lock a file in the platform's state: {}", farfork_sys::words::of(.0))]
    Lock(#[source] io::Error),
    /// The pool cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// What connections are made by is not there.
    #[error("cannot start a thread that connections and memory are seen to by: {}", farfork_sys::words::of(.0))]
    Connector(#[source] io::Error),
    /// A runtime cannot be had.
    #[error("cannot make the base image of {kind}: {reason}")]
    Base {
        /// Which.
        kind: String,
        /// Why not, and what to do.
        reason: String,
    },
}

/// The nodes. Clones of this are the same.
#[derive(Clone, Debug)]
pub struct Backend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    images: Images,
    made: Arc<MadeImages>,
    table: Arc<Table>,
    ghosts: Ghosts,
    attached: Attached,
    orphans: OrphanGhosts,
    connector: Connector,
    budgets: Budgets,
    advisor: Arc<Advisor>,
    /// The base image, which is Python's action server.
    base: OnceLock<String>,
}

impl Backend {
    /// Uses the agents of these nodes, which run; has the base image made if it is not there. Functions
    /// need the files `needed` beside Python's.
    pub async fn begin(
        settings: Settings,
        budgets: Budgets,
        python: &Python,
        mut needed: Vec<PathBuf>,
        advisor: Arc<Advisor>,
    ) -> Result<Backend, BackendError> {
        let pool = Arc::new(Pool::open(&settings.pool)?);
        needed.extend(python.paths.clone());
        needed.extend([settings.program.clone(), settings.state.clone()]);
        let inner = Inner {
            made: Arc::new(MadeImages::read(&settings.state)),
            images: Images::new(pool, settings.clone()),
            table: Arc::new(Table::new(
                &settings.nodes,
                settings.node_memory_bytes,
                advisor.growth(),
            )),
            attached: Attached::new(Arc::clone(&advisor)),
            orphans: OrphanGhosts::default(),
            ghosts: Ghosts::new(Arc::clone(&advisor), ghosts::scratch(&needed)),
            connector: Connector::start().map_err(BackendError::Connector)?,
            budgets,
            base: OnceLock::new(),
            advisor,
            settings,
        };
        let backend = Backend { inner: Arc::new(inner) };
        for node in &backend.inner.settings.nodes {
            backend.inner.look(node).await;
        }
        let base = base::have(&backend.inner, python).await?;
        // Nobody else sets it.
        let _ = backend.inner.base.set(base);
        for node in &backend.inner.settings.nodes {
            backend.inner.refill(node, ghosts::USUAL_MB);
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
    /// Looks at what memory the instances of a node take, and whether it answers.
    async fn look(&self, node: &str) {
        let name = node.to_owned();
        match blocking(move || usages(&name)).await {
            Some(Ok(clones)) => {
                if self.table.seen(node, Some(clones)) {
                    tracing::info!(node, "a node answers again");
                }
                self.measure_reading(node).await;
            }
            Some(Err(error)) => self.lost(node, &error),
            None => {}
        }
    }

    /// Changes what is on record of images.
    async fn put_on_record(&self, change: impl FnOnce(&MadeImages) + Send + 'static) {
        let made = Arc::clone(&self.made);
        blocking(move || change(&made)).await;
    }

    /// Has a node read a bit of the pool, to see how fast that is.
    async fn measure_reading(&self, node: &str) {
        let (name, pool) = (node.to_owned(), self.settings.pool.clone());
        let read =
            self.request(node, move || agent(&name, RequestClass::Look)?.read_rate(&pool)).await;
        let read = read.inspect_err(|error| tracing::debug!(node, %error, "the pool was not read"));
        self.table.reads(node, read.ok());
    }

    /// A node does not answer, and is not used until it does.
    fn lost(&self, node: &str, error: &NodeError) {
        if self.table.seen(node, None) {
            tracing::error!(node, %error, "a node does not answer");
        }
        self.ghosts.forget(node);
        self.attached.forget_node(node);
        if matches!(error, NodeError::Socket { .. }) {
            // It has ended, and its namespace does not as long as something in there is frozen.
            farfork_node::thaw_ghosts(&paths::socket(node));
        }
    }
}

/// What the clones of a node take, by pid.
fn usages(node: &str) -> Result<BTreeMap<i32, Usage>, NodeError> {
    let usage = |clone: CloneState| {
        let CloneState { pid, local_bytes, pool_bytes, .. } = clone;
        (pid, Usage { local_bytes, pool_bytes })
    };
    Ok(agent(node, RequestClass::Look)?.list()?.into_iter().map(usage).collect())
}

/// Looks at a node, by itself: no other has to do with how long it takes to answer.
async fn watch(inner: Arc<Inner>, node: String) {
    let mut looked_for_orphans = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        inner.look(&node).await;
        if looked_for_orphans.elapsed() >= orphans::LOOK {
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

/// Does what blocks where it holds nobody up; nothing if the program is about to end.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

impl Nodes for Backend {
    fn nodes(&self, claim: Claim, image: Option<&str>) -> Vec<NodeFacts> {
        let Inner { table, ghosts, attached, .. } = &*self.inner;
        let mut nodes = table.nodes(claim, |node| ghosts.waiting(node, claim.memory_mb));
        if let Some(image) = image {
            nodes.iter_mut().for_each(|node| {
                node.attached_ghosts = attached.waiting(&node.name, image);
            });
        }
        nodes
    }

    fn pool(&self) -> Memory {
        self.inner.images.room()
    }

    fn images(&self) -> u64 {
        self.inner.images.count()
    }

    fn survey(&self) -> Vec<NodeState> {
        let Inner { table, ghosts, attached, .. } = &*self.inner;
        let mut nodes = table.survey(|node| ghosts.all_waiting(node));
        nodes.iter_mut().for_each(|node| node.attached_ghosts = attached.all_waiting(&node.name));
        nodes
    }

    fn usage(&self, id: u64) -> Option<Usage> {
        self.inner.table.usage(id)
    }

    fn begin_work(&self, id: u64) -> bool {
        self.inner.table.begin_work(id)
    }

    fn end_work(&self, id: u64) {
        self.inner.table.end_work(id);
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
        let Inner { table, ghosts, attached, .. } = &*self.inner;
        let mut idle = attached.idle(node);
        idle.extend(ghosts.idle(node));
        idle.iter_mut().for_each(|ghost| ghost.id.insert_str(0, GHOST));
        NodeGhosts { idle, is_settling: table.has_set_aside(node) }
    }

    fn stop_ghosts(&self, node: &str, ids: &[String]) -> (u64, BoxFuture<()>) {
        let ids = ids.iter().filter_map(|id| id.strip_prefix(GHOST)).collect();
        let (mut theirs, attached_bytes) = self.inner.attached.withdraw(node, &ids);
        let (empty, empty_bytes) = self.inner.ghosts.withdraw(node, &ids);
        theirs.extend(empty);
        if !theirs.is_empty() {
            self.inner.ghosts.make_none(node);
        }
        let inner = Arc::clone(&self.inner);
        (attached_bytes + empty_bytes, Box::pin(async move { inner.stop(theirs).await }))
    }

    fn start(&self, start: Start) -> BoxFuture<Result<Started, NodesError>> {
        let reservation = self.inner.table.reserve(&start.node, start.claim);
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let Some(reservation) = reservation else {
                return Err(NodesError::Full { node: start.node });
            };
            inner.start(start, reservation).await
        })
    }

    fn checkpoint(
        &self,
        id: u64,
        image: &str,
        hot: Vec<AddressRange>,
    ) -> BoxFuture<Result<(), NodesError>> {
        let (inner, image) = (Arc::clone(&self.inner), image.to_owned());
        Box::pin(async move {
            let reason = "it has ended".to_owned();
            let (_, pid) = inner.table.place(id).ok_or(NodesError::Checkpoint { reason })?;
            let _going = inner.table.prevent_pause(id);
            // Before there is one, so that none is forgotten.
            let name = image.clone();
            inner.put_on_record(move |made| made.add(&name)).await;
            inner.images.checkpoint(pid, &image, hot, false).await
        })
    }

    fn promote(&self, id: u64) -> BoxFuture<Result<u64, NodesError>> {
        let (promoting, inner) = (self.inner.table.promote(id), Arc::clone(&self.inner));
        Box::pin(async move {
            let failed = |reason: &str| NodesError::Promotion { reason: reason.to_owned() };
            let no_room = "its node has no room, or nobody has looked at it yet";
            let promoting = promoting.ok_or_else(|| failed(no_room))?;
            let (node, pid) = (promoting.node.clone(), promoting.pid);
            let pages = Promotion { hot: true, accessed: true, ranges: Vec::new() };
            let name = node.clone();
            let promote = move || agent(&name, RequestClass::Promote)?.promote(pid, pages);
            let promoted = inner.request(&node, promote).await;
            table::until_counted(promoting);
            let promoted = promoted.map_err(|error| failed(&error.to_string()))?;
            Ok(promoted.promoted_pages)
        })
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
            inner.stop(inner.attached.forget_image(&image)).await;
            inner.images.remove(&image).await?;
            inner.put_on_record(move |made| made.remove(&image)).await;
            Ok(())
        })
    }
}
