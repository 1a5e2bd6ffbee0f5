//! What only the operator does: keys of namespaces.
//!
//! ```text
//!  farfork keys ── DIR/operator.sock ──► the platform, if one serves this state ──► Store
//!              └── DIR/store.redb ───────────────────────────── else ──────────────────┘
//! ```
//! Whoever may open the socket is the operator: it is its owner's alone. A database has one process that
//! opens it, which is why a platform that runs is asked.

mod keys;
mod socket;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::api::Name;
use crate::store::StoreError;
pub use keys::ensure_guest_key;
pub use socket::{Listener, ask};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRequest {
    /// A new key.
    Create(Name),
    /// The keys of a namespace, or all.
    List(Option<Name>),
    /// That no key of a namespace opens anything any more. Its actions stay, as do its instances.
    Revoke(Name),
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyReply {
    /// The new key. Its secret is kept nowhere, and not told again.
    Made {
        /// The public part.
        user: String,
        /// The secret part.
        secret: String,
    },
    /// Keys, without their secrets.
    Keys(Vec<KeyInfo>),
    /// So many keys are no more.
    Revoked(usize),
}

/// A key in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInfo {
    /// The public part.
    pub user: String,
    /// Whose it is.
    pub namespace: Name,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// It is not done.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No platform was ever there.
    #[error("{} holds no platform's state; farfork serve makes it (--state DIR)", .0.display())]
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
    /// The kernel gives no random numbers.
    #[error("cannot make a key: the kernel gives no random numbers")]
    Random,
    /// The platform ends, or is another version.
    #[error("the platform that listens at {} has not answered: try again when it has started or ended", .0.display())]
    NoAnswer(PathBuf),
    /// The platform cannot.
    #[error("{0}")]
    Failed(String),
}
