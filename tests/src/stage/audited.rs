//! A clone beside its parent, compared by a reader that shares no code with the checkpoint.

use std::fs;
use std::thread;
use std::time::Duration;

use farfork_audit::Difference;

use super::Stage;
use crate::patience::Patience;
use crate::{Outcome, Trouble};

/// How often the two are compared before a difference counts: a thread of the clone may be on its way to the
/// call in which its parent's waits.
const LOOKS: u32 = 20;
/// Of how many clones each has to differ: a runtime may have begun to compile, or to collect, in one of them.
const CLONES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// Facts that move while the two are compared, by program and by the beginnings of their names.
const MOVING: [(&str, &str); 11] = [
    // The one that is stopped gets its signal mask on its way when it goes on.
    ("tree_stopped", "process "),
    ("tree_stop_unreported", "process "),
    // Its threads end, and begin others.
    ("thread_churn", "thread "),
    ("thread_churn", "stat/threads"),
    // Both write to the same files all the time.
    ("fd_log", "fd 3/pos"),
    ("fd_log", "fd 4/pos"),
    ("fd_log", "fd 3/size"),
    ("fd_log", "fd 4/size"),
    // Its timers run on.
    ("timers", "thread "),
    ("timers", "timers"),
    ("fd_timerfd", "fd 3/ticks"),
];

/// Programs whose runtime starts threads while they wait: what parent or clone got after the checkpoint, the other one
/// does not have.
const STARTS_THREADS: [&str; 1] = ["rt_go"];

impl Stage<'_> {
    fn moves(&self, difference: &Difference, threads: &[String]) -> bool {
        let fact = difference.fact.as_str();
        let own = MOVING.iter().filter(|(name, _)| *name == self.program.name);
        if own.into_iter().any(|(_, begins)| fact.starts_with(begins)) {
            return true;
        }
        let thread = fact.strip_prefix("thread ").and_then(|rest| rest.split('/').next());
        STARTS_THREADS.contains(&self.program.name)
            && (fact == "stat/threads"
                || (difference.parent.is_none() || difference.clone.is_none())
                    && thread.is_some_and(|thread| threads.iter().all(|known| known != thread)))
    }

    pub(super) fn audited(&mut self) -> Outcome {
        if let Some(rest) = self.program.rest {
            self.await_rest(rest)?;
        }
        let threads = threads_of(self.subject_pid()?)?;
        self.must_checkpoint(&[])?;
        let mut report = String::new();
        for _ in 0..CLONES {
            report = self.audit(&threads)?;
            if report.is_empty() {
                break;
            }
        }
        self.parent.must_pass()?;
        match report.is_empty() {
            true => Ok(()),
            false => Err(Trouble::Failed(format!("the clone differs from its parent:\n{report}"))),
        }
    }

    /// Waits until the parent has not changed for so long: otherwise it and each clone would go on with the same work,
    /// and none of them be alike before all have done it.
    fn await_rest(&mut self, rest: Duration) -> Outcome {
        let pid = self.subject_pid()? as i32;
        let failed = |error| Trouble::during("looking at the parent", error);
        let mut patience = Patience::new(self.program.timeout);
        let mut seen = farfork_audit::facts(pid).map_err(failed)?;
        let mut left = Patience::new(rest);
        while !left.is_over() {
            thread::sleep(PAUSE);
            let changes = farfork_audit::changes(pid, &seen).map_err(failed)?;
            if let Some(change) = changes.first() {
                if patience.is_over() {
                    return self.parent.fail(&format!("does not come to rest: {change}"));
                }
                seen = farfork_audit::facts(pid).map_err(failed)?;
                left = Patience::new(rest);
            }
        }
        Ok(())
    }

    /// The differences between the parent and a new clone, which then goes on.
    fn audit(&mut self, threads: &[String]) -> Outcome<String> {
        let mut clone = self.clone_under(0, &[])?;
        let pid = self.settled(&mut clone)?;
        let parent = self.subject_pid()?;
        let mut report = String::new();
        for look in 0..LOOKS {
            let compare = match self.program.is_tree {
                true => farfork_audit::compare_trees,
                false => farfork_audit::compare,
            };
            report = match compare(parent as i32, pid as i32) {
                Ok(found) => {
                    let found = found.iter().filter(|difference| !self.moves(difference, threads));
                    found.map(|difference| format!("  {difference}\n")).collect()
                }
                // A descriptor or a thread of the clone's start may have gone meanwhile.
                Err(error) => format!("  they cannot be compared: {error}\n"),
            };
            if report.is_empty() {
                break;
            }
            if look + 1 < LOOKS {
                thread::sleep(PAUSE);
            }
        }
        clone.must_pass()?;
        Ok(report)
    }
}

fn threads_of(pid: u32) -> Result<Vec<String>, Trouble> {
    let listed = fs::read_dir(format!("/proc/{pid}/task"));
    let listed = listed
        .map_err(|error| Trouble::Failed(format!("its threads cannot be listed: {error}")))?;
    Ok(listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}
