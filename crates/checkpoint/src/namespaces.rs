//! Namespaces of a process that its clones would not be in: they have those of their node.

use std::fs;
use std::path::PathBuf;

use farfork_sys::kcmp;

use crate::error::{CheckpointError, doing};
use crate::refuse::{Cause, Refusals, causes};

/// Namespaces that have to be those of this farfork, which the agents of its node share.
const OWN: [(&str, &Cause); 1] = [("uts", causes::namespaces::HOST_NAME)];

/// Namespaces that all threads have to share: what is looked at is that of the first.
const SHARED: [&str; 3] = ["mnt", "net", "ipc"];

/// Refuses the namespaces of the process, or of one of its threads, that clones would leave.
pub fn refuse(pid: i32, tids: &[i32], refusals: &mut Refusals) -> Result<(), CheckpointError> {
    for (kind, cause) in OWN {
        let here = name(pid, &format!("/proc/self/ns/{kind}"))?;
        for tid in tids {
            if of(pid, *tid, kind)? != here {
                refusals.add(format!("{kind} namespace of thread {tid}"), cause);
                break; // nobody is helped by a line for each of them
            }
        }
    }
    let first = SHARED.map(|kind| of(pid, pid, kind));
    for tid in tids {
        for (kind, first) in SHARED.iter().zip(&first) {
            if first.as_ref().ok() != of(pid, *tid, kind).as_ref().ok() {
                let object = format!("{kind} namespace of thread {tid}");
                refusals.add(object, causes::namespaces::OF_THREAD);
            }
        }
        refuse_own(pid, *tid, refusals)?;
    }
    Ok(())
}

/// Refuses what a thread has for itself, or for its children.
fn refuse_own(pid: i32, tid: i32, refusals: &mut Refusals) -> Result<(), CheckpointError> {
    // Before its first process is there, such a namespace has no name.
    if of(pid, tid, "pid_for_children").ok() != Some(of(pid, tid, "pid")?) {
        refusals.add(format!("thread {tid}"), causes::namespaces::PID_FOR_CHILDREN);
    }
    let shares = kcmp::shares_directories(pid, tid)
        .map_err(|errno| doing(pid, "compare the directories of threads (kcmp)")(errno.into()))?;
    if !shares {
        refusals.add(format!("directories of thread {tid}"), causes::threads::OWN_DIRECTORIES);
    }
    Ok(())
}

fn of(pid: i32, tid: i32, kind: &str) -> Result<PathBuf, CheckpointError> {
    name(pid, &format!("/proc/{pid}/task/{tid}/ns/{kind}"))
}

/// What `/proc` calls a namespace, which is unique.
fn name(pid: i32, link: &str) -> Result<PathBuf, CheckpointError> {
    fs::read_link(link).map_err(|_| CheckpointError::Proc { pid, what: "the namespaces" })
}
