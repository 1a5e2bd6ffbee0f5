//! The scheduler of functions: their calls and instances.
//!
//! ```text
//!  Platform ── call ──► Function, one task for each version of an action that is called
//!                          │  queue ─► instances: start (cold, clone) ─► /init, /run ─► idle ─►
//! ended
//!                          │                           └─ after some calls: /prepare, checkpoint
//!                          ├── asks Policies; decisions go to the journal and to viewers
//!                          ├── counts in Metrics, from which Snapshots are taken
//!                          └── Nodes: where instances are started, checkpointed and ended
//! ```
//! Invariants:
//! - Every call gets one activation, which is in the store before its caller gets it.
//! - An instance serves one call at a time, of one version of one action, for one namespace.
//! - A call that was sent to an instance is not retried; a call that was not sent is.
//! - An instance whose call failed ends with the call.

mod accepted;
mod advisor;
mod call_error;
mod code;
mod counter;
pub mod decisions;
mod exchange;
mod fleet;
mod function;
mod image;
mod image_usage;
mod instance;
mod launch;
mod logs;
mod metrics;
pub mod near_share;
pub mod nodes;
mod outcome;
mod platform;
pub mod prepare;
mod pressure;
mod protocol;
mod running;
mod shared;
pub mod snapshot;
mod turns;

use std::fmt::Debug;

use tokio::sync::oneshot;

use crate::api::{Action, Activation, ActivationId, ApiError, Arguments, Name};
use crate::trace::Trace;
use counter::{CountGuard, KeyedCounter};
use decisions::Subscription;
use snapshot::Snapshot;

pub use advisor::{Advisor, JournalFile};
pub use platform::{GRACE, Platform};

/// Most concurrent calls of a namespace, waiting or running.
pub const MOST_CALLS: usize = 1000;

/// Numbers of concurrent calls, waiting or running, by namespace.
pub type CallCounts = KeyedCounter<Name>;
/// A call's slot among those of its namespace.
pub type CallSlot = CountGuard<Name>;

/// A call to make.
#[derive(Clone, Debug)]
pub struct Call {
    /// The activation that it becomes.
    pub id: ActivationId,
    /// The action.
    pub action: Action,
    /// The arguments.
    pub args: Arguments,
    /// When it was received, in milliseconds since 1970.
    pub asked_ms: u64,
    /// Its span in a trace.
    pub trace: Trace,
}

/// Makes calls.
pub trait Caller: Debug + Send + Sync {
    /// Takes a slot for a call of this namespace, or refuses if it has too many.
    fn admit(&self, namespace: &Name) -> Result<CallSlot, ApiError>;
    /// Makes a call, which holds its slot until it has ended. The activation is in the store before
    /// it is sent here.
    fn call(&self, call: Call, slot: CallSlot) -> oneshot::Receiver<Activation>;
    /// Retires this version of an action, which was deleted or replaced. Calls received before are
    /// made.
    fn gone(&self, action: &Action);
    /// All metrics in the text format of OpenMetrics 1.0.
    fn metrics(&self) -> String;
}

/// What viewers observe.
pub trait Observable: Debug + Send + Sync {
    /// Takes a snapshot. It may block.
    fn snapshot(&self) -> Snapshot;
    /// The last decisions, and upcoming ones.
    fn subscribe(&self) -> Subscription;
}
