//! What instances run on, as the scheduler sees it.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::placement::NodeFacts;
use farfork_types::Tiering;
use farfork_types::wire::AddressRange;
use tokio::io::{AsyncRead, AsyncWrite};

/// Work that goes on while others do.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// What an instance prints.
pub type Output = Box<dyn AsyncRead + Send + Unpin>;
/// A connection to an instance.
pub type Stream = Box<dyn ByteStream>;
/// Makes connections to an instance.
pub type Connect = Box<dyn Fn() -> BoxFuture<io::Result<Stream>> + Send + Sync>;

/// Tells for how long an instance has paused in all.
pub type Paused = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Bytes both ways.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The nodes do not do what they were asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesError {
    /// An instance does not start.
    #[error("cannot start an instance on node {node}: {reason}")]
    Start {
        /// Where.
        node: String,
        /// Why not.
        reason: String,
    },
    /// A node has no room for an instance.
    #[error("node {node} has no room")]
    Full {
        /// Where.
        node: String,
    },
    /// A node does not answer.
    #[error("node {node} does not answer: {reason}")]
    Lost {
        /// Which.
        node: String,
        /// What was seen of it.
        reason: String,
    },
    /// An instance cannot be checkpointed; it goes on.
    #[error("cannot checkpoint an instance: {reason}")]
    Checkpoint {
        /// Why not.
        reason: String,
    },
    /// The pool has no room for an image of an instance; it goes on.
    #[error(
        "cannot checkpoint an instance: the pool has no room for {asked_bytes} bytes, {free_bytes} \
         are free"
    )]
    NoRoom {
        /// What was asked for last; something may have been given before.
        asked_bytes: u64,
        /// What was free then.
        free_bytes: u64,
    },
    /// Memory of an instance does not become local; it goes on.
    #[error("cannot promote memory of an instance: {reason}")]
    Promotion {
        /// Why not.
        reason: String,
    },
    /// An instance does not stand still, or does not go on.
    #[error("cannot {doing} an instance: {reason}")]
    Freezer {
        /// What was to be done to it.
        doing: &'static str,
        /// Why it was not.
        reason: String,
    },
    /// The pool's images cannot be used.
    #[error("cannot use the images of the pool: {reason}")]
    Images {
        /// Why not.
        reason: String,
    },
}

/// What an instance may come to take of a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its limit, in megabytes.
    pub memory_mb: u64,
    /// What others like it were seen to take, in bytes. Where nothing is known, it may take all at once.
    pub expected_bytes: Option<u64>,
}

impl Claim {
    /// The limit, in bytes.
    pub fn most_bytes(self) -> u64 {
        self.memory_mb << 20
    }

    /// What it is expected to take as it starts, in bytes.
    pub fn first_bytes(self) -> u64 {
        let most = self.most_bytes();
        self.expected_bytes.map_or(most, |expected| expected.min(most))
    }
}

/// An instance to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Where.
    pub node: String,
    /// Of which image of the function; of the runtime's base image without one.
    pub image: Option<String>,
    /// The runtime.
    pub kind: String,
    /// What memory it may take.
    pub claim: Claim,
    /// In which tier its memory lives.
    pub tiering: Tiering,
}

/// What starting an instance took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartTimes {
    /// All of it.
    pub whole: Duration,
    /// Of that, making a container, if none waited.
    pub container: Duration,
    /// From the request for its clone to the clone's first instruction.
    pub restore: Duration,
}

/// Memory of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its own, page tables included, in bytes.
    pub local_bytes: u64,
    /// What it maps of the pool, as far as it was touched, in bytes.
    pub pool_bytes: u64,
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
    /// Instances that pause until there is memory for them.
    pub paused: u64,
    /// Empty ghosts that wait, with any limit of memory.
    pub ghosts: u64,
    /// Ghosts that wait with an image.
    pub attached_ghosts: u64,
    /// What one processor of it reads from the pool in a second, if that was measured.
    pub pool_read_bytes_per_s: Option<u64>,
    /// Share of the pool's bandwidth in use that is reckoned from it, in thousandths.
    pub pool_busy_permille: Option<u64>,
}

/// Ghosts that wait on a node, as those see them who need room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGhosts {
    /// They, by names that no instances have.
    pub idle: Vec<Idle>,
    /// Whether memory is set aside for ghosts that are being made, or else for a moment.
    pub is_settling: bool,
}

/// An image that lies in the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolImage {
    /// Its name.
    pub name: String,
    /// What it takes of the pool, in bytes.
    pub bytes: u64,
    /// Nodes on which clones of it live.
    pub nodes: u64,
}

/// An instance that was started.
pub struct Started {
    /// Its name.
    pub id: u64,
    /// What starting it took.
    pub took: StartTimes,
    /// Whether its image was there already, in a ghost that waited with it.
    pub was_attached: bool,
    /// In which tier its memory lives: not always what was asked for, as some clones are watched.
    pub tiering: Tiering,
    /// For how long it has paused in all, which is no time of its own.
    pub paused: Paused,
    /// Makes connections to its server.
    pub connect: Connect,
    /// Its standard output and standard error.
    pub output: [Output; 2],
    /// Comes to an end when the instance has ended: why, if that is known. The instance ends when
    /// this is dropped.
    pub ended: BoxFuture<Option<String>>,
}

/// What instances run on.
pub trait Nodes: Debug + Send + Sync {
    /// The nodes that answer, as somebody sees them who needs an instance with such a claim, of this
    /// image or of the base image.
    fn nodes(&self, claim: Claim, image: Option<&str>) -> Vec<NodeFacts>;
    /// Room of the pool.
    fn pool(&self) -> Memory;
    /// How many images lie in the pool.
    fn images(&self) -> u64;
    /// All nodes.
    fn survey(&self) -> Vec<NodeState>;
    /// Memory of an instance, if that was looked at.
    fn usage(&self, id: u64) -> Option<Usage>;
    /// An instance is to have something to do, as those have that are starting: whether its node has
    /// room for what it may come to take. One that stands still is to be told to go on after that.
    fn begin_work(&self, id: u64) -> bool;
    /// An instance has nothing to do.
    fn end_work(&self, id: u64);
    /// Has an instance stand still that has nothing to do, and see nothing of it but the time.
    fn freeze(&self, id: u64) -> BoxFuture<Result<(), NodesError>>;
    /// Has one that stands still go on.
    fn thaw(&self, id: u64) -> BoxFuture<Result<(), NodesError>>;
    /// The ghosts that wait on a node.
    fn ghosts(&self, node: &str) -> NodeGhosts;
    /// Has those of these ghosts end that still wait, and makes none there for a moment; names of what is no
    /// ghost are nothing to this. What they take, in bytes, and what comes to an end when they have.
    fn stop_ghosts(&self, node: &str, ids: &[String]) -> (u64, BoxFuture<()>);
    /// Starts an instance.
    fn start(&self, start: Start) -> BoxFuture<Result<Started, NodesError>>;
    /// Checkpoints an instance that waits for a connection, under a name; memory at the addresses
    /// `hot` is declared so. The instance goes on.
    fn checkpoint(
        &self,
        id: u64,
        image: &str,
        hot: Vec<AddressRange>,
    ) -> BoxFuture<Result<(), NodesError>>;
    /// Has what instances of the image were seen to access become local memory of this one, which goes
    /// on meanwhile, as far as its node's memory allows. How many pages that were.
    fn promote(&self, id: u64) -> BoxFuture<Result<u64, NodesError>>;
    /// The images that lie in the pool, whosever they are.
    fn list_images(&self) -> BoxFuture<Result<Vec<PoolImage>, NodesError>>;
    /// The names of images that were checkpointed here, also by earlier runs of the platform, and not removed.
    fn made_images(&self) -> Vec<String>;
    /// Whether there is an image of this name that can be used.
    fn has_image(&self, image: &str) -> BoxFuture<Result<bool, NodesError>>;
    /// Removes an image, if there is one of this name.
    fn remove_image(&self, image: &str) -> BoxFuture<Result<(), NodesError>>;
}
