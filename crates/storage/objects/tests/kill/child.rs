//! Processes that are killed.
#![allow(unsafe_code)] // reason: forks

use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Exit status of a child that finished.
const FINISHED: i32 = 7;
/// Exit status of a child that failed.
const FAILED: i32 = 9;

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By a kill in the middle.
    Killed,
    /// At its end, without closing anything.
    Finished,
}

/// Starts a process that runs `body`.
pub fn start(body: impl FnOnce()) -> Pid {
    // SAFETY: this process has one thread.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let done = catch_unwind(AssertUnwindSafe(body));
            let status = if done.is_ok() { FINISHED } else { FAILED };
            // SAFETY: ends the process at once: nothing is closed by hand.
            unsafe { libc::_exit(status) }
        }
    }
}

/// Waits for the end of a child.
pub fn end(child: Pid) -> Result<End, String> {
    match waitpid(child, None).map_err(|errno| format!("cannot wait: {errno}"))? {
        WaitStatus::Exited(_, FINISHED) => Ok(End::Finished),
        WaitStatus::Signaled(_, Signal::SIGKILL, _) => Ok(End::Killed),
        other => Err(format!("the child ended by {other:?}")),
    }
}

/// Runs `prepare` and then what it returns, of which `steps` instructions are executed before a SIGKILL.
pub fn run_stepped<T>(
    steps: u64,
    prepare: impl FnOnce() -> T,
    operation: impl FnOnce(T),
) -> Result<End, String> {
    let child = start(|| {
        let prepared = prepare();
        ptrace::traceme().expect("a tracer");
        raise(Signal::SIGSTOP).expect("a stop");
        operation(prepared);
    });
    let failed = |errno| format!("cannot step: {errno}");
    match waitpid(child, None).map_err(failed)? {
        WaitStatus::Stopped(_, Signal::SIGSTOP) => {}
        other => return Err(format!("the child did not get ready: {other:?}")),
    }
    for _ in 0..steps {
        ptrace::step(child, None).map_err(failed)?;
        match waitpid(child, None).map_err(failed)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Exited(_, FINISHED) => return Ok(End::Finished),
            other => return Err(format!("the child ended by {other:?}")),
        }
    }
    kill(child, Signal::SIGKILL).map_err(failed)?;
    end(child)
}
