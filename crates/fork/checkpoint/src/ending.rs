//! Killing a tree whose image is made, so that a clone can have its pids.
//!
//! ```text
//!  all die with this tracer ─► the last: kill ─► its parent waits for it ─► kill the parent ─► … ─► kill the first
//! ```
//! A killed process has its pid until it is reaped. Its parent does that here, by a call made on its
//! behalf. If all were killed at once, pid 1 would have to, and many programs that run as pid 1 do so
//! seconds later or never.

use std::path::Path;
use std::time::{Duration, Instant};

use farfork_sys::proc;
use farfork_sys::ptrace::{self, Options, State};
use farfork_sys::status::Status;
use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;

use crate::error::CheckpointError;
use crate::member::ObservedProcess;
use crate::stopped::StoppedProcess;
use crate::tree::StoppedTree;

/// How long to wait for killed processes to end, and to be reaped by others where their parents could
/// not.
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Kills all processes of a tree, and waits until all but the first are reaped. The first has a parent
/// outside, which reaps it. If this process is killed meanwhile, all of them end as well.
pub fn kill(tree: &StoppedTree) {
    let until = Instant::now() + LIMIT;
    let living: Vec<&StoppedProcess> = tree.living().map(|(_, stopped)| stopped).collect();
    for stopped in &living {
        die_with_this(stopped);
    }
    // Parents come before their children in the tree.
    for stopped in living.into_iter().rev() {
        // Best effort, as the last wait below is.
        let _ = reap_children(stopped);
        let _ = send(Pid::from_raw(stopped.pid()), Signal::SIGKILL);
        // Its parent can wait for it when this tracer has seen the exit of all threads. The leader ends last.
        for tid in stopped.tids().iter().rev() {
            wait(until, || has_ended(*tid));
        }
    }
    for member in tree.members().iter().skip(1) {
        wait(until, || !Path::new(&format!("/proc/{}", member.pid)).exists());
    }
}

/// Has the kernel kill a process when this one dies.
fn die_with_this(stopped: &StoppedProcess) {
    for tid in stopped.tids() {
        let is_filtered = Status::read(stopped.pid(), *tid).is_ok_and(|status| status.seccomp != 0);
        let options = Options { dies_with_tracer: true, ..Options::default() };
        // A filter might not let it wait for its children.
        let without = Options { suspends_seccomp: is_filtered, ..options };
        if ptrace::set_options(*tid, without).is_err() {
            let _ = ptrace::set_options(*tid, options);
        }
    }
}

/// Has a process wait for its dead children.
fn reap_children(stopped: &StoppedProcess) -> Result<(), CheckpointError> {
    let pid = stopped.pid();
    if proc::children(pid).is_empty() {
        return Ok(());
    }
    let injector = ObservedProcess::outline(stopped)?.calls().injector(stopped)?;
    let leader = injector.thread(pid)?;
    let (any, how) = (u64::MAX, (libc::__WALL | libc::WNOHANG) as u64);
    while leader.try_call(libc::SYS_wait4, [any, 0, how, 0, 0, 0])? > 0 {}
    Ok(())
}

/// Whether a thread has ended. A stop that it still reports is not its end.
fn has_ended(tid: i32) -> bool {
    matches!(ptrace::state(tid), Ok(State::Ended) | Err(_))
}

fn wait(until: Instant, is_over: impl Fn() -> bool) {
    while !is_over() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
}
