//! Nodes simulated in this process: for tests of the scheduler, and for the simulator.
//!
//! ```text
//!  scheduler ── Nodes ──► SimulatedNodes: budgets, images, freezes      one lock, no threads
//!                            ├─ Agents, for the simulator: the platform's ledger, ghosts, pauses, promotion
//!                            ├─ Processors, if starts and calls share them
//!                            └─ Instance: an HTTP server on a pipe ──► Program: what is answered, and when
//! ```
//! Invariants:
//! - Time passes only in timers of Tokio, so a paused clock makes a run exact and quick.
//! - A node promises no more memory than its budget: a start or a call beyond it is refused.
//! - Nothing is random: with one thread, equal calls give equal runs.

pub mod agents;
mod nodes;
pub mod processors;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::scheduler::nodes::{BoxFuture, Start, StartTimes};
pub use nodes::{Instance, SimulatedNodes, State};

/// How long the nodes' work takes.
#[derive(Clone, Copy, Debug)]
pub struct Durations {
    /// A checkpoint.
    pub checkpoint: Duration,
    /// A freeze.
    pub freeze: Duration,
    /// Stopping ghosts.
    pub stop: Duration,
}

/// Memory of an instance and of its image, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Near memory of an instance that started cold.
    pub cold_bytes: u64,
    /// Near memory of a clone.
    pub clone_bytes: u64,
    /// What a clone maps from the pool.
    pub mapped_bytes: u64,
    /// What the image takes in the pool.
    pub image_bytes: u64,
}

/// What all nodes hold at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Living instances.
    pub instances: u64,
    /// Near memory of instances with a known footprint.
    pub near_bytes: u64,
    /// The pool's used space.
    pub pool_bytes: u64,
    /// Memory of instances that is neither near nor in the pool.
    pub far_bytes: u64,
}

/// What runs in simulated instances.
pub trait Program: Debug + Send + Sync {
    /// How long a start takes, and the times that it reports. `was_attached` says that a ghost with
    /// the image waited.
    fn start(&self, start: &Start, was_attached: bool) -> (Duration, StartTimes);
    /// Answers a request to an instance's server, by a status and a document.
    fn answer(&self, instance: Arc<Instance>, path: String, body: Value)
    -> BoxFuture<(u16, Value)>;
    /// For how long of a start it needs a processor, where those of a node are shared.
    fn start_busy(&self, _: &Start, _was_attached: bool) -> Duration {
        Duration::ZERO
    }
    /// How long a checkpoint into an image takes; if not known, as long as each other.
    fn checkpoint(&self, _image: &str) -> Option<Duration> {
        None
    }
    /// Called after each change of what the nodes hold.
    fn changed(&self, _: Totals) {}
}
