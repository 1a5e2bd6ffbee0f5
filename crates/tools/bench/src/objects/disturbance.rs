//! What clients lose while others are recovered, one after the other (the paper, figure 13), and what they would lose if they
//! were stopped for each recovery (its figure 2 (a)).
#![allow(unsafe_code)] // reason: forks, and memory that is shared with a child

use std::ffi::c_void;
use std::num::NonZero;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farfork::{Client, ObjectsError, Region};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

use super::allocators::touch;

const REGION_BYTES: u64 = 64 << 20;
/// Objects of each client that dies.
const OBJECTS: usize = 100_000;
const BATCH: u64 = 1000;

/// Parts of its throughput that a client keeps while others are recovered.
pub(super) struct Kept {
    /// It goes on.
    pub(super) working: f64,
    /// It is stopped for each recovery.
    pub(super) stopped: f64,
    /// Recoveries a second.
    pub(super) recoveries: f64,
}

/// A client that allocates and frees in another process, and what it has done.
struct Worker {
    process: Pid,
    done: NonNull<c_void>,
}

pub(super) fn measure(directory: &Path, time: Duration) -> Result<Kept, ObjectsError> {
    let path = directory.join("disturbed");
    Region::create(&path, REGION_BYTES)?;
    let kept = in_region(&path, time);
    let failed = |source| ObjectsError::Io { doing: "remove", path: path.clone(), source };
    std::fs::remove_file(&path).map_err(failed)?;
    kept
}

fn in_region(path: &Path, time: Duration) -> Result<Kept, ObjectsError> {
    let region: Region = Region::open(path)?;
    let worker = Worker::start(path)?;
    std::thread::sleep(time / 4);
    let mut recoveries = 0;
    let alone = worker.rate(time, || {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    })?;
    // In both, clients live and die, which takes as much of the machine.
    let working = worker.rate(time, || {
        die(path)?;
        recoveries += region.recover()?;
        Ok(())
    })?;
    let stopped = worker.rate(time, || {
        die(path)?;
        worker.signal(Signal::SIGSTOP);
        let recovered = region.recover();
        worker.signal(Signal::SIGCONT);
        recovered.map(drop)
    })?;
    let recoveries = recoveries as f64 / time.as_secs_f64();
    Ok(Kept { working: working / alone, stopped: stopped / alone, recoveries })
}

impl Worker {
    fn start(path: &Path) -> Result<Worker, ObjectsError> {
        let failed = |source: nix::errno::Errno| ObjectsError::Io {
            doing: "start a process that uses",
            path: path.to_owned(),
            source: source.into(),
        };
        let (length, protection) =
            (NonZero::new(4096), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        let length = length.unwrap_or(NonZero::<usize>::MIN);
        // SAFETY: a new mapping.
        let done = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_SHARED) };
        let done = done.map_err(failed)?;
        // SAFETY: the other threads of this program have ended, and the child never returns.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Parent { child } => Ok(Worker { process: child, done }),
            ForkResult::Child => {
                let _ = Worker { process: Pid::this(), done }.work(path);
                // SAFETY: ends the process at once.
                unsafe { nix::libc::_exit(1) }
            }
        }
    }

    fn done(&self) -> &AtomicU64 {
        // SAFETY: the mapping has a page, and lives as long as this.
        unsafe { self.done.cast().as_ref() }
    }

    fn work(&self, path: &Path) -> Result<(), ObjectsError> {
        let mut client = Client::open(path)?;
        loop {
            for number in 0..BATCH {
                let object = client.allocate(64)?;
                touch(object, number);
                client.free(object)?;
            }
            self.done().fetch_add(BATCH, Ordering::Relaxed);
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(self.process, signal);
    }

    /// Its operations a second while something happens again and again.
    fn rate(
        &self,
        time: Duration,
        mut happens: impl FnMut() -> Result<(), ObjectsError>,
    ) -> Result<f64, ObjectsError> {
        let (begun, before) = (Instant::now(), self.done().load(Ordering::Relaxed));
        while begun.elapsed() < time {
            happens()?;
        }
        let done = self.done().load(Ordering::Relaxed) - before;
        match done {
            0 => Err(ObjectsError::Full),
            done => Ok(done as f64 / begun.elapsed().as_secs_f64()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.process == Pid::this() {
            return;
        }
        self.signal(Signal::SIGKILL);
        let _ = waitpid(self.process, None);
        // SAFETY: mapped by `start`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.done, 4096) };
    }
}

/// A client that takes objects and dies.
fn die(path: &Path) -> Result<(), ObjectsError> {
    let failed = |source: nix::errno::Errno| ObjectsError::Io {
        doing: "start a process that uses",
        path: path.to_owned(),
        source: source.into(),
    };
    // SAFETY: the other threads of this program have ended, and the child never returns.
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Parent { child } => waitpid(child, None).map(drop).map_err(failed),
        ForkResult::Child => {
            if let Ok(mut client) = Client::open(path) {
                for _ in 0..OBJECTS {
                    let _ = client.allocate(64);
                }
                let _ = kill(Pid::this(), Signal::SIGKILL);
            }
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(1) }
        }
    }
}
