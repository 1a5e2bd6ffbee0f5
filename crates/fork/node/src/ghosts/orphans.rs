//! Processes whose parent was `runc`. While containers are made, those that lose it become children of this
//! agent: the first process of a container when `runc` is done, and whatever it was about to become where
//! `runc` was killed. Nobody but the agent can end or wait for those.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::proc;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp};

use super::groups;

/// How long processes may take to end that were killed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// As long as this lives, processes that lose their parents below this agent become its children.
pub struct Adopting;

#[derive(Default)]
struct State {
    making: usize,
    /// First processes of containers, which somebody waits for.
    firsts: BTreeSet<i32>,
}

static STATE: Mutex<State> = Mutex::new(State { making: 0, firsts: BTreeSet::new() });

fn state() -> MutexGuard<'static, State> {
    // Every step leaves it valid.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Adopting {
    pub fn begin() -> Adopting {
        let mut state = state();
        state.making += 1;
        // Without it somebody else waits for the processes, and nothing else differs.
        let _ = set_child_subreaper(true);
        Adopting
    }

    /// Leaves a process to whoever has its container, until that one has [waited](waited) for it.
    pub fn keep(&self, first: i32) {
        state().firsts.insert(first);
    }

    /// Ends all that `runc`, the leader of a process group, has left of a container that was not to be.
    pub fn end_all(&self, runc: Option<i32>, bundle: &Path) {
        let begun = Instant::now();
        let mut left = BTreeSet::new();
        while begun.elapsed() < PATIENCE {
            // Those that have left its group are in the container's cgroups already. Whoever is about to end
            // is not told of there any more, and can still not be waited for.
            left.extend(groups::members(bundle));
            left.extend(
                children().into_iter().filter(|pid| runc.is_some() && group_of(*pid) == runc),
            );
            left.retain(|pid| {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
                has_not_ended(*pid)
            });
            if left.is_empty() {
                return;
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        let mut state = state();
        state.making -= 1;
        if state.making == 0 {
            let _ = set_child_subreaper(false);
            reap(&state.firsts);
        }
    }
}

/// Somebody has waited for the first process of a container.
pub fn waited(first: i32) {
    state().firsts.remove(&first);
}

/// Waits for orphans that were still about to end when nobody adopted any more.
pub fn tidy() {
    let state = state();
    if state.making == 0 {
        reap(&state.firsts);
    }
}

/// Waits for orphans that have ended by themselves: nobody else is a child in another process group. To be
/// called when no container is being made, as a first process that was just adopted is still to be kept.
fn reap(kept: &BTreeSet<i32>) {
    let own = Some(getpgrp().as_raw());
    let is_orphan =
        |pid: &i32| !kept.contains(pid) && group_of(*pid) != own && proc::state(*pid) == Some('Z');
    for pid in children().into_iter().filter(is_orphan) {
        let _ = has_not_ended(pid);
    }
}

/// Whether a child has not ended yet; if it has, it has been waited for.
fn has_not_ended(pid: i32) -> bool {
    waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive)
}

fn children() -> Vec<i32> {
    proc::children(std::process::id() as i32)
}

fn group_of(pid: i32) -> Option<i32> {
    getpgid(Some(Pid::from_raw(pid))).ok().map(Pid::as_raw)
}
