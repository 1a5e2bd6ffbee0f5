//! What the processes of an image must have in common, and what each must have for itself.

use std::cmp::Ordering;
use std::fs;

use farfork_sys::kcmp::{self, Shareable};
use farfork_sys::proc;

use crate::error::{CheckpointError, doing};
use crate::refuse::{Cause, Refusals, causes};
use crate::tree::StoppedTree;

/// Namespaces of which there is one in an image, and their names. What a process alone may not have
/// either is refused where it is looked at by itself.
const NAMESPACES: [(&str, &str); 6] = [
    ("pid", "PID namespace"),
    ("user", "user namespace"),
    ("mnt", "mount namespace"),
    ("net", "network namespace"),
    ("ipc", "IPC namespace"),
    ("time", "time namespace"),
];

const APART: [(Shareable, &str, &Cause); 4] = [
    (Shareable::Memory, "memory", causes::process::SHARES_MEMORY),
    (Shareable::Descriptors, "descriptors", causes::process::SHARES_TABLE),
    (Shareable::Directories, "working directory", causes::process::SHARES_TABLE),
    (Shareable::Actions, "signal actions", causes::process::SHARES_TABLE),
];

/// Refuses members that live in other namespaces than the first, and those that share with each other
/// what only threads of one process can share in a clone.
pub fn check(tree: &StoppedTree, refusals: &mut Refusals) -> Result<(), CheckpointError> {
    let pids = tree.pids();
    let Some((root, others)) = pids.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Ok(());
    };
    for pid in others {
        refusals.about(*pid);
        let elsewhere =
            NAMESPACES.iter().filter(|(kind, _)| namespace(*pid, kind) != namespace(*root, kind));
        for (_, name) in elsewhere {
            refusals.add(*name, causes::process::OTHER_NAMESPACE);
        }
    }
    for (what, name, cause) in APART {
        for (pid, other) in sharing(&pids, what)? {
            refusals.about(pid);
            refusals.add(format!("{name} of process {other}"), cause);
        }
    }
    Ok(())
}

/// Processes outside in the memory of a member (`CLONE_VM` without `CLONE_THREAD`). The parent in a
/// vfork is not among the members: it cannot be stopped before the child has gone on. This takes a look at
/// all processes.
pub fn refuse_sharers(pids: &[i32], refusals: &mut Refusals) {
    refuse_found(&sharers(pids), refusals);
}

/// The pairs of a member and a process outside in its memory.
pub fn sharers(pids: &[i32]) -> Vec<(i32, i32)> {
    let others = proc::processes().filter(|other| !pids.contains(other));
    let shared = |other: i32| {
        let shares = move |pid: &i32| kcmp::shares_memory(*pid, other).unwrap_or(false);
        pids.iter().copied().filter(shares).map(move |pid| (pid, other))
    };
    others.flat_map(shared).collect()
}

/// Refuses what [`sharers`] has found.
pub fn refuse_found(sharers: &[(i32, i32)], refusals: &mut Refusals) {
    for (pid, other) in sharers {
        refusals.about(*pid);
        refusals.add(format!("process {other}"), causes::process::SHARES_MEMORY);
    }
}

fn namespace(pid: i32, name: &str) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{name}")).ok()
}

/// Pairs of processes that share `what`: neighbours in the kernel's own order.
fn sharing(pids: &[i32], what: Shareable) -> Result<Vec<(i32, i32)>, CheckpointError> {
    let mut failure = None;
    let mut order = |left: &i32, right: &i32| {
        kcmp::order(*left, *right, what).unwrap_or_else(|errno| {
            failure = Some((*left, errno));
            Ordering::Equal
        })
    };
    let mut sorted = pids.to_vec();
    sorted.sort_by(&mut order);
    let pairs = sorted.windows(2).filter(|pair| order(&pair[0], &pair[1]) == Ordering::Equal);
    let pairs = pairs.map(|pair| (pair[0].max(pair[1]), pair[0].min(pair[1]))).collect();
    match failure {
        None => Ok(pairs),
        Some((pid, errno)) => Err(doing(pid, "compare the tables (CONFIG_KCMP)")(errno.into())),
    }
}
