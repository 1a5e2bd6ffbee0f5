//! From the kill of a client until another client has its memory. The dead client had all memory of the region.
//!
//! ```text
//!  kill ─► the process ends: its memory is unmapped, then its lock is free ─► recovery ─► another client allocates
//!                                                                            of that client, or of a watcher
//! ```
//! Nothing waits for a timer: a watcher waits for the process, and the other client tries again and again.
#![allow(unsafe_code)] // reason: forks

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use farfork::{Client, Node, ObjectsError, Region, Timeout};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

const PATIENCE: Duration = Duration::from_secs(20);
/// Until a watcher has seen a new client. It looks ten times a second.
const NOTICED: Duration = Duration::from_millis(250);

/// Which process recovers the dead client.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum By {
    /// The next client that needs memory.
    NextClient,
    /// `farfork region watch`.
    Watcher,
}

/// A process that is killed at the end.
struct Other(Pid);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// Milliseconds from the kill of a client with about so many objects until another client has its memory.
pub(super) fn milliseconds(directory: &Path, objects: u64, by: By) -> Result<f64, ObjectsError> {
    let path = directory.join("killed");
    Region::create(&path, (objects * 69 + (4 << 20)).next_multiple_of(4096))?;
    let measured = in_region(&path, by);
    let failed = |source| ObjectsError::Io { doing: "remove", path: path.clone(), source };
    std::fs::remove_file(&path).map_err(failed)?;
    measured
}

fn in_region(path: &Path, by: By) -> Result<f64, ObjectsError> {
    let mut peer = Client::open(path)?;
    let from = peer.mailbox("last", 1)?;
    let watcher = (by == By::Watcher).then(|| start(path, watch)).transpose()?;
    let victim = start(path, take_all)?;
    let message = peer.receive(from, Timeout::After(PATIENCE))?.ok_or(ObjectsError::Full)?;
    let last = super::word_of(message, 0);
    if watcher.is_some() {
        std::thread::sleep(NOTICED);
    }
    // All memory is taken, and stays so while the client lives.
    if peer.object(last).is_err() || peer.allocate(64).is_ok() {
        return Err(ObjectsError::Full);
    }
    let begun = Instant::now();
    let _ = kill(victim.0, Signal::SIGKILL);
    // Recovery goes from low to high addresses. This client looks, so that it does not recover by itself.
    while watcher.is_some() && peer.object(last).is_ok() && begun.elapsed() < PATIENCE {
        std::hint::spin_loop();
    }
    while peer.allocate(64).is_err() {
        if begun.elapsed() > PATIENCE {
            return Err(ObjectsError::Full);
        }
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn start(path: &Path, run: fn(&Path) -> Result<(), ObjectsError>) -> Result<Other, ObjectsError> {
    let failed = |source: nix::errno::Errno| ObjectsError::Io {
        doing: "start a process that uses",
        path: path.to_owned(),
        source: source.into(),
    };
    // SAFETY: the other threads of this program have ended, and the child never returns.
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Parent { child } => Ok(Other(child)),
        ForkResult::Child => {
            let _ = run(path);
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(1) }
        }
    }
}

fn watch(path: &Path) -> Result<(), ObjectsError> {
    Region::<Node>::open(path)?.watch(&AtomicBool::new(false)).map(drop)
}

/// Takes all memory, and sends a reference to the object with the highest address.
fn take_all(path: &Path) -> Result<(), ObjectsError> {
    let mut client = Client::open(path)?;
    let to = client.mailbox("last", 1)?;
    let message = client.allocate(64)?;
    let mut highest = client.allocate(64)?;
    while let Ok(object) = client.allocate(64) {
        highest = highest.max(object);
    }
    super::touch(message, client.reference(highest)?);
    client.send(to, message, Timeout::After(PATIENCE))?;
    std::thread::sleep(2 * PATIENCE);
    Ok(())
}
