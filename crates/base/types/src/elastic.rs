//! What became of a running clone's share of near memory.

use serde::{Deserialize, Serialize};

use crate::LocalShare;

/// The answer to a call for a share. A clone's memory is what it has of its own, near or far, and what it maps
/// privately from its image in the pool, touched or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareSet {
    /// The share that was asked for.
    pub local_permille: LocalShare,
    /// All memory of the clone, in bytes.
    pub total_bytes: u64,
    /// That share of it.
    pub wanted_bytes: u64,
    /// Its own memory on nodes with processors.
    pub near_bytes: u64,
    /// Its own memory on nodes without processors.
    pub far_bytes: u64,
    /// What it maps from the pool, where all clones share it.
    pub pool_bytes: u64,
    /// What was copied from the pool by this call.
    pub copied_bytes: u64,
    /// What was moved between memory nodes by this call, both ways.
    pub moved_bytes: u64,
    /// Whether near memory is what was asked for, within one percent of all.
    pub met: bool,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
