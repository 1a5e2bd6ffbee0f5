//! Namespaces of a process that its clones would not be in: they have those of their node.

use std::fs;
use std::path::PathBuf;

use crate::error::CheckpointError;
use crate::refuse::{Cause, Refusals, causes};

/// Namespaces that have to be those of this farfork, which the agents of its node share.
const OWN: [(&str, &Cause); 1] = [("user", causes::namespaces::USER)];

/// Refuses the namespaces of the process, or of one of its threads, that clones would leave.
pub fn refuse(pid: i32, tids: &[i32], refusals: &mut Refusals) -> Result<(), CheckpointError> {
    for (kind, cause) in OWN {
        let here = name(pid, &format!("/proc/self/ns/{kind}"))?;
        for tid in tids {
            if name(pid, &format!("/proc/{pid}/task/{tid}/ns/{kind}"))? != here {
                refusals.add(format!("{kind} namespace of thread {tid}"), cause);
                break; // nobody is helped by a line for each of them
            }
        }
    }
    Ok(())
}

/// What `/proc` calls a namespace, which is unique.
fn name(pid: i32, link: &str) -> Result<PathBuf, CheckpointError> {
    fs::read_link(link).map_err(|_| CheckpointError::Proc { pid, what: "the namespaces" })
}
