//! Namespaces, and chosen thread ids in them.

use super::raw::{clone_with_tid, in_child};
use super::users::with_rights;
use super::{Finding, Probe, while_doing};
use crate::Group;
use nix::sched::{CloneFlags, unshare};
use rustix::time::{ClockId, clock_gettime};

const AS_ROOT: &str = "run as root; in a container, allow unshare in the seccomp profile";
const NEW_TIME: CloneFlags = CloneFlags::from_bits_retain(libc::CLONE_NEWTIME);

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "pid_namespace",
        group: Group::Required,
        needed_for: "giving clones the process ids of their parent",
        advice: AS_ROOT,
        look: || with_rights(pid_namespace),
    },
    Probe {
        id: "clone3_set_tid",
        group: Group::Required,
        needed_for: "giving threads the ids that glibc caches",
        advice: AS_ROOT,
        look: || with_rights(clone3_set_tid),
    },
    Probe {
        id: "mount_namespace",
        group: Group::Required,
        needed_for: "a /proc of its own for each PID namespace",
        advice: AS_ROOT,
        look: || with_rights(|| in_child(|| enter(CloneFlags::CLONE_NEWNS, "mount"))),
    },
    Probe {
        id: "network_namespace",
        group: Group::Better,
        needed_for: "a network of its own for each container",
        advice: AS_ROOT,
        look: || in_child(|| enter(CloneFlags::CLONE_NEWNET, "network")),
    },
    Probe {
        id: "time_namespace",
        group: Group::Better,
        needed_for: "a monotonic clock that continues from the parent's, on any node",
        advice: "use a kernel with CONFIG_TIME_NS; without it CLOCK_MONOTONIC may jump in clones",
        look: time_namespace,
    },
];

fn enter(namespace: CloneFlags, name: &str) -> Finding {
    unshare(namespace).map_err(while_doing(&format!("creating a {name} namespace")))?;
    Ok(format!("created a {name} namespace"))
}

/// Runs `work` as the first process of a new PID namespace.
fn in_pid_namespace(work: fn() -> Finding) -> Finding {
    in_child(|| {
        enter(CloneFlags::CLONE_NEWPID, "PID")?;
        in_child(work)
    })
}

fn pid_namespace() -> Finding {
    in_pid_namespace(|| match std::process::id() {
        1 => Ok("created a PID namespace and ran its pid 1".into()),
        other => Err(format!("the first process of a new PID namespace has pid {other}")),
    })
}

fn clone3_set_tid() -> Finding {
    const TID: i32 = 4242;
    in_pid_namespace(|| {
        clone_with_tid(TID).map_err(while_doing("starting a process with a chosen id"))?;
        Ok(format!("started a process with id {TID} in a new PID namespace"))
    })
}

fn time_namespace() -> Finding {
    const AHEAD_SECONDS: i64 = 3600;
    in_child(|| {
        enter(NEW_TIME, "time")?;
        std::fs::write("/proc/self/timens_offsets", format!("monotonic {AHEAD_SECONDS} 0"))
            .map_err(while_doing("setting the offset of its clock"))?;
        let before = clock_gettime(ClockId::Monotonic).tv_sec;
        in_child(|| match clock_gettime(ClockId::Monotonic).tv_sec - before {
            AHEAD_SECONDS.. => Ok("set a child's monotonic clock ahead".into()),
            _ => Err("the clock of a new time namespace was not set".into()),
        })
    })
}
