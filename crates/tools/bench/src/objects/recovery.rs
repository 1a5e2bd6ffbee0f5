//! A client that owns many objects dies; its recovery is timed.
#![allow(unsafe_code)] // reason: forks

use std::path::Path;
use std::time::{Duration, Instant};

use farfork::{Client, ObjectsError, Region, Timeout};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(60));
const SLOTS: u64 = 1024;

/// Objects per second, in millions. So many of the objects were another client's before, and lie in its spans.
pub(super) fn rate(directory: &Path, own: u64, received: u64) -> Result<f64, ObjectsError> {
    let path = directory.join("recovered");
    let bytes = (own + received) * 80 + (16 << 20);
    Region::create(&path, bytes.next_multiple_of(4096))?;
    let rate = rate_in(&path, own, received);
    std::fs::remove_file(&path).map_err(|source| ObjectsError::Io {
        doing: "remove",
        path: path.clone(),
        source,
    })?;
    rate
}

fn rate_in(path: &Path, own: u64, received: u64) -> Result<f64, ObjectsError> {
    let mut peer = Client::open(path)?;
    let victim = start(path, own, received)?;
    let to = peer.mailbox("objects", SLOTS)?;
    for _ in 0..received {
        let object = peer.allocate(64)?;
        peer.send(to, object, PATIENCE)?;
    }
    // Stopped, it has all of them.
    let stopped = waitpid(victim, Some(WaitPidFlag::WUNTRACED));
    let is_ready = matches!(stopped, Ok(WaitStatus::Stopped(..)));
    let owned = peer.region().info()?.objects;
    let _ = kill(victim, Signal::SIGKILL);
    let _ = waitpid(victim, None);
    let begun = Instant::now();
    let recovered = peer.region().recover()?;
    let seconds = begun.elapsed().as_secs_f64();
    let left = peer.region().info()?.objects;
    if !is_ready || (owned, recovered, left) != (own + received, 1, 0) {
        return Err(ObjectsError::Full);
    }
    Ok(owned as f64 / seconds / 1e6)
}

fn start(path: &Path, own: u64, received: u64) -> Result<Pid, ObjectsError> {
    let failed = |source: nix::errno::Errno| ObjectsError::Io {
        doing: "start a process that uses",
        path: path.to_owned(),
        source: source.into(),
    };
    // SAFETY: the other threads of this program have ended, and the child never returns.
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let _ = take(path, own, received);
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(0) }
        }
    }
}

fn take(path: &Path, own: u64, received: u64) -> Result<(), ObjectsError> {
    let mut client = Client::open(path)?;
    for _ in 0..own {
        client.allocate(64)?;
    }
    let from = client.mailbox("objects", SLOTS)?;
    for _ in 0..received {
        client.receive(from, PATIENCE)?.ok_or(ObjectsError::Full)?;
    }
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
    Ok(())
}
