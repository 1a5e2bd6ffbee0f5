//! What happens to machines.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::counters::Counters;
use crate::handover::HandOverError;

/// Something that a user may want to know. `pid` is that of the monitor, if it can be seen from here.
#[derive(Debug)]
pub enum Event {
    /// Monitors can connect.
    Listening {
        /// Where.
        path: PathBuf,
    },
    /// A machine is served.
    Started {
        /// Its number.
        machine: u64,
        /// The monitor.
        pid: Option<i32>,
        /// Bytes of its regions.
        bytes: u64,
    },
    /// The pages that earlier machines needed are there: a guest that is resumed now does not wait for them.
    Filled {
        /// Its number.
        machine: u64,
        /// The monitor.
        pid: Option<i32>,
        /// How many there are; not counted are those that a server filled that was killed.
        pages: u64,
        /// Since the machine was handed over.
        took: Duration,
    },
    /// Other pages are hot than before: later machines get these.
    Adapted {
        /// How many are hot now.
        pages: u64,
        /// How many were, and are not any more.
        forgotten: u64,
    },
    /// A machine has ended.
    Ended {
        /// Its number.
        machine: u64,
        /// The monitor.
        pid: Option<i32>,
        /// What was done for it.
        counters: Counters,
    },
    /// A monitor handed over what cannot be served.
    Refused {
        /// The monitor.
        pid: Option<i32>,
        /// The reason.
        why: HandOverError,
        /// Whether there is a userfaultfd, so that the guest's first access ends in SIGBUS.
        is_stopped: bool,
    },
    /// A machine could not be served any more. Its monitor was killed.
    Failed {
        /// Its number.
        machine: u64,
        /// The monitor.
        pid: Option<i32>,
        /// The reason.
        why: String,
    },
    /// The server has died, and another serves the machines.
    Replaced {
        /// How it died.
        status: Option<ExitStatus>,
        /// Machines.
        machines: usize,
        /// From the moment that its death was seen to that at which the next had all machines.
        took: Duration,
    },
    /// A signal came: no new machines are accepted.
    Stopping {
        /// Machines that are left.
        machines: usize,
    },
    /// The monitor of a machine was killed.
    Killed {
        /// Its number.
        machine: u64,
        /// The monitor.
        pid: Option<i32>,
        /// Whether it was; it may have ended before.
        is_killed: bool,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let monitor =
            |pid: &Option<i32>| pid.map_or("unknown pid".to_owned(), |pid| format!("pid {pid}"));
        match self {
            Event::Listening { path } => write!(f, "listening at {}", path.display()),
            Event::Started { machine, pid, bytes } => {
                write!(f, "machine {machine} ({}) started: {} MiB", monitor(pid), bytes >> 20)
            }
            Event::Filled { machine, pid, pages, took } => {
                let (monitor, took) = (monitor(pid), took.as_secs_f64() * 1e3);
                write!(f, "machine {machine} ({monitor}) is filled: {pages} pages in {took:.1} ms")
            }
            Event::Adapted { pages, forgotten } => {
                write!(f, "{pages} pages are hot now; {forgotten} are not any more")
            }
            Event::Ended { machine, pid, counters } => {
                write!(f, "machine {machine} ({}) ended: {counters}", monitor(pid))
            }
            Event::Refused { pid, why, is_stopped } => {
                write!(f, "refused a machine of {}: {why}", monitor(pid))?;
                match is_stopped {
                    true => write!(f, "; its first access to its memory ends in SIGBUS"),
                    false => Ok(()),
                }
            }
            Event::Failed { machine, pid, why } => {
                let monitor = monitor(pid);
                write!(
                    f,
                    "machine {machine} ({monitor}) cannot be served: {why}; killed its monitor"
                )
            }
            Event::Replaced { status, machines, took } => {
                let status =
                    status.map_or("unknown status".to_owned(), |status| status.to_string());
                let took = took.as_secs_f64() * 1e3;
                write!(
                    f,
                    "the server died ({status}); another took {machines} machines after {took:.1} ms"
                )
            }
            Event::Stopping { machines } => {
                write!(f, "waiting for {machines} machines to end; interrupt again to kill them")
            }
            Event::Killed { machine, pid, is_killed } => {
                let what = if *is_killed { "killed" } else { "could not kill" };
                write!(f, "{what} the monitor of machine {machine} ({})", monitor(pid))
            }
        }
    }
}
