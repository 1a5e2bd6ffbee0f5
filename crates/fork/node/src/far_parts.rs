//! Images of which parts lie on another node.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use farfork_far::open_far_side;
use farfork_far::orders::FOR_CLONES;
use farfork_far::place::Place;
use farfork_image::catalog::discard;
use farfork_image::holds;
use farfork_image::tier::FarNode;
use farfork_pool::{FarParts, ImageFile, Pool, PoolError};
use farfork_sys::words;
use farfork_types::Cid;

use crate::error::NodeError;
use crate::paths;

/// The image with the file of its far parts, which this machine mounts if it has not yet; none if it has no
/// far parts.
///
/// # Errors
/// [`NodeError::FarParts`].
pub fn with_far_side(file: &ImageFile) -> Result<Option<ImageFile>, NodeError> {
    let Some(far) = file.far() else { return Ok(None) };
    let failed =
        |reason: String| NodeError::FarParts { cid: file.id.cid, node: far.source.clone(), reason };
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let side = open_far_side(&paths::run_directory(), &program, &node_of(far), file.id.cid);
    let side = side.map_err(|error| failed(error.to_string()))?;
    file.with_far_file(side).map(Some).map_err(|error| failed(error.to_string()))
}

/// The same for clones: the order of what is read of that file is noted.
///
/// # Errors
/// [`NodeError::FarParts`].
pub(crate) fn for_clones(file: &ImageFile) -> Result<Option<ImageFile>, NodeError> {
    let Some(whole) = with_far_side(file)? else { return Ok(None) };
    let (Some(far), Some(side)) = (whole.far(), whole.far_file()) else { return Ok(Some(whole)) };
    let failed =
        |reason: String| NodeError::FarParts { cid: file.id.cid, node: far.source.clone(), reason };
    let path = format!("/proc/self/fd/{}", side.as_raw_fd());
    let side = File::options().read(true).custom_flags(FOR_CLONES).open(path);
    let side = side.map_err(|error| failed(words::of(&error)))?;
    file.with_far_file(side).map(Some).map_err(|error| failed(error.to_string()))
}

/// The node that far parts lie on.
pub fn node_of(far: &FarParts) -> FarNode {
    let FarParts { source, key, tls, deadline_ms, .. } = far.clone();
    FarNode { address: source, key, tls, deadline_ms }
}

/// What became of an image that was to be removed.
pub enum Removal {
    /// It has a name, and stays.
    Named,
    /// It is gone.
    Removed,
    /// It is gone here. The node that had parts of it did not let go of it, and keeps it.
    KeptAt(FarNode, String),
}

/// Removes an image if it has no name any more. The node that has parts of it need not keep them.
///
/// # Errors
/// [`PoolError`].
pub fn remove_unnamed(pool: &Pool, cid: Cid) -> Result<Removal, PoolError> {
    let far = pool.find(cid).ok().and_then(|file| file.far().map(node_of));
    if !discard(pool, cid)? {
        return Ok(Removal::Named);
    }
    let Some(node) = far else { return Ok(Removal::Removed) };
    Ok(match farfork_far::release(&node, cid, &holds::holder(pool)) {
        Ok(()) => Removal::Removed,
        Err(why) => Removal::KeptAt(node, why.to_string()),
    })
}

/// The pools of the far processes of this machine, where reads that failed are recorded.
pub fn far_pools() -> impl Iterator<Item = PathBuf> {
    Place::all(&paths::run_directory()).into_iter().map(|place| place.pool())
}
