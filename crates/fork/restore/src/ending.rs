//! Ending a clone that failed to start, or that lost its init.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::{pidfd, proc};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::template::{Started, parent_of};

/// How long an init may take to stop, and its descendants to end. Only a process at work in the kernel
/// takes longer than a moment.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

impl Started {
    /// Kills the init and all that descends from it, and waits until the init has gone. To be called
    /// once, by the parent of the init: no other process reaps the init, so its pid is not reused.
    pub fn end(&self) {
        let init = match self.init_pid() {
            0 => return, // never heard of
            pid => Pid::from_raw(pid),
        };
        if !self.has_namespace {
            end_descendants(init);
            if !proc::children(init.as_raw()).is_empty() {
                // The init reaps them, so that their pids are free, and ends with the clone.
                let _ = kill(init, Signal::SIGCONT);
                await_end(init.as_raw());
                end_descendants(init);
            }
        }
        let _ = kill(init, Signal::SIGKILL);
        let _ = waitpid(init, None);
    }
}

/// Without a PID namespace the kernel ends no process with the init. So the init is stopped first: it
/// then starts no more processes, adopts those that lose their parent, and reaps none, so that pids are
/// not reused.
fn end_descendants(init: Pid) {
    let _ = kill(init, Signal::SIGSTOP);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        // In this order: an init that has stopped adds no process after the list was read.
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

/// All descendants of `pid` that have not ended.
fn descendants(pid: i32) -> Vec<i32> {
    let mut found = proc::children(pid);
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(proc::children(*pid));
        next += 1;
    }
    found.retain(|pid| !has_ended(*pid));
    found
}

fn has_ended(pid: i32) -> bool {
    matches!(proc::state(pid), None | Some('Z' | 'X'))
}

/// All descendants of a clone without a PID namespace, whatever their parents and programs. No other
/// processes share the mount namespace that its init was forked into. A descendant that has made another
/// mount namespace is found through its ancestors as long as they live.
#[derive(Debug)]
pub struct Members {
    /// Held open, so that no other namespace has its number.
    _namespace: File,
    id: (u64, u64),
}

impl Members {
    /// The members of the clone that this process, its own or its init's, is one of.
    ///
    /// # Errors
    /// It has ended; it has no mount namespace of its own.
    pub fn of_process(pid: i32) -> io::Result<Members> {
        let namespace = File::open(namespace_of(pid))?;
        let id = id_of(&namespace.metadata()?);
        match fs::metadata(namespace_of(std::process::id() as i32)).map(|own| id_of(&own))? {
            own if own == id => Err(io::ErrorKind::InvalidInput.into()),
            _ => Ok(Members { _namespace: namespace, id }),
        }
    }

    /// Kills them all, and waits until they have ended, for a few seconds at most. Only a process at work
    /// in the kernel takes longer than a moment.
    pub fn end(&self) {
        let begun = Instant::now();
        while self.kill() > 0 && begun.elapsed() < PATIENCE {
            thread::sleep(PAUSE);
        }
    }

    /// Kills all that live, and returns how many. Killed processes do not fork any more, so that in the
    /// end none is left.
    fn kill(&self) -> usize {
        // All are known before the first is killed, whose children then have another parent.
        let living = self.living();
        let kill = |process: &&OwnedFd| pidfd::send_signal(process, Signal::SIGKILL as i32).is_ok();
        living.iter().filter(kill).count()
    }

    fn living(&self) -> Vec<OwnedFd> {
        let (mut pids, mut processes) = (Vec::new(), Vec::new());
        let mut add = |pids: &mut Vec<i32>, pid: i32, is_it: &dyn Fn() -> bool| {
            // In this order: the process that is checked is the one that the pidfd refers to.
            let process = pidfd::open(pid);
            if let (Ok(process), false, true) = (process, pids.contains(&pid), is_it()) {
                pids.push(pid);
                processes.push(process);
            }
        };
        for pid in proc::processes() {
            add(&mut pids, pid, &|| self.has(pid));
        }
        let mut next = 0;
        while let Some(parent) = pids.get(next).copied() {
            for pid in proc::children(parent) {
                add(&mut pids, pid, &|| parent_of(pid) == Some(parent) && !has_ended(pid));
            }
            next += 1;
        }
        processes
    }

    /// A process that has ended has no namespace any more.
    fn has(&self, pid: i32) -> bool {
        fs::metadata(namespace_of(pid)).is_ok_and(|found| id_of(&found) == self.id)
    }
}

fn namespace_of(pid: i32) -> String {
    format!("/proc/{pid}/ns/mnt")
}

fn id_of(namespace: &Metadata) -> (u64, u64) {
    (namespace.dev(), namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_with_the_namespace_of_all_has_no_members() {
        let error = Members::of_process(std::process::id() as i32).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// One has left its parent for the parent of all, another executes a program of its own.
    #[test]
    fn members_end_wherever_they_are() {
        let script = "sleep 600 & (setsid sleep 601 & echo $!); echo $!; echo up; exec sleep 602";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let pids: Vec<i32> = (&mut said).map_while(|line| line.ok()?.parse().ok()).collect();
        if pids.is_empty() {
            process.wait().unwrap();
            return println!("skipped: a mount namespace of its own needs root");
        }
        let members = Members::of_process(process.id() as i32).unwrap();
        assert_eq!(members.living().len(), 3);
        members.end();
        assert!(pids.iter().all(|pid| has_ended(*pid)), "{pids:?}");
        assert_eq!(members.living().len(), 0);
        process.wait().unwrap();
    }
}
