//! The lock beside an agent's socket: there is one agent of each name.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::error::NodeError;
use crate::paths;

/// How often the lock is tried, 10 ms apart.
const TRIES: u32 = 20;

/// Takes the lock beside the socket, which an agent holds as long as it lives. [`crate::clear_pins`] may
/// hold it for a moment.
pub fn take(path: &Path) -> Result<fs::File, NodeError> {
    for _ in 0..TRIES {
        if let Some(lock) = try_take(path)? {
            return Ok(lock);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(NodeError::Agent(format!("a node agent already serves {}", path.display())))
}

/// The same, if no process holds it.
pub fn try_take(path: &Path) -> Result<Option<fs::File>, NodeError> {
    let create = || {
        paths::demand_own(path)?;
        paths::lock_file(&path.with_extension("lock"))
    };
    let lock = create().map_err(|source| NodeError::Socket {
        doing: "lock",
        path: path.to_owned(),
        source,
    })?;
    Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(lock))
}
