//! Namespaces of a process that its clones would not be in: they have those of their node.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use farfork_sys::kcmp;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{CheckpointError, doing};
use crate::refuse::{Refusals, causes};

/// Namespaces that all threads have to share: what is looked at is that of the first.
const SHARED: [&str; 3] = ["mnt", "net", "ipc"];

/// Refuses the namespaces of the process, or of one of its threads, that clones would leave.
pub fn refuse(pid: i32, tids: &[i32], refusals: &mut Refusals) -> Result<(), CheckpointError> {
    let here = name(pid, "/proc/self/ns/uts")?;
    for tid in tids {
        if of(pid, *tid, "uts")? != here && !is_called_alike(&format!("/proc/{pid}/task/{tid}")) {
            refusals.add(format!("uts namespace of thread {tid}"), causes::namespaces::HOST_NAME);
            break; // nobody is helped by a line for each of them
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

/// Whether the host has the same names for a thread, which has a directory in `/proc`, as for farfork:
/// so it is in a container that was given none.
fn is_called_alike(thread: &str) -> bool {
    let names = || {
        let names = rustix::system::uname();
        [names.nodename(), names.domainname()].map(|name| name.to_bytes().to_vec())
    };
    let link = PathBuf::from(thread).join("ns/uts");
    let theirs = inside(link, LinkNameSpaceType::HostNameAndNISDomainName, move || Ok(names()));
    theirs.is_ok_and(|theirs| theirs == names())
}

/// Does something in the namespace that `link` leads to: a thread of its own may enter it.
pub fn inside<T: Send + 'static>(
    link: PathBuf,
    kind: LinkNameSpaceType,
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let namespace = File::open(link)?;
    let entered = std::thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(kind))?;
        look()
    });
    entered.join().unwrap_or_else(|_| Err(io::Error::other("a thread of farfork's panicked")))
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
