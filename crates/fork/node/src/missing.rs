//! Pages that could not be read when a clone touched them: the kernel ends the clone with SIGBUS, and the far
//! process has recorded why.

use std::path::Path;

use farfork_far::failures::{self, Failure};
use farfork_types::Cid;
use farfork_types::wire::{MissingPage, RestoreCall};

use crate::error::NodeError;

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
    let failure = is_bus_error.then(|| failures::of_clone(pool, cid, &[pid], since_unix_us));
    failure.flatten().map(|Failure { page, source, cause, .. }| MissingPage { page, source, cause })
}

/// The same as a sentence.
pub fn in_words(missing: &MissingPage) -> String {
    let MissingPage { page, source, cause } = missing;
    format!("a page of its image could not be read (page {page} at {source}): {cause}")
}

/// The error of a start, with the page that could not be read, if that was the reason.
pub fn explained(error: NodeError, call: &RestoreCall, since_unix_us: u64) -> NodeError {
    let Ok(cid) = call.cid.parse::<Cid>() else { return error };
    match failures::of_clone(&call.pool, cid, &[], since_unix_us) {
        Some(Failure { page, source, cause, .. }) => {
            let missing = in_words(&MissingPage { page, source, cause });
            NodeError::Agent(format!("cannot start a clone of {}: {missing}", call.name))
        }
        None => error,
    }
}
