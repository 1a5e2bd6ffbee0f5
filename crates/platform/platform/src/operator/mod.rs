//! Keys of namespaces, which only the operator manages.
//!
//! ```text
//!  farfork keys ── DIR/operator.sock ──► the platform, if one serves this state ──► Store
//!              └── DIR/store.redb ───────────────────────────── else ──────────────────┘
//! ```
//! The socket is accessible to its owner alone, so a process that can open it is the operator's.
//! Only one process can open the database, which is why a running platform is asked.

mod keys;
mod socket;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::api::Name;
use crate::store::StoreError;
pub use keys::ensure_guest_key;
pub use socket::{Listener, ask};

/// A request about keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRequest {
    /// Make a key.
    Create(Name),
    /// List the keys of a namespace, or all.
    List(Option<Name>),
    /// Revoke all keys of a namespace. Its actions and instances stay.
    Revoke(Name),
}

/// The reply to a [`KeyRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyReply {
    /// The new key. Its secret is not stored, and never shown again.
    Made {
        /// The public part.
        user: String,
        /// The secret part.
        secret: String,
    },
    /// Keys, without their secrets.
    Keys(Vec<KeyInfo>),
    /// How many keys were revoked.
    Revoked(usize),
}

/// A key in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInfo {
    /// The public part.
    pub user: String,
    /// Its namespace.
    pub namespace: Name,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// A request about keys failed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The directory has no platform's state.
    #[error("{} is not a platform's state directory; name the one of farfork serve by --state DIR", .0.display())]
    NoState(PathBuf),
    /// A file or socket fails.
    #[error("cannot {doing} {}: {}", .place.display(), farfork_sys::words::of(.source))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        place: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The kernel returned no random numbers.
    #[error("cannot make a key: the kernel returned no random numbers")]
    Random,
    /// The name has a meaning of its own.
    #[error("cannot create a key for namespace {0}: the name is reserved; use another name")]
    Reserved(Name),
    /// The platform is starting or ending, or is of another version.
    #[error("the platform at {} does not answer; try again when it has started or ended", .0.display())]
    NoAnswer(PathBuf),
    /// The platform failed to do it.
    #[error("{0}")]
    Failed(String),
}
