//! What instances may take of a node's memory, and what they take.

use farfork_types::{Cid, Tiering};

use crate::images::ImageId;

/// What an instance may take of a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its limit, in megabytes.
    pub memory_mb: u64,
    /// What earlier instances like it were seen to take, in bytes. Without it, the limit is
    /// expected.
    pub expected_bytes: Option<u64>,
}

impl Claim {
    /// The limit, in bytes.
    pub fn most_bytes(self) -> u64 {
        self.memory_mb << 20
    }

    /// What it is expected to take at its start, in bytes.
    pub fn first_bytes(self) -> u64 {
        let most = self.most_bytes();
        self.expected_bytes.map_or(most, |expected| expected.min(most))
    }
}

/// Memory of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Local memory, including page tables, in bytes.
    pub local_bytes: u64,
    /// Touched pages that it maps from the pool, in bytes.
    pub pool_bytes: u64,
}

/// An image to attach to ghosts, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// The image.
    pub image: ImageId,
    /// Its CID.
    pub cid: Cid,
    /// The tiering policy.
    pub tiering: Tiering,
    /// Memory limit of an instance, in megabytes.
    pub memory_mb: u64,
}
