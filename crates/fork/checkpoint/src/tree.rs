//! A process, alone or with all that descend from it, stopped together.
//!
//! ```text
//!  stop a process ─► list its children ─► stop each ─► … until no list has anything new
//! ```
//! Invariants: a parent is stopped before its children, so that none is forked unseen; a dead
//! process stays as it is, since only its parent can wait for it.

use std::fs;
use std::time::{Duration, Instant};

use crate::diagnose::{self, BEFORE, MEANWHILE};
use crate::error::CheckpointError;
use crate::refuse::{Cause, Refusals, causes};
use crate::shadows;
use crate::stopped::StoppedProcess;
use crate::threads;
use farfork_sys::status::Status;

/// What is checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One process, which must have no children.
    Process(i32),
    /// A process and all that descend from it.
    Tree(i32),
}

impl Target {
    /// The process that was asked for.
    pub fn pid(self) -> i32 {
        let (Target::Process(pid) | Target::Tree(pid)) = self;
        pid
    }
}

/// Processes that are stopped, parents before their children. Dropping it lets them go on.
#[derive(Debug)]
pub struct StoppedTree {
    since: Instant,
    members: Vec<TreeProcess>,
}

/// One of them.
#[derive(Debug)]
pub struct TreeProcess {
    /// Its id here.
    pub pid: i32,
    /// Index of its parent; the first has none.
    pub parent: Option<usize>,
    /// Nothing if it has ended, and its parent has not waited for it.
    pub stopped: Option<StoppedProcess>,
}

impl StoppedTree {
    /// Stops all processes of `target`.
    pub fn stop(target: Target) -> Result<StoppedTree, CheckpointError> {
        let root = StoppedProcess::stop(target.pid())?;
        let since = root.since();
        let root = TreeProcess { pid: target.pid(), parent: None, stopped: Some(root) };
        let mut tree = StoppedTree { since, members: vec![root] };
        if let Target::Tree(_) = target {
            // An orphan may come to an ancestor that was looked at before.
            while tree.stop_children()? {}
            tree.sort()?;
        }
        Ok(tree)
    }

    /// When the first of them was stopped.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// All of them.
    pub fn members(&self) -> &[TreeProcess] {
        &self.members
    }

    /// Those that live, with their places among all.
    pub fn living(&self) -> impl Iterator<Item = (usize, &StoppedProcess)> {
        let members = self.members.iter().enumerate();
        members.filter_map(|(index, member)| Some((index, member.stopped.as_ref()?)))
    }

    /// Ids of those that live.
    pub fn pids(&self) -> Vec<i32> {
        self.living().map(|(_, stopped)| stopped.pid()).collect()
    }

    /// Whether a process is one of them.
    pub fn has(&self, pid: i32) -> bool {
        self.members.iter().any(|member| member.pid == pid)
    }

    /// Stops the children of all; whether there were any that were not known.
    fn stop_children(&mut self) -> Result<bool, CheckpointError> {
        let (before, mut next) = (self.members.len(), 0);
        while next < self.members.len() {
            for child in children(self.members[next].pid)? {
                if !self.has(child) {
                    self.add(child)?;
                }
            }
            next += 1;
        }
        Ok(self.members.len() > before)
    }

    fn add(&mut self, pid: i32) -> Result<(), CheckpointError> {
        if pid == std::process::id() as i32 {
            return Err(CheckpointError::Descendant { pid });
        }
        let Ok(status) = Status::read(pid, pid) else { return Ok(()) }; // ended since it was listed
        diagnose::refuse_other_checkpoint(pid, status.tracer)?;
        if let Some(cause) = obstacle(&status) {
            return Err(refused(pid, "process", cause));
        }
        diagnose::refuse_frozen(pid, BEFORE)?;
        let stopped = match StoppedProcess::stop(pid) {
            Ok(stopped) => Some(stopped),
            Err(_) if has_ended(pid)? => None,
            Err(_) if Status::read(pid, pid).is_err() => return Ok(()),
            Err(error) => return Err(error),
        };
        self.members.push(TreeProcess { pid, parent: None, stopped });
        Ok(())
    }

    /// Puts parents before their children, now that no process can get other ones any more.
    fn sort(&mut self) -> Result<(), CheckpointError> {
        let mut left: Vec<TreeProcess> = self.members.drain(..).collect();
        self.members.push(left.remove(0));
        let mut next = 0;
        while next < self.members.len() {
            for child in children(self.members[next].pid)? {
                let found = left.iter().position(|member| member.pid == child);
                let index = found.ok_or(changed(child))?;
                let member = left.swap_remove(index);
                self.members.push(TreeProcess { parent: Some(next), ..member });
            }
            next += 1;
        }
        Ok(())
    }
}

/// How long to wait for the threads of an exiting process.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);

/// Stops processes in their own code. The threads of a clone that was just started may still be in
/// farfork's code, so it lets them run and tries again. Each try delays the threads: the pause
/// between two tries doubles, up to a limit.
pub fn stop(target: Target) -> Result<StoppedTree, CheckpointError> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let tree = StoppedTree::stop(target)?;
        let mut has_arrived = true;
        for (_, stopped) in tree.living() {
            has_arrived &= !threads::is_any_in_window(stopped)?;
        }
        if has_arrived {
            return Ok(tree);
        }
        drop(tree);
        // A frozen clone would not get there.
        diagnose::refuse_frozen(target.pid(), MEANWHILE)?;
        if begun.elapsed() > ARRIVAL_LIMIT {
            return Err(CheckpointError::Arriving { pid: target.pid(), waited: ARRIVAL_LIMIT });
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// How long to wait for a new clone to reach its parent's code. On a busy machine, or in a cgroup
/// with a CPU limit, its threads wait for a processor.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Refuses processes that cannot be stopped, or could not make calls.
pub fn look_at(target: Target) -> Result<(), CheckpointError> {
    let pid = target.pid();
    if pid == std::process::id() as i32 {
        return Err(CheckpointError::Itself { pid });
    }
    let status = Status::read(pid, pid).map_err(|_| CheckpointError::NoProcess { pid })?;
    if status.state == Some('Z') {
        return Err(refused(pid, "main thread", causes::process::MAIN_THREAD_ENDED));
    }
    diagnose::refuse_other_checkpoint(pid, status.tracer)?;
    if let Some(cause) = obstacle(&status) {
        return Err(refused(pid, "process", cause));
    }
    look_at_freezers(target)
}

/// Refuses processes in frozen cgroups, before any process is stopped. Processes forked meanwhile
/// are checked later.
fn look_at_freezers(target: Target) -> Result<(), CheckpointError> {
    let mut pids = vec![target.pid()];
    while let Some(pid) = pids.pop() {
        diagnose::refuse_frozen(pid, BEFORE)?;
        if let Target::Tree(_) = target {
            // One that has ended meanwhile has no children.
            pids.extend(children(pid).unwrap_or_default());
        }
    }
    Ok(())
}

/// Why a process cannot be stopped.
fn obstacle(status: &Status) -> Option<&'static Cause> {
    // The kernel lets no process in a PID namespace stop its pid 1.
    let is_stopped_init = status.state == Some('T') && status.innermost_pid == 1;
    if is_stopped_init {
        return Some(causes::process::STOPPED_INIT);
    }
    status.is_ptraced_before.then_some(causes::process::TRACED)
}

fn refused(pid: i32, object: &str, cause: &'static Cause) -> CheckpointError {
    let mut refusals = Refusals::new(pid);
    refusals.add(object, cause);
    CheckpointError::Refused(refusals.into_list())
}

/// Whether a process is a zombie with all threads dead. Its threads exit one after the other, so
/// this waits for them.
fn has_ended(pid: i32) -> Result<bool, CheckpointError> {
    let until = Instant::now() + EXIT_LIMIT;
    loop {
        let Ok(status) = Status::read(pid, pid) else { return Ok(false) };
        if status.state != Some('Z') {
            return Ok(false);
        }
        if tasks(pid).count() <= 1 {
            return Ok(true);
        }
        if Instant::now() > until {
            return Err(refused(pid, "main thread", causes::process::MAIN_THREAD_ENDED));
        }
        std::thread::sleep(PAUSE);
    }
}

fn changed(pid: i32) -> CheckpointError {
    CheckpointError::Changed { pid, what: "was reparented" }
}

fn tasks(pid: i32) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten()
}

/// Pids of the children of all threads of a process, without the shadows of its seeds.
pub fn children(pid: i32) -> Result<Vec<i32>, CheckpointError> {
    let mut children = Vec::new();
    for task in tasks(pid) {
        let text = match fs::read_to_string(task.path().join("children")) {
            Ok(text) => text,
            // A thread that has ended has none.
            Err(_) if !task.path().exists() => continue,
            Err(_) => return Err(CheckpointError::Proc { pid, what: "the children" }),
        };
        children.extend(text.split_whitespace().filter_map(|id| id.parse::<i32>().ok()));
    }
    children.retain(|child| !shadows::is_shadow(*child));
    Ok(children)
}
