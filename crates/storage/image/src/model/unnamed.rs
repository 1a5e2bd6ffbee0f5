//! Files without a name: deleted ones that are still open, and those that never had one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A regular file whose content the image carries. Each clone has one of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnnamedFile {
    /// Directory in whose file system clones make theirs.
    pub directory: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Times of last access and modification: s, ns, s, ns.
    pub times: [i64; 4],
    /// Size in bytes.
    pub size: u64,
    /// Offsets and bytes, ascending; what lies between them is holes.
    pub extents: Vec<(u64, Vec<u8>)>,
    /// Extended attributes of users: name, value.
    pub attributes: Vec<(String, Vec<u8>)>,
}
