//! What survives a restart.
//!
//! One contract, [`Store`]; one mechanism so far, [`Embedded`], a database in a file. A store of
//! a backend takes its place later, so nothing here tells where data lies.
//!
//! **What is durable when.** Keys, actions and accepted calls are on disk when a method returns: a
//! client whose non-blocking call was answered by `202` finds its activation, whatever dies. (A blocking call
//! that takes longer than anybody waits is answered by `202` as well, and is no accepted one.) What came of a
//! call is seen by everybody at once, and on disk within [`FLUSH`]: a crash of the machine in between loses
//! records of blocking calls whose callers have their answers, and has a non-blocking call made again.

mod embedded;
mod retention;

use std::fmt::Debug;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::{
    Action, Activation, ActivationId, ActivationSummary, Change, Code, Name, Version,
};
use crate::trace::Trace;
pub use embedded::Embedded;
pub use retention::forget_old;

/// What came of a call is on disk within this time.
pub const FLUSH: Duration = Duration::from_millis(100);

/// Why the store does not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The action has changed since it was read, or is there already, or is gone.
    #[error("the action has changed meanwhile")]
    Conflict,
    /// The database cannot be used.
    #[error("cannot {doing} in the database {path}: {reason}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// Where it lies.
        path: String,
        /// Why not.
        reason: String,
    },
    /// What stands in the database cannot be understood.
    #[error("a record in the table '{table}' of the database cannot be read: {reason}")]
    Record {
        /// Where.
        table: &'static str,
        /// Why not.
        reason: String,
    },
}

/// A key by which a client shows who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The part that is shown in lists.
    pub user: String,
    /// SHA-256 of the secret part.
    pub secret_sha256: [u8; 32],
    /// Whose it is.
    pub namespace: Name,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// A non-blocking call that was accepted, and is to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptedCall {
    /// The activation that it becomes.
    pub id: ActivationId,
    /// Whose action.
    pub namespace: Name,
    /// Which.
    pub name: Name,
    /// Its version when the call was accepted, by which it is made.
    pub version: Version,
    /// What it is called with.
    pub args: Map<String, Value>,
    /// When it was accepted, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// Which span of which trace it is.
    #[serde(default)]
    pub trace: Trace,
}

/// Which activations are asked for; the latest come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Of this action only.
    pub name: Option<Name>,
    /// Begun at this time or later, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Begun at this time or before.
    pub upto_ms: Option<u64>,
    /// So many are left out.
    pub skip: usize,
    /// No more than these are told.
    pub limit: usize,
}

/// What survives a restart.
pub trait Store: Debug + Send + Sync {
    /// The number of a namespace, counted from 0: it is given one when somebody asks first, and
    /// keeps it; no other namespace ever has it.
    fn number(&self, namespace: &Name) -> Result<u32, StoreError>;

    /// All namespaces that have a number.
    fn namespaces(&self) -> Result<Vec<Name>, StoreError>;

    /// Adds a key.
    fn put_key(&self, key: &Key) -> Result<(), StoreError>;
    /// The key with this public part.
    fn key(&self, user: &str) -> Result<Option<Key>, StoreError>;
    /// All keys, or those of one namespace.
    fn keys(&self, namespace: Option<&Name>) -> Result<Vec<Key>, StoreError>;
    /// Removes the keys of a namespace; how many there were.
    fn revoke(&self, namespace: &Name) -> Result<usize, StoreError>;

    /// An action.
    fn action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError>;
    /// The actions of a namespace in the order of their names: how many are left out, and told.
    fn actions(
        &self,
        namespace: &Name,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError>;
    /// The code of an action.
    fn code(&self, namespace: &Name, name: &Name) -> Result<Option<Code>, StoreError>;
    /// Puts an action in the place of the version `before`, or of none.
    fn put_action(&self, change: &Change, before: Option<Version>) -> Result<(), StoreError>;
    /// Removes an action, and tells which it was.
    fn delete_action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError>;

    /// Takes a call to be made, whatever happens.
    fn accept(&self, call: &AcceptedCall) -> Result<(), StoreError>;
    /// The calls that are to be made yet, the oldest first.
    fn accepted(&self) -> Result<Vec<AcceptedCall>, StoreError>;
    /// Keeps what came of a call, which is not to be made any more. It can be read at once, and is on
    /// disk after the next [`flush`](Store::flush), which does what takes time.
    fn finish(&self, activation: Activation) -> Result<(), StoreError>;
    /// An activation of a namespace.
    fn activation(
        &self,
        namespace: &Name,
        id: ActivationId,
    ) -> Result<Option<Activation>, StoreError>;
    /// Activations of a namespace, without what is large of them.
    fn activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<Vec<ActivationSummary>, StoreError>;
    /// How many activations of a namespace are selected.
    fn count_activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<usize, StoreError>;
    /// Forgets activations that began before this time, in milliseconds since 1970: how many, which may be
    /// fewer than there are, but not none.
    fn forget(&self, before_ms: u64) -> Result<usize, StoreError>;
    /// Writes to disk what is not there yet.
    fn flush(&self) -> Result<(), StoreError>;
}
