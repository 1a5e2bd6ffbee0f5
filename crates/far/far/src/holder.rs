//! The holder of far memory: makes the far pool, and keeps a far process running.

use std::ffi::OsString;
use std::fs;
use std::os::fd::RawFd;
use std::time::Duration;

use farfork_pool::Pool;
use farfork_sys::inherited::keep_on_exec;
use farfork_types::CHUNK_BYTES;
use rustix::mount::{UnmountFlags, unmount};

use crate::error::FarError;
use crate::holder_lock::HolderLock;
use crate::place::Place;

/// Size of the far pool's own directory, in which only what is learnt about images lies.
const POOL_BYTES: u64 = 64 * CHUNK_BYTES;

/// How long a holder may take to end whose far process has unmounted.
const LAST_ENDS: Duration = Duration::from_secs(5);

/// What is mounted, for messages.
const WHAT: &str = "far memory";

/// Mounts on `place`, and keeps a far process running until it unmounts. `command` is a program with the
/// arguments of a far process; it gets the device as standard input, and `--take-over` if it is not the first.
///
/// # Errors
/// Another holder lives there, the pool cannot be made, the file system not mounted, or no far process be started.
pub fn hold(place: &Place, command: &[OsString]) -> Result<(), FarError> {
    let failed = || FarError::io("take the lock of the mount in", place.directory());
    let lock = HolderLock::take(place, LAST_ENDS).map_err(failed())?;
    let command = with_lock(command, lock.bequeath().map_err(failed())?);
    let mounted = place.images();
    // What an earlier mount has left does not answer any more.
    while unmount(&mounted, UnmountFlags::DETACH).is_ok() {}
    let _ = fs::remove_file(place.known());
    if Pool::open(&place.pool()).is_err() {
        Pool::create(&place.pool(), POOL_BYTES)?;
    }
    Ok(farfork_mount::hold(&mounted, WHAT, &command, &mut |child| child.wait())?)
}

/// The option that names the descriptor of the lock.
fn with_lock(command: &[OsString], lock: RawFd) -> Vec<OsString> {
    [command, &["--holder-lock".into(), lock.to_string().into()]].concat()
}

/// Goes on as the holder of `place`. The process was its far process; its standard input is the device, and `lock` the
/// descriptor of the mount's lock, which it has inherited.
///
/// # Errors
/// No far process can be started.
pub fn adopt(place: &Place, command: &[OsString], lock: Option<RawFd>) -> Result<(), FarError> {
    // Without the lock clones have their mount all the same.
    let lock = lock.filter(|lock| keep_on_exec(*lock).is_ok());
    let command = lock.map_or_else(|| command.to_vec(), |lock| with_lock(command, lock));
    Ok(farfork_mount::adopt(&place.images(), WHAT, &command, &mut |child| child.wait())?)
}
