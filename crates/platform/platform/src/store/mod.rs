//! What survives a restart.
//!
//! One contract, [`Store`], and one mechanism so far: [`Embedded`], a database in a file. A
//! cluster's store can take its place, so nothing in the contract depends on where data lies.
//!
//! **What is durable when.** Keys, actions and accepted calls are on disk when a method returns: a
//! client whose non-blocking call was answered by `202` finds its activation after any crash. (A
//! blocking call that takes longer than the gateway waits is answered by `202` as well, but is not
//! stored as accepted.) The activation of a call is visible at once, and on disk within [`FLUSH`].
//! A crash of the machine in between loses activations of blocking calls whose callers have their
//! responses, and a non-blocking call is made again.
//!
//! **When the disk is full** reads go on, and what must be on disk when a method returns fails until
//! there is room again. Activations wait in memory, where they are found by their ids.

mod embedded;
mod retention;

use std::fmt::Debug;
use std::time::Duration;

use farfork_policy::settings::Disk;
use serde::{Deserialize, Serialize};

use crate::api::{
    Action, Activation, ActivationId, ActivationSummary, Arguments, Change, Code, Name, Version,
};
use crate::trace::Trace;
pub use embedded::Embedded;
pub use retention::forget_old;

/// An activation is on disk within this time.
pub const FLUSH: Duration = Duration::from_millis(100);

/// An operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The action was changed, made or deleted since it was read.
    #[error("the action has changed since it was read")]
    Conflict,
    /// The action would take more of the disk than its namespace may.
    #[error("the actions of the namespace would take {bytes} of {most} bytes")]
    TooMuchCode {
        /// What the actions of the namespace would take.
        bytes: u64,
        /// What they may.
        most: u64,
    },
    /// The database cannot be used.
    #[error("cannot {doing} (database {path}): {reason}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// Its path.
        path: String,
        /// Why not.
        reason: String,
    },
    /// A record is invalid.
    #[error("cannot read a record in table '{table}' of the database: {reason}")]
    Record {
        /// Its table.
        table: &'static str,
        /// Why not.
        reason: String,
    },
}

/// A key by which a client authenticates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The public part.
    pub user: String,
    /// SHA-256 of the secret part.
    pub secret_sha256: [u8; 32],
    /// Its namespace.
    pub namespace: Name,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// A non-blocking call that was accepted and has to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptedCall {
    /// The activation that it becomes.
    pub id: ActivationId,
    /// The action's namespace.
    pub namespace: Name,
    /// The action's name.
    pub name: Name,
    /// The action's version when the call was accepted.
    pub version: Version,
    /// The arguments.
    pub args: Arguments,
    /// When it was accepted, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// Its span in a trace.
    #[serde(default)]
    pub trace: Trace,
}

/// An accepted call without its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedEntry {
    /// The activation that it becomes.
    pub id: ActivationId,
    /// The action's namespace.
    pub namespace: Name,
    /// When it was accepted, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// Bytes of its record.
    pub bytes: u64,
}

/// What a namespace takes of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of its actions with their code.
    pub code_bytes: u64,
    /// Bytes of its activations with their logs.
    pub record_bytes: u64,
}

/// Which activations to list; the latest come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Of this action only.
    pub name: Option<Name>,
    /// Begun at this time or later, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Begun at this time or before.
    pub upto_ms: Option<u64>,
    /// How many to skip.
    pub skip: usize,
    /// How many to return at most.
    pub limit: usize,
}

/// What survives a restart.
pub trait Store: Debug + Send + Sync {
    /// Whether methods may block. Those of a store that does not are called on the threads of
    /// asynchronous tasks, so that a simulation is the same each time.
    fn blocks(&self) -> bool {
        true
    }

    /// The number of a namespace, counted from 0. It is assigned at the first request, kept for
    /// ever, and never given to another namespace.
    fn number(&self, namespace: &Name) -> Result<u32, StoreError>;

    /// All namespaces that have a number.
    fn namespaces(&self) -> Result<Vec<Name>, StoreError>;

    /// Adds a key.
    fn put_key(&self, key: &Key) -> Result<(), StoreError>;
    /// The key with this public part.
    fn key(&self, user: &str) -> Result<Option<Key>, StoreError>;
    /// All keys, or those of one namespace.
    fn keys(&self, namespace: Option<&Name>) -> Result<Vec<Key>, StoreError>;
    /// Removes the keys of a namespace; returns how many.
    fn revoke(&self, namespace: &Name) -> Result<usize, StoreError>;

    /// An action, if it exists.
    fn action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError>;
    /// The actions of a namespace in the order of their names, from `skip` on, at most `limit`.
    fn actions(
        &self,
        namespace: &Name,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError>;
    /// The code of an action.
    fn code(&self, namespace: &Name, name: &Name) -> Result<Option<Code>, StoreError>;
    /// Replaces the version `before` of an action, or adds a new action, if the namespace may have
    /// as much code.
    fn put_action(&self, change: &Change, before: Option<Version>) -> Result<(), StoreError>;
    /// Removes an action; returns it.
    fn delete_action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError>;

    /// Stores a call, which then is made even after a crash.
    fn accept(&self, call: &AcceptedCall) -> Result<(), StoreError>;
    /// The calls that have not been made yet, the oldest first. Their arguments may have gigabytes, so
    /// they are read one by one.
    fn accepted(&self) -> Result<Vec<AcceptedEntry>, StoreError>;
    /// An accepted call, if it has not been made meanwhile.
    fn accepted_call(&self, entry: &AcceptedEntry) -> Result<Option<AcceptedCall>, StoreError>;
    /// Stores the activation of a call, which is not made again. It is readable at once, and on
    /// disk after the next [`flush`](Store::flush), which does the slow work. The oldest of the
    /// namespace go if it has more of them than it may.
    fn finish(&self, activation: Activation) -> Result<(), StoreError>;
    /// An activation of a namespace.
    fn activation(
        &self,
        namespace: &Name,
        id: ActivationId,
    ) -> Result<Option<Activation>, StoreError>;
    /// Summaries of a namespace's activations.
    fn activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<Vec<ActivationSummary>, StoreError>;
    /// The number of selected activations of a namespace.
    fn count_activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<usize, StoreError>;
    /// Deletes activations that began before this time, in milliseconds since 1970. Returns how
    /// many:
    /// perhaps not all, but at least one if any is that old.
    fn forget(&self, before_ms: u64) -> Result<usize, StoreError>;
    /// Writes everything to disk.
    fn flush(&self) -> Result<(), StoreError>;

    /// What namespaces take of the disk, if the store counts it.
    fn disk_usage(&self) -> Result<Vec<(Name, DiskUsage)>, StoreError> {
        Ok(Vec::new())
    }
    /// What each may take.
    fn disk_limits(&self) -> Disk {
        Disk::default()
    }
}
