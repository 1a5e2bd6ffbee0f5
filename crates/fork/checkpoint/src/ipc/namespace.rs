//! IPC namespaces, and looking into another.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use farfork_sys::proc;
use rustix::thread::LinkNameSpaceType;

use crate::error::CheckpointError;
use crate::namespaces;
use crate::refuse::{Refusals, causes};
use crate::shadows;

/// Whether processes, which are in one namespace, are in another than farfork. Refuses one that
/// others are in, too: but for the init of a clone in a ghost, which has none of its objects.
pub fn is_own(pids: &[i32], refusals: &mut Refusals) -> Result<bool, CheckpointError> {
    let pid = pids[0];
    let theirs = name(pid).map_err(|_| CheckpointError::Proc { pid, what: "the namespaces" })?;
    if Some(&theirs) == name_of("self").ok().as_ref() {
        return Ok(false);
    }
    let init = namespaces::ghost_init(pid);
    let is_inside = |other: &i32| name(*other).is_ok_and(|other| other == theirs);
    let is_company = |other: &i32| {
        let is_known = pids.contains(other) || Some(*other) == init;
        !is_known && is_inside(other) && !shadows::is_shadow(*other)
    };
    if let Some(other) = proc::processes().find(is_company) {
        refusals.add(format!("process {other}"), causes::namespaces::IPC_COMPANY);
    }
    Ok(true)
}

/// Whether two processes are in one namespace.
pub fn is_same(pid: i32, other: i32) -> bool {
    matches!((name(pid), name(other)), (Ok(pid), Ok(other)) if pid == other)
}

fn name(pid: i32) -> io::Result<PathBuf> {
    name_of(&pid.to_string())
}

fn name_of(process: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/ipc"))
}

/// Runs `look` in the IPC namespace of process `pid`, in a new thread.
pub fn inside<T: Send + 'static>(
    pid: i32,
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if name(pid)? == name_of("self")? {
        return look();
    }
    let link = Path::new("/proc").join(pid.to_string()).join("ns/ipc");
    namespaces::inside(link, LinkNameSpaceType::InterProcessCommunication, look)
}
