//! Pages that could not be read when a clone touched them: the kernel ends the clone with SIGBUS, and the far
//! process has recorded why.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use farfork_far::failures::{self, Failure};
use farfork_far::place::Place;
use farfork_pool::PoolError;
use farfork_types::Cid;
use farfork_types::wire::{MissingPage, RestoreCall};

use crate::error::NodeError;
use crate::far_parts::far_pools;

/// Microseconds since 1970, as records of failures have them.
pub fn now_unix_us() -> u64 {
    failures::now_unix_us()
}

/// The page whose absence ended a clone of the image `cid` that had this pid and was started at `since`.
pub fn page_of(
    pool: &Path,
    cid: Cid,
    pid: i32,
    since_unix_us: u64,
    wait_status: i32,
) -> Option<MissingPage> {
    let is_bus_error = wait_status & 0x7f == libc::SIGBUS;
    let failure = is_bus_error.then(|| failure_of(pool, cid, &[pid], since_unix_us));
    failure.flatten().map(|Failure { page, source, cause, .. }| MissingPage { page, source, cause })
}

/// The read whose failure ended a clone: of its pool, or of the node that has parts of its image.
fn failure_of(pool: &Path, cid: Cid, pids: &[i32], since_unix_us: u64) -> Option<Failure> {
    let pools = std::iter::once(pool.to_owned()).chain(far_pools());
    pools.filter_map(|pool| failures::of_clone(&pool, cid, pids, since_unix_us)).next()
}

/// The same as a sentence.
pub fn in_words(missing: &MissingPage) -> String {
    let MissingPage { page, source, cause } = missing;
    format!("a page of its image could not be read (page {page} at {source}): {cause}")
}

/// The error of a start, with the page that could not be read, or the mount that is not here, if that was the
/// reason.
pub fn explained(error: NodeError, call: &RestoreCall, since_unix_us: u64) -> NodeError {
    if matches!(error, NodeError::Pool(PoolError::NoImage { .. }))
        && is_mounted_elsewhere(&call.pool)
    {
        return NodeError::Agent(format!(
            "cannot start a clone of {}: far memory is mounted at {}/images in another mount namespace than \
             the agent's; start both from one (\"ip netns exec\" makes a new one, \"nsenter --net\" does not)",
            call.name,
            call.pool.display()
        ));
    }
    let Ok(cid) = call.cid.parse::<Cid>() else { return error };
    match failure_of(&call.pool, cid, &[], since_unix_us) {
        Some(Failure { page, source, cause, .. }) => {
            let missing = in_words(&MissingPage { page, source, cause });
            NodeError::Agent(format!("cannot start a clone of {}: {missing}", call.name))
        }
        None => error,
    }
}

/// Whether a pool is that of a far process whose mount is not seen here.
fn is_mounted_elsewhere(pool: &Path) -> bool {
    let Some(place) = pool.parent().map(Place::at) else { return false };
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    let is_plain = device(&place.images()).ok() == device(pool).ok();
    is_plain && place.socket().exists()
}
