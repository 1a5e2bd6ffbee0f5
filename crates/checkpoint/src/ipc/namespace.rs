//! IPC namespaces, and looking into another.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use farfork_sys::proc;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::CheckpointError;
use crate::refuse::{Refusals, causes};

/// Whether processes, which are in one namespace, are in another than farfork. Refuses one that
/// others are in, too.
pub fn is_own(pids: &[i32], refusals: &mut Refusals) -> Result<bool, CheckpointError> {
    let pid = pids[0];
    let theirs = name(pid).map_err(|_| CheckpointError::Proc { pid, what: "the namespaces" })?;
    if Some(&theirs) == name_of("self").ok().as_ref() {
        return Ok(false);
    }
    let is_inside = |other: &i32| name(*other).is_ok_and(|other| other == theirs);
    if let Some(other) = proc::processes().find(|other| !pids.contains(other) && is_inside(other)) {
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

/// Does something in the IPC namespace of process `pid`: a thread of its own may enter it.
pub fn inside<T: Send + 'static>(
    pid: i32,
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if name(pid)? == name_of("self")? {
        return look();
    }
    let namespace = File::open(format!("/proc/{pid}/ns/ipc"))?;
    let entered = std::thread::spawn(move || {
        let kind = Some(LinkNameSpaceType::InterProcessCommunication);
        move_into_link_name_space(namespace.as_fd(), kind)?;
        look()
    });
    entered.join().unwrap_or_else(|_| Err(io::Error::other("a thread of farfork's panicked")))
}
