//! What a keeper is asked over the fabric, besides reads: one JSON document each way.

use serde::{Deserialize, Serialize};

/// What a client asks. The connection has proved that it has the handle's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Where the image is: what a node asks for before it starts a clone.
    Find,
    /// End the seed, after its clones have fetched what they need, or this time.
    Reclaim {
        /// How long to wait for them, in milliseconds.
        wait_ms: u64,
    },
}

/// The answer to [`Request::Find`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Id of the image: that of the seed.
    pub cid: String,
    /// Length of its file.
    pub bytes: u64,
    /// Key of its region: [`farfork_fabric::RegionKey::to_bytes`].
    pub region: Vec<u8>,
    /// When the seed ends, in seconds since 1970.
    pub expires_unix_s: u64,
}

/// The answer to [`Request::Reclaim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Nodes that could still have fetched pages when the wait ended.
    pub cut_off: usize,
}
