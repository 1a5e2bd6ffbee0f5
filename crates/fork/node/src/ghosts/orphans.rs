//! Processes whose parent was `runc`. While containers are made, processes that lose it become children
//! of this agent: the first process of a container when `runc` is done, and unfinished ones where `runc`
//! was killed. Only the agent can end or reap those.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::proc;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp};

use super::groups;
use farfork_sys::sync::locked;

/// How long processes may take to end that were killed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// As long as this lives, processes that lose their parents below this agent become its children.
pub struct Adopting;

#[derive(Default)]
struct State {
    making: usize,
    /// First processes of containers, which are reaped with their containers.
    firsts: BTreeSet<i32>,
}

static STATE: Mutex<State> = Mutex::new(State { making: 0, firsts: BTreeSet::new() });

fn state() -> MutexGuard<'static, State> {
    locked(&STATE)
}

impl Adopting {
    pub fn begin() -> Adopting {
        let mut state = state();
        state.making += 1;
        // If this fails another process adopts and reaps them, and nothing else differs.
        let _ = set_child_subreaper(true);
        Adopting
    }

    /// Leaves a process to the owner of its container, until that has [reaped](waited) it.
    pub fn keep(&self, first: i32) {
        state().firsts.insert(first);
    }

    /// Ends all processes that `runc`, the leader of a process group, has left of an unfinished container.
    pub fn end_all(&self, runc: Option<i32>, bundle: &Path) {
        let begun = Instant::now();
        let mut left = BTreeSet::new();
        while begun.elapsed() < PATIENCE {
            // Processes that have left its group are in the container's cgroups already. One that is
            // about to end is not listed there any more, but cannot be reaped yet.
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

/// Notes that the first process of a container was reaped.
pub fn waited(first: i32) {
    state().firsts.remove(&first);
}

/// Reaps orphans that ended after the last [`Adopting`] was dropped.
pub fn tidy() {
    let state = state();
    if state.making == 0 {
        reap(&state.firsts);
    }
}

/// Reaps orphans that have ended: they are the only children in other process groups. To be called when no
/// container is being made, as a first process that was just adopted is not in `kept` yet.
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
