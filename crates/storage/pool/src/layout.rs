//! Names and limits of what lies in a pool.

use farfork_types::{CHUNK_BYTES, Cid};

/// Directory of the images: one file each, named by its id.
pub(crate) const IMAGES: &str = "images";
/// Directory of the names.
pub(crate) const NAMES: &str = "names";
/// Directory of the side tables.
pub(crate) const TABLES: &str = "tables";
/// Directory of the users.
pub(crate) const USERS: &str = "users";
/// Directory of the nodes.
pub(crate) const NODES: &str = "nodes";
/// Where files are written that appear at their place by a rename.
pub(crate) const NEW: &str = "new";
/// Directory of images that are removed and that another kernel may still map.
pub(crate) const REMOVED: &str = "removed";
/// Everything in a pool but the superblock.
pub(crate) const DIRECTORIES: [&str; 7] = [IMAGES, NAMES, TABLES, USERS, NODES, NEW, REMOVED];

/// Bytes of the smallest pool.
pub(crate) const SMALLEST_BYTES: u64 = 4 * CHUNK_BYTES;
/// Bytes of a node's name.
pub const MAX_NODE_NAME_BYTES: usize = 88;

/// Names an operator who uses a pool that belongs to another user, which root does not do otherwise: the
/// number of that user.
pub const TRUSTED_OWNER: &str = "FARFORK_POOL_OWNER";

/// The file of an image.
pub(crate) fn image(cid: Cid) -> String {
    format!("{IMAGES}/{cid}")
}

/// The directory of the side tables of an image.
pub(crate) fn tables(cid: Cid) -> String {
    format!("{TABLES}/{cid}")
}
