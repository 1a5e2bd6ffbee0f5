//! Calls and instances of functions.
//!
//! ```text
//!  Platform ── call ──► Function, one task for each version of an action that is called
//!                          │  queue ─► instances: start (cold, clone) ─► /init, /run ─► idle ─► gone
//!                          │                           └─ after some calls: /prepare, checkpoint
//!                          ├── asks Policies, each decision goes to the journal and to who looks
//!                          ├── counts in Metrics, of which a Snapshot is made when somebody looks
//!                          └── Nodes: where instances are started, checkpointed and ended
//! ```
//! Invariants:
//! - Every call gets one activation, which is in the store before anybody is told of it.
//! - An instance serves one call at a time, of one version of one action, for one namespace.
//! - A call that was sent to an instance is not made again when that ends; one that was not is.
//! - An instance whose call did not end well ends with it.

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
pub mod nodes;
mod platform;
pub mod prepare;
mod pressure;
mod protocol;
mod running;
pub mod snapshot;

use std::fmt::Debug;

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::api::{Action, Activation, ActivationId, ApiError, Name};
use crate::trace::Trace;
use counter::{CountGuard, KeyedCounter};
use decisions::Subscription;
use snapshot::Snapshot;

pub use advisor::{Advisor, JournalFile};
pub use platform::{GRACE, Platform};

/// Most calls of a namespace that wait or are being made.
pub const MOST_CALLS: usize = 1000;

/// How many calls of a namespace wait or are being made.
pub type CallCounts = KeyedCounter<Name>;
/// A call's place among those of its namespace.
pub type CallSlot = CountGuard<Name>;

/// A call to be made.
#[derive(Clone, Debug)]
pub struct Call {
    /// The activation that it becomes.
    pub id: ActivationId,
    /// Of what.
    pub action: Action,
    /// With what.
    pub args: Map<String, Value>,
    /// When it came, in milliseconds since 1970.
    pub asked_ms: u64,
    /// Which span of which trace it is.
    pub trace: Trace,
}

/// Whoever makes calls.
pub trait Caller: Debug + Send + Sync {
    /// Takes a place for a call of this namespace, or refuses one that would be too many.
    fn admit(&self, namespace: &Name) -> Result<CallSlot, ApiError>;
    /// Makes a call, which has its place until then. What comes of it is in the store before it is told
    /// here.
    fn call(&self, call: Call, place: CallSlot) -> oneshot::Receiver<Activation>;
    /// This version of an action is no more, as the action is gone or another now. Calls of it that
    /// are there already are made.
    fn gone(&self, action: &Action);
    /// Figures of all this, in the text format of OpenMetrics 1.0.
    fn metrics(&self) -> String;
}

/// Whoever can be looked at.
pub trait Observable: Debug + Send + Sync {
    /// What there is, and what has been. It may take a while.
    fn snapshot(&self) -> Snapshot;
    /// The last decisions, and those to come.
    fn subscribe(&self) -> Subscription;
}
