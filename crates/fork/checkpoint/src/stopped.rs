//! Stopping every thread of a process, and letting go of them whatever happens.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::proc;
use farfork_sys::ptrace::{self, State};

use crate::diagnose::{self, MEANWHILE};
use crate::error::{CheckpointError, doing};

/// How long all threads of a process may take to stop; after that, all are resumed. Also the limit
/// for a call that a thread makes for the checkpoint.
pub const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How often to check whether a slow thread is in a frozen cgroup.
const FREEZER_CHECK: Duration = Duration::from_millis(50);
/// How long to wait in all for threads that are about to stop while they are let go.
const RELEASE_LIMIT: Duration = Duration::from_millis(50);
/// How many times to look for a thread before pausing between two looks.
const YIELDS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(100);

/// A process all of whose threads are stopped. Dropping it lets them go on. A thread that has not
/// stopped by then cannot be let go of: the kernel does that when the thread ends that has asked
/// it to stop.
#[derive(Debug)]
pub struct StoppedProcess {
    pid: i32,
    tids: Vec<i32>,
    /// Threads that were asked to stop and have not stopped yet.
    asked: Vec<i32>,
    since: Instant,
    is_stopped: bool,
    /// Whether it did not run when it was first looked at.
    was_still: bool,
}

impl StoppedProcess {
    /// Stops every thread of `pid`.
    ///
    /// # Errors
    /// [`CheckpointError::DoesNotStop`] if that takes too long, [`CheckpointError::NotPermitted`],
    /// [`CheckpointError::Changed`], [`CheckpointError::NoProcess`].
    pub fn stop(pid: i32) -> Result<StoppedProcess, CheckpointError> {
        let (tids, asked, since) = (Vec::new(), Vec::new(), Instant::now());
        let was_still = matches!(proc::state(pid), Some('T' | 'D'));
        let mut frozen = StoppedProcess { pid, tids, asked, since, is_stopped: false, was_still };
        // Threads may start others until the last one is stopped.
        while frozen.stop_new_threads()? {}
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

    /// When the first of them was stopped.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether a signal had stopped it before; it goes back to that when it is let go.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Stops the threads that are not stopped yet; whether there were any.
    fn stop_new_threads(&mut self) -> Result<bool, CheckpointError> {
        for tid in self.listed_threads()? {
            if !self.tids.contains(&tid) && self.ask(tid)? {
                self.asked.push(tid);
            }
        }
        let is_any_new = !self.asked.is_empty();
        while let Some(tid) = self.asked.first().copied() {
            if self.await_stop(tid)? {
                self.tids.push(tid);
            }
            self.asked.remove(0);
        }
        Ok(is_any_new)
    }

    fn listed_threads(&self) -> Result<Vec<i32>, CheckpointError> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid))
            .map_err(|_| CheckpointError::NoProcess { pid: self.pid })?;
        let mut tids: Vec<i32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        tids.sort_by_key(|tid| (*tid != self.pid, *tid));
        Ok(tids)
    }

    /// Asks a thread to stop; false if it has ended since it was listed.
    fn ask(&self, tid: i32) -> Result<bool, CheckpointError> {
        if self.was_still {
            diagnose::refuse_frozen_thread(self.pid, tid)?;
        }
        if let Err(error) = ptrace::seize(tid) {
            return match error.raw_os_error() {
                // The kernel says EPERM of what has ended and is still listed.
                Some(libc::ESRCH | libc::EPERM) if diagnose::has_ended(self.pid, tid) => {
                    if tid == self.pid { Err(self.gone()) } else { Ok(false) }
                }
                Some(libc::ESRCH) => Err(self.gone()),
                Some(libc::EPERM) => Err(diagnose::tracing_error(self.pid, tid)),
                _ => Err(doing(self.pid, "stop a thread")(error)),
            };
        }
        // If it cannot be asked it is just ending, and `await_stop` sees that.
        let _ = ptrace::interrupt(tid);
        Ok(true)
    }

    /// Waits for a thread that was asked to stop; false if it has ended instead.
    fn await_stop(&mut self, tid: i32) -> Result<bool, CheckpointError> {
        loop {
            match self.next_state(tid)? {
                State::Stopped(signal) => {
                    // Not SIGTRAP: the stop is one of the whole process.
                    self.is_stopped |= signal != libc::SIGTRAP;
                    return Ok(true);
                }
                // A signal was on its way: hand it on; the stop comes after it.
                State::Taking(signal) => {
                    ptrace::resume(tid, signal).map_err(doing(
                        self.pid,
                        "deliver a signal to a \
                        thread",
                    ))?;
                }
                // Asked for only where a copy of the process is forked.
                State::Cloned => {
                    ptrace::resume(tid, 0).map_err(doing(self.pid, "resume a thread"))?;
                }
                State::Ended if tid != self.pid => return Ok(false),
                State::Ended | State::Unchanged => return Err(self.gone()),
            }
        }
    }

    /// What becomes of a thread next. One that is at work in the kernel may stop much later, or
    /// when another process has ended that stands still as well.
    fn next_state(&self, tid: i32) -> Result<State, CheckpointError> {
        match self.state_until(tid, self.since + STOP_LIMIT)? {
            Some(state) => Ok(state),
            None => Err(self.does_not_stop(tid)),
        }
    }

    /// What becomes of a thread next; nothing if that is nothing until `late`.
    ///
    /// # Errors
    /// [`CheckpointError::Frozen`] as soon as it is seen that a cgroup of the process is frozen: what
    /// is waited for may not come before it is thawed.
    pub fn state_until(&self, tid: i32, late: Instant) -> Result<Option<State>, CheckpointError> {
        let mut next_look = Instant::now() + FREEZER_CHECK;
        for round in 0u32.. {
            match ptrace::state(tid) {
                Ok(State::Unchanged) => {}
                Ok(state) => return Ok(Some(state)),
                // Another thread has executed a program.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Err(self.gone()),
                Err(error) => return Err(doing(self.pid, "wait for a thread")(error)),
            }
            // Most stop within microseconds.
            if round < YIELDS {
                thread::yield_now();
                continue;
            }
            let now = Instant::now();
            if now > next_look {
                diagnose::refuse_frozen(self.pid, MEANWHILE)?;
                next_look = now + FREEZER_CHECK;
            }
            if now > late {
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(None)
    }

    /// That a thread has not stopped in time.
    pub fn does_not_stop(&self, tid: i32) -> CheckpointError {
        let why = diagnose::why_not_stopped(self.pid, tid);
        CheckpointError::DoesNotStop { pid: self.pid, tid, why }
    }

    fn gone(&self) -> CheckpointError {
        CheckpointError::Changed { pid: self.pid, what: "ended or executed another program" }
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        for tid in &self.tids {
            // A thread that was killed meanwhile has nothing to be let go.
            let _ = ptrace::detach(*tid, 0);
        }
        let late = Instant::now() + RELEASE_LIMIT;
        for tid in &self.asked {
            release(*tid, late);
        }
    }
}

/// Lets go of a thread that may be about to stop.
fn release(tid: i32, late: Instant) {
    loop {
        let signal = match ptrace::state(tid) {
            Ok(State::Unchanged) if Instant::now() > late => return,
            Ok(State::Unchanged) => {
                thread::sleep(PAUSE);
                continue;
            }
            Ok(State::Taking(signal)) => signal,
            _ => 0,
        };
        let _ = ptrace::detach(tid, signal);
        return;
    }
}
