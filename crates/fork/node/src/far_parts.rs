//! Images of which parts lie on another node.

use std::path::PathBuf;

use farfork_far::open_far_side;
use farfork_far::place::Place;
use farfork_image::tier::FarNode;
use farfork_pool::{FarParts, ImageFile};

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

/// The node that far parts lie on.
pub fn node_of(far: &FarParts) -> FarNode {
    let FarParts { source, key, deadline_ms, .. } = far.clone();
    FarNode { address: source, key, deadline_ms }
}

/// The pools of the far processes of this machine, where reads that failed are recorded.
pub fn far_pools() -> impl Iterator<Item = PathBuf> {
    Place::all(&paths::run_directory()).into_iter().map(|place| place.pool())
}
