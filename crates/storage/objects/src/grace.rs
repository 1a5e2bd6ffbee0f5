//! A process that recovers dead clients and completes their guarded operations, and ends what runs too long.
//!
//! ```text
//!  each round, for each client
//!    in an operation, dead         a child of this process completes it
//!    in an operation beyond its    SIGKILL for the process that runs it: the client itself, or the one that
//!    grace period                  completes it. The next round sees a dead client
//!    else, dead                    recovered
//! ```
//! The code of an operation runs in a child, so that it cannot end this process, however it ends. An operation that was
//! begun four times is abandoned. This process, too, may be killed at any moment.
#![allow(unsafe_code)] // reason: forks

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::ObjectsError;
use crate::intents;
use crate::layout::ClientId;
use crate::liveness::Liveness;
use crate::recovery::recover_if_dead;
use crate::region::{Platform, Region};

/// Recovers the clients of a region that die, and completes their guarded operations, until `stop` is true (which it
/// notices within a tenth of a second). `register` registers the operations. Returns how many clients it found dead.
///
/// A process is ended for an overdue operation only if it is in this process's PID namespace and this process may see its
/// descriptors.
///
/// # Panics
/// If this process has several threads: it forks.
///
/// # Errors
/// Those of [`Region::open`] and of `register`.
pub fn guard<P: Platform + 'static>(
    path: &Path,
    register: &dyn Fn(&Region<P>) -> Result<(), ObjectsError>,
    stop: &AtomicBool,
) -> Result<u64, ObjectsError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, |threads| threads.count());
    assert_eq!(threads, 1, "a process with several threads cannot complete operations");
    register(&Region::open(path)?)?;
    // Without their code: this process runs none.
    let region: Region<P> = Region::open(path)?;
    let mut children = HashMap::new();
    region.watch_with(stop, |region, id| {
        children.retain(|_, child| is_running(*child));
        let Some(intent) = intents::pending(region, id) else { return recover_if_dead(region, id) };
        if region.is_alive(id)? {
            // The client itself, or what completes its operation.
            let (pid, is_over) = intent.runner(region);
            if is_over {
                end(region, id, pid);
            }
        } else if let Entry::Vacant(place) = children.entry(id) {
            place.insert(complete(path, register, id)?);
            return Ok(true);
        }
        Ok(false)
    })
}

fn is_running(child: Pid) -> bool {
    matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
}

/// Ends a process, if it is the one that holds the client's id.
fn end<P: Platform>(region: &Region<P>, id: ClientId, pid: u32) {
    let process = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some(process) = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return;
    };
    // After it was opened: now the number cannot become another process's.
    if region.liveness.is_held_by(id, pid) {
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
}

/// Starts a process that completes the operation of a dead client.
fn complete<P: Platform + 'static>(
    path: &Path,
    register: &dyn Fn(&Region<P>) -> Result<(), ObjectsError>,
    id: ClientId,
) -> Result<Pid, ObjectsError> {
    let failed = ObjectsError::io("start a process for an operation in", path);
    // SAFETY: this process has one thread, and the child never returns.
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let recovered = Region::open(path).and_then(|region| {
                register(&region)?;
                recover_if_dead(&region, id)
            });
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(recovered.is_err())) }
        }
    }
}
