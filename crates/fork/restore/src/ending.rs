//! The end of a clone that was not to be, or not to be any more.

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
    found.retain(|pid| !has_ended(*pid));
    found
}

fn has_ended(pid: i32) -> bool {
    matches!(proc::state(pid), None | Some('Z' | 'X'))
}

/// All that descends from a clone without a PID namespace, with whatever parents and programs: the mount
/// namespace that its init was forked into is that of nobody else. It has left who has made another
/// for itself, and is found by its ancestors as long as they live.
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
    pub fn of(pid: i32) -> io::Result<Members> {
        let namespace = File::open(namespace_of(pid))?;
        let id = id_of(&namespace.metadata()?);
        match fs::metadata(namespace_of(std::process::id() as i32)).map(|own| id_of(&own))? {
            own if own == id => Err(io::ErrorKind::InvalidInput.into()),
            _ => Ok(Members { _namespace: namespace, id }),
        }
    }

    /// Kills them all, and waits until they have ended. Only what is at work in the kernel takes longer
    /// than a moment; it is not waited for for ever.
    pub fn end(&self) {
        let begun = Instant::now();
        while self.kill() > 0 && begun.elapsed() < PATIENCE {
            thread::sleep(PAUSE);
        }
    }

    /// Kills who is there, and tells how many. Nobody who was killed forks any more, so that in the end
    /// nobody is left.
    fn kill(&self) -> usize {
        // All are known before the first is killed, whose children then have another parent.
        let living = self.living();
        let kill = |process: &&OwnedFd| pidfd::send_signal(process, Signal::SIGKILL as i32).is_ok();
        living.iter().filter(kill).count()
    }

    fn living(&self) -> Vec<OwnedFd> {
        let (mut pids, mut processes) = (Vec::new(), Vec::new());
        let mut add = |pids: &mut Vec<i32>, pid: i32, is_it: &dyn Fn() -> bool| {
            // In this order: whoever has the pid by then is looked at, and nobody else is killed.
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

    /// Whoever has ended has no namespace any more.
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
        let error = Members::of(std::process::id() as i32).unwrap_err();
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
        let members = Members::of(process.id() as i32).unwrap();
        assert_eq!(members.living().len(), 3);
        members.end();
        assert!(pids.iter().all(|pid| has_ended(*pid)), "{pids:?}");
        assert_eq!(members.living().len(), 0);
        process.wait().unwrap();
    }
}
