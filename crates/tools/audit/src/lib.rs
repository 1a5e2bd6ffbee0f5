//! Compares a clone with its parent in everything the kernel shows of both from outside.
//!
//! It has readers of its own and shares no code with the checkpoint, so that what the checkpoint does not
//! know of is found. Both processes have to wait, in the same system call, while it reads.
//!
//! ```text
//!  /proc/PID  process threads descriptors sockets memory ─► Facts ─┐
//!                                                                  ├─► differences ─ accepted ─► report
//!  /proc/CLONE  the same                                 ─► Facts ─┘
//! ```
//! What the kernel shows of no process from outside stands in [`UNSEEN`].

mod accepted;
mod descriptors;
mod facts;
mod memory;
mod process;
mod sockets;
mod threads;

use std::io;

pub use accepted::{ACCEPTED, Accepted};
pub use facts::{Difference, Facts};

/// What no reader of this crate can see.
pub const UNSEEN: &[&str] = &[
    "registers of threads that are not in a system call, and their extended state",
    "bytes in memory",
    "interval timers (setitimer), robust lists of other users, restartable sequences",
    "LDT entries, keyrings, membarrier registrations",
    "prctl values that /proc/PID/status does not have",
    "what a PSI trigger waits for",
    "messages behind an empty one in a socket of packets",
];

/// Everything the kernel shows of a process.
///
/// # Errors
/// The process has ended, or its files in `/proc` cannot be read.
pub fn facts(pid: i32) -> io::Result<Facts> {
    let mut facts = Facts::default();
    if process::read_stat(pid, &mut facts)? {
        facts.add("state", "zombie");
        return Ok(facts);
    }
    process::read(pid, &mut facts)?;
    threads::read(pid, &mut facts)?;
    descriptors::read(pid, &mut facts)?;
    memory::read(pid, &mut facts)?;
    Ok(facts)
}

/// In what a clone differs from its parent, except for [what is meant to](ACCEPTED).
///
/// # Errors
/// One of them has ended, or its files in `/proc` cannot be read.
pub fn compare(parent: i32, clone: i32) -> io::Result<Vec<Difference>> {
    let (parent, clone) = (facts(parent)?, facts(clone)?);
    let mut differences = facts::differences(&parent, &clone);
    differences.retain(|difference| !accepted::is_accepted(difference, (&parent, &clone)));
    Ok(differences)
}

/// In what a process differs from what it was, as [`facts`] saw it.
///
/// # Errors
/// It has ended, or its files in `/proc` cannot be read.
pub fn changes(pid: i32, before: &Facts) -> io::Result<Vec<Difference>> {
    let now = facts(pid)?;
    let mut differences = facts::differences(before, &now);
    differences.retain(|difference| !accepted::is_accepted(difference, (before, &now)));
    Ok(differences)
}

/// The same for all processes that descend from the two, by the pids that they have in their own namespace.
///
/// # Errors
/// One of them has ended, or its files in `/proc` cannot be read.
pub fn compare_trees(parent: i32, clone: i32) -> io::Result<Vec<Difference>> {
    let (parents, clones) = (process::family(parent), process::family(clone));
    let mut differences = Vec::new();
    let mut inner: Vec<i32> = parents.keys().chain(clones.keys()).copied().collect();
    inner.sort_unstable();
    inner.dedup();
    for pid in inner {
        let name = format!("process {pid}");
        match (parents.get(&pid), clones.get(&pid)) {
            (Some(parent), Some(clone)) => {
                let found = compare(*parent, *clone)?.into_iter();
                differences.extend(
                    found.map(|it| Difference { fact: format!("{name}/{}", it.fact), ..it }),
                );
            }
            (parent, clone) => {
                let shown = |pid: Option<&i32>| pid.map(|pid| format!("pid {pid}"));
                let (parent, clone) = (shown(parent), shown(clone));
                differences.push(Difference { fact: name, parent, clone });
            }
        }
    }
    Ok(differences)
}
