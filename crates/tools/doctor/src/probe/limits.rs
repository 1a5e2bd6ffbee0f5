//! Limits of processes and open files.

use super::{Finding, Probe, setting};
use crate::Group;
use rustix::process::{Resource, getrlimit};

const ENOUGH_PIDS: u64 = 100_000;
const ENOUGH_FILES: u64 = 16_384;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "pid_max",
        group: Group::Better,
        needed_for: "tens of thousands of clones, each with its threads",
        advice: "sysctl kernel.pid_max=4194304",
        look: pid_max,
    },
    Probe {
        id: "open_files",
        group: Group::Better,
        needed_for: "an agent that serves many clones at once",
        advice: "ulimit -Hn 65536 as root, or LimitNOFILE= in the service",
        look: open_files,
    },
];

fn pid_max() -> Finding {
    let text = setting("/proc/sys/kernel/pid_max").ok_or("cannot read kernel.pid_max")?;
    match text.parse::<u64>() {
        Ok(most) if most >= ENOUGH_PIDS => Ok(format!("{most} process and thread ids")),
        _ => Err(format!("only {text} process and thread ids")),
    }
}

fn open_files() -> Finding {
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < ENOUGH_FILES => Err(format!("the hard limit is {most} open files")),
        Some(most) => Ok(format!("the hard limit is {most} open files")),
        None => Ok("no hard limit".into()),
    }
}
