//! The end of a clone that was not to be, or not to be any more.

use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::proc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::template::Started;

/// How long an init may take to stop, and those that descend from it to end. Only what is at work
/// in the kernel takes longer than a moment.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

impl Started {
    /// Kills the init and all that descends from it, and waits until the init has gone. To be called
    /// once, by a child's parent: nobody else reaps the init, so that its pid stays its own.
    pub fn end(&self) {
        let init = match self.init_pid() {
            0 => return, // never heard of
            pid => Pid::from_raw(pid),
        };
        if !self.has_namespace {
            end_descendants(init);
            if !proc::children(init.as_raw()).is_empty() {
                // It waits for them, so that their pids are free, and ends with the clone.
                let _ = kill(init, Signal::SIGCONT);
                await_end(init.as_raw());
                end_descendants(init);
            }
        }
        let _ = kill(init, Signal::SIGKILL);
        let _ = waitpid(init, None);
    }
}

/// Without a PID namespace nobody ends with the init. It is stopped first: it starts no more
/// processes, stays the parent of those that lose theirs, and reaps none, so that pids stay.
fn end_descendants(init: Pid) {
    let _ = kill(init, Signal::SIGSTOP);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        // In this order: what has stopped adds nobody to the list after it.
        let has_stopped = has_stopped(init.as_raw());
        let living = descendants(init.as_raw());
        for pid in &living {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        if has_stopped && living.is_empty() {
            return;
        }
        thread::sleep(PAUSE);
    }
}

fn await_end(pid: i32) {
    let begun = Instant::now();
    while proc::state(pid).is_some_and(|state| state != 'Z') && begun.elapsed() < PATIENCE {
        thread::sleep(PAUSE);
    }
}

fn has_stopped(pid: i32) -> bool {
    matches!(proc::state(pid), None | Some('T' | 't' | 'Z' | 'X'))
}

/// Everybody below `pid` who has not ended.
fn descendants(pid: i32) -> Vec<i32> {
    let mut found = proc::children(pid);
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(proc::children(*pid));
        next += 1;
    }
    found.retain(|pid| !matches!(proc::state(*pid), None | Some('Z' | 'X')));
    found
}
