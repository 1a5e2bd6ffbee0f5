//! The scheduler's interface to the nodes.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;
use farfork_policy::placement::NodeFacts;
pub use farfork_scheduler::{Claim, NodeLoad, Usage};
use farfork_types::wire::AddressRange;
use farfork_types::{LocalShare, Tiering};
use tokio::io::{AsyncRead, AsyncWrite};

use super::near_share::NearShare;

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// An output stream of an instance.
pub type Output = Box<dyn AsyncRead + Send + Unpin>;
/// A connection to an instance.
pub type Stream = Box<dyn ByteStream>;
/// Makes connections to an instance.
pub type Connect = Box<dyn Fn() -> BoxFuture<io::Result<Stream>> + Send + Sync>;

/// Returns how long an instance was paused in all.
pub type Paused = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A bidirectional stream of bytes.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A request to the nodes failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesError {
    /// An instance does not start.
    #[error("cannot start an instance on node {node}: {reason}")]
    Start {
        /// The node.
        node: String,
        /// Why not.
        reason: String,
    },
    /// A node has no room for an instance.
    #[error("node {node} has no memory left for an instance")]
    Full {
        /// The node.
        node: String,
    },
    /// A node does not answer.
    #[error("node {node} does not answer: {reason}")]
    Lost {
        /// The node.
        node: String,
        /// The error.
        reason: String,
    },
    /// An instance cannot be checkpointed. It goes on.
    #[error("cannot checkpoint an instance: {reason}")]
    Checkpoint {
        /// Why not.
        reason: String,
    },
    /// The pool has no room for an instance's image. The instance goes on.
    #[error(
        "cannot checkpoint an instance: the pool has no room ({asked_bytes} bytes needed, {free_bytes} \
        free)"
    )]
    NoRoom {
        /// Bytes of the allocation that failed. Earlier ones may have succeeded.
        asked_bytes: u64,
        /// Bytes that were free then.
        free_bytes: u64,
    },
    /// Memory of an instance cannot be promoted. The instance goes on.
    #[error("cannot promote memory of an instance: {reason}")]
    Promotion {
        /// Why not.
        reason: String,
    },
    /// The share of near memory of an instance cannot be changed. The instance goes on.
    #[error("cannot change the share of near memory of an instance: {reason}")]
    Share {
        /// Why not.
        reason: String,
    },
    /// An instance cannot be frozen or thawed.
    #[error("cannot {doing} an instance: {reason}")]
    Freezer {
        /// `freeze` or `thaw`.
        doing: &'static str,
        /// Why not.
        reason: String,
    },
    /// A function cannot have its region.
    #[error("the function cannot have its region {name}: {reason}")]
    Region {
        /// The region.
        name: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The pool's images cannot be used.
    #[error("cannot use the images of the pool: {reason}")]
    Images {
        /// Why not.
        reason: String,
    },
}

/// A region for objects that instances of a function get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionGrant {
    /// The namespace that it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The user id of the namespace's functions.
    pub user: u32,
}

/// An instance to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The node.
    pub node: String,
    /// The function's image; without it, the base image is used.
    pub image: Option<String>,
    /// The runtime.
    pub kind: String,
    /// Memory that it may take.
    pub claim: Claim,
    /// Its tiering policy.
    pub tiering: Tiering,
    /// The share of near memory that it gets, if that was decided; then its tiering policy is `mow`.
    pub local_share: Option<LocalShare>,
    /// The region that it gets.
    pub region: Option<RegionGrant>,
}

/// The times of an instance's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartTimes {
    /// The whole start.
    pub whole: Duration,
    /// Of that, making a container, if no ghost waited.
    pub container: Duration,
    /// From the request for the clone to its first instruction.
    pub restore: Duration,
}

/// A node, whether it answers or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub answers: bool,
    /// Memory of its instances.
    pub memory: Memory,
    /// Instances that are being started.
    pub starting: u64,
    /// Instances that are paused until memory is free.
    pub paused: u64,
    /// Empty ghosts that wait, with any limit of memory.
    pub ghosts: u64,
    /// Ghosts that wait with an image.
    pub attached_ghosts: u64,
    /// Bytes per second that one processor reads from the pool, if measured.
    pub pool_read_bytes_per_s: Option<u64>,
    /// Share of the pool's bandwidth in use, estimated from that, in thousandths.
    pub pool_busy_permille: Option<u64>,
}

/// Ghosts that wait on a node and can be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGhosts {
    /// The ghosts.
    pub idle: Vec<Idle>,
    /// Whether memory is set aside for a moment, as for ghosts that are being made.
    pub is_settling: bool,
}

/// An image in the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolImage {
    /// Its name.
    pub name: String,
    /// Bytes that it takes in the pool.
    pub bytes: u64,
    /// Number of nodes on which clones of it live.
    pub nodes: u64,
}

/// A started instance.
pub struct Started {
    /// Its name.
    pub id: u64,
    /// The times of its start.
    pub took: StartTimes,
    /// Whether it was started in a ghost with its image attached.
    pub was_attached: bool,
    /// Its tiering policy. It may differ from the requested one, as some clones are profiled.
    pub tiering: Tiering,
    /// The share of near memory that it was started with, or gets while it runs. None is asked for if the start had no
    /// room for the one that was decided.
    pub share: NearShare,
    /// Returns how long it was paused in all.
    pub paused: Paused,
    /// Bytes of the region that it got.
    pub region_bytes: Option<u64>,
    /// Makes connections to its server.
    pub connect: Connect,
    /// Its standard output and standard error.
    pub output: [Output; 2],
    /// Completes when the instance has exited, with the reason if known. Dropping it ends the
    /// instance.
    pub ended: BoxFuture<Option<String>>,
}

/// The nodes.
pub trait Nodes: Debug + Send + Sync {
    /// The nodes that answer, as facts for an instance with this claim, of this image or the base
    /// image.
    fn nodes(&self, claim: Claim, image: Option<&str>) -> Vec<NodeFacts>;
    /// How much a node has to do, if it answers. Asked after every call, so that it looks at no other node if it can.
    fn load(&self, node: &str) -> Option<NodeLoad> {
        let nodes = self.nodes(Claim::default(), None);
        nodes.iter().find(|found| found.node.name() == node).map(NodeLoad::from)
    }
    /// The pool's use and size.
    fn pool(&self) -> Memory;
    /// The number of images in the pool.
    fn images(&self) -> u64;
    /// How many instances may start without an image at once; the rest waits for its turn.
    fn most_cold_starts(&self) -> Option<usize>;
    /// All nodes.
    fn survey(&self) -> Vec<NodeState>;
    /// Memory of an instance, if measured.
    fn usage(&self, id: u64) -> Option<Usage>;
    /// Marks an instance busy, as starting ones are; returns false if its node lacks room for what
    /// it may take. A frozen instance has to be thawed after that.
    fn begin_work(&self, id: u64) -> bool;
    /// Marks an instance idle.
    fn end_work(&self, id: u64);
    /// Freezes an idle instance, which notices only that time has passed.
    fn freeze(&self, id: u64) -> BoxFuture<Result<(), NodesError>>;
    /// Thaws a frozen instance.
    fn thaw(&self, id: u64) -> BoxFuture<Result<(), NodesError>>;
    /// The ghosts that wait on a node.
    fn ghosts(&self, node: &str) -> NodeGhosts;
    /// Stops those of these ghosts that still wait, and makes none there for a moment. Ignores
    /// instances. Returns their bytes, and a future that completes when they have
    /// ended.
    fn stop_ghosts(&self, node: &str, ids: &[OccupantId]) -> (u64, BoxFuture<()>);
    /// Starts an instance.
    fn start(&self, start: Start) -> BoxFuture<Result<Started, NodesError>>;
    /// Checkpoints an instance that waits for a connection into a named image, with the ranges
    /// `hot` declared hot. If it has a region, clones get it anew. The instance goes on.
    fn checkpoint(
        &self,
        id: u64,
        image: &str,
        hot: Vec<AddressRange>,
        has_region: bool,
    ) -> BoxFuture<Result<(), NodesError>>;
    /// Promotes the accessed and hot pages of an instance, which goes on meanwhile, as far as its
    /// node's memory allows. Returns the number of pages.
    fn promote(&self, id: u64) -> BoxFuture<Result<u64, NodesError>>;
    /// Whether shares of near memory can be lowered while instances run: whether there are memory nodes without
    /// processors.
    fn has_far_memory(&self) -> bool;
    /// Has another share of an instance's memory near, which goes on meanwhile. `from` is the one that it was asked
    /// to have last. Returns `None`, and does nothing, if its node has no room for what that adds; else, whether the share is met.
    fn set_share(
        &self,
        id: u64,
        from: LocalShare,
        to: LocalShare,
    ) -> Option<BoxFuture<Result<bool, NodesError>>>;
    /// All images in the pool.
    fn list_images(&self) -> BoxFuture<Result<Vec<PoolImage>, NodesError>>;
    /// The names of images that this platform, or an earlier run of it, has made and not removed.
    fn made_images(&self) -> Vec<String>;
    /// Whether a usable image of this name exists.
    fn has_image(&self, image: &str) -> BoxFuture<Result<bool, NodesError>>;
    /// Removes an image, if it exists.
    fn remove_image(&self, image: &str) -> BoxFuture<Result<(), NodesError>>;
}
