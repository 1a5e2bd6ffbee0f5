//! Regions for objects that instances of functions get.
//!
//! ```text
//!  users/NAMESPACE/regions/NAME ─ opened, made the namespace's user's ─► agent ─► descriptor 3 of the clone
//!                                                                           opened once more by each client
//! ```
//! A namespace reaches its own regions alone: the path leads through directories of the operator's, the file belongs
//! to the namespace's user id, and only instances of its functions get the descriptor.

use std::os::fd::OwnedFd;

use farfork_pool::Pool;

use crate::scheduler::nodes::{NodesError, RegionGrant};

/// The file of a region, and its bytes.
pub fn open(pool: &Pool, grant: &RegionGrant) -> Result<(OwnedFd, u64), NodesError> {
    let RegionGrant { namespace, name, user } = grant;
    let failed = |reason: String| NodesError::Region { name: name.clone(), reason };
    let opened = pool.grant_region(namespace, name, *user);
    let file = opened.map_err(|error| failed(error.to_string()))?.ok_or_else(|| {
        // Tenants read this: it names no path of the operator's.
        failed(format!(
            "it does not exist; the operator makes it by `farfork region create {namespace}/{name}`"
        ))
    })?;
    let bytes = file.metadata().map_err(|error| failed(farfork_sys::words::of(&error)))?.len();
    Ok((file.into(), bytes))
}
