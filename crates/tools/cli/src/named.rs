//! Images by their names and ids, for all commands.

use std::error::Error;

use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::holds;
use farfork_image::tier::FarNode;
use farfork_node::{Removal, node_of};
use farfork_pool::{Pool, PoolError};
use farfork_types::Cid;

/// The image with this name or id.
pub(crate) fn resolve(pool: &Pool, image: &str) -> Result<Cid, Box<dyn Error>> {
    if let Ok(cid) = image.parse() {
        return Ok(cid);
    }
    let name: ImageName = image.parse()?;
    let known = Catalog::of(pool).get(&name)?;
    Ok(known.ok_or_else(|| format!("there is no image {name}; see \"farfork images list\""))?)
}

/// Removes an image if it has no name any more; returns whether it is gone. The node that has parts of it need
/// not keep them.
pub(crate) fn remove(pool: &Pool, cid: Cid) -> Result<bool, PoolError> {
    match farfork_node::remove_unnamed(pool, cid)? {
        Removal::Named => return Ok(false),
        Removal::Removed => {}
        Removal::KeptAt(node, why) => warn(&holds::holder(pool), cid, &node, &why),
    }
    Ok(true)
}

/// The images of a pool with far parts, and the nodes that keep these.
pub(crate) fn with_far_parts(pool: &Pool) -> Result<Vec<(Cid, FarNode)>, PoolError> {
    let node = |cid: Cid| Some((cid, pool.find(cid).ok()?.far().map(node_of)?));
    Ok(pool.images()?.into_iter().filter_map(node).collect())
}

/// Has another node let go of an image of which the pool `holder` needs nothing there any more. Where that fails, the
/// image stays there until its name is removed.
pub(crate) fn release(holder: &str, cid: Cid, node: &FarNode) {
    if let Err(why) = farfork_far::release(node, cid, holder) {
        warn(holder, cid, node, &why.to_string());
    }
}

fn warn(holder: &str, cid: Cid, node: &FarNode, why: &str) {
    eprintln!(
        "farfork: {} keeps image {cid} for this pool: {why}; run \"farfork images rm {}/{cid}:{holder}\" there",
        node.address,
        holds::USER
    );
}
