//! Stopping every thread of a process, and letting go of them whatever happens.

use std::fs;
use std::time::Instant;

use farfork_sys::ptrace;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::error::{CheckpointError, doing};

/// A process all of whose threads are stopped. Dropping it lets them go on.
#[derive(Debug)]
pub struct Frozen {
    pid: i32,
    tids: Vec<i32>,
    since: Instant,
    is_stopped: bool,
}

impl Frozen {
    /// Stops every thread of `pid`.
    pub fn freeze(pid: i32) -> Result<Frozen, CheckpointError> {
        let (tids, since) = (Vec::new(), Instant::now());
        let mut frozen = Frozen { pid, tids, since, is_stopped: false };
        // Threads may start others until the last one is stopped.
        while frozen.seize_new_threads()? {}
        Ok(frozen)
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its threads, the leader first.
    pub fn tids(&self) -> &[i32] {
        &self.tids
    }

    /// Since when the first of them has been stopped.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether a signal had stopped it before; it goes back to that when it is let go.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn seize_new_threads(&mut self) -> Result<bool, CheckpointError> {
        let before = self.tids.len();
        for tid in self.listed_threads()? {
            if !self.tids.contains(&tid) {
                self.stop(tid)?;
            }
        }
        Ok(self.tids.len() > before)
    }

    fn listed_threads(&self) -> Result<Vec<i32>, CheckpointError> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid))
            .map_err(|_| CheckpointError::NoProcess { pid: self.pid })?;
        let mut tids: Vec<i32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        tids.sort_by_key(|tid| (*tid != self.pid, *tid));
        Ok(tids)
    }

    fn stop(&mut self, tid: i32) -> Result<(), CheckpointError> {
        if let Err(error) = ptrace::seize(tid) {
            return match error.raw_os_error() {
                Some(libc::ESRCH) if tid != self.pid => Ok(()), // ended since it was listed
                Some(libc::ESRCH) => Err(CheckpointError::NoProcess { pid: self.pid }),
                Some(libc::EPERM) => Err(CheckpointError::NotPermitted { pid: self.pid }),
                _ => Err(doing(self.pid, "stop a thread")(error)),
            };
        }
        self.tids.push(tid);
        ptrace::interrupt(tid).map_err(doing(self.pid, "stop a thread"))?;
        self.await_stop(tid)
    }

    fn await_stop(&mut self, tid: i32) -> Result<(), CheckpointError> {
        loop {
            match wait(tid) {
                Ok(WaitStatus::PtraceEvent(_, signal, _)) => {
                    // Not SIGTRAP: the stop is one of the whole process.
                    self.is_stopped |= signal != Signal::SIGTRAP;
                    return Ok(());
                }
                // A signal was on its way: hand it on; the stop comes after it.
                Ok(WaitStatus::Stopped(_, signal)) => ptrace::resume(tid, signal as i32)
                    .map_err(doing(self.pid, "hand on a signal"))?,
                Ok(_) | Err(Errno::ECHILD) => return Err(self.gone()),
                Err(error) => return Err(doing(self.pid, "wait for a thread")(error.into())),
            }
        }
    }

    fn gone(&self) -> CheckpointError {
        CheckpointError::Changed { pid: self.pid, what: "ended or executed another program" }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for tid in &self.tids {
            // A thread that was killed meanwhile has nothing to be let go.
            let _ = ptrace::detach(*tid);
        }
    }
}

/// Waits for the next stop of a traced thread.
pub fn wait(tid: i32) -> nix::Result<WaitStatus> {
    loop {
        match waitpid(Pid::from_raw(tid), Some(WaitPidFlag::__WALL)) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}
