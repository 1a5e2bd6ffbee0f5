//! What a keeper is asked over the fabric, besides what is asked of every source of far images: one JSON
//! document each way. The connection has proved that it has the handle's key.

use serde::{Deserialize, Serialize};

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// End the seed, after its clones have fetched what they need, or this time.
    Reclaim {
        /// How long to wait for them, in milliseconds.
        wait_ms: u64,
    },
    /// Let the seed live so many milliseconds from now, or longer: a seed that descends from it does.
    Outlive {
        /// How long that one lives.
        expires_ms: u64,
    },
    /// Let the seed expire so many milliseconds from now.
    Renew {
        /// How long it lives from now on.
        expires_ms: u64,
    },
}

/// The answer to [`Request::Renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// When it expires, in seconds since 1970.
    pub expires_unix_s: u64,
}

/// The answer to [`Request::Reclaim`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Nodes that could still have fetched pages when the wait ended.
    pub cut_off: usize,
    /// Clones on them, as they said last.
    #[serde(default)]
    pub cut_off_clones: u32,
}
