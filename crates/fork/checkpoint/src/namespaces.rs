//! Namespaces of a process that its clones would not be in: they have those of their node.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use farfork_plan::window;
use farfork_sys::status::Status;
use farfork_sys::{kcmp, proc};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{CheckpointError, doing};
use crate::refuse::{Refusals, causes};
use crate::stat::{self, Stat};

/// Namespaces that all threads have to share: what is looked at is that of the first.
const SHARED: [&str; 3] = ["mnt", "net", "ipc"];

/// Refuses the namespaces of the process, or of one of its threads, that clones would leave.
pub fn refuse(pid: i32, tids: &[i32], refusals: &mut Refusals) -> Result<(), CheckpointError> {
    let here = name(pid, "/proc/self/ns/uts")?;
    for tid in tids {
        let theirs = of(pid, *tid, "uts")?;
        let thread = format!("/proc/{pid}/task/{tid}");
        if theirs != here && !(is_ghosts(pid, &theirs) && is_called_alike(&thread)) {
            refusals.add(format!("uts namespace of thread {tid}"), causes::namespaces::HOST_NAME);
            break; // one line is enough for all of them
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

/// Whether the UTS namespace that process `pid` is in is that of its ghost: the process did not make it,
/// to change the names of the host for itself.
fn is_ghosts(pid: i32, uts: &Path) -> bool {
    ghost_init(pid).is_some_and(|init| of(init, init, "uts").is_ok_and(|own| own == uts))
}

/// Whether a process is in a ghost, and in its mount namespace.
pub fn has_mounts_of_ghost(pid: i32) -> bool {
    let namespace = |pid| of(pid, pid, "mnt").ok();
    ghost_init(pid)
        .is_some_and(|init| namespace(init).is_some_and(|its| Some(its) == namespace(pid)))
}

/// The init of the ghost in which `pid` is a clone, or descends from one: the nearest process above
/// it that is the first of a PID namespace and one of farfork's.
pub fn ghost_init(pid: i32) -> Option<i32> {
    let parent = |pid: &i32| {
        let parent = Stat::read(*pid).ok()?.field(stat::PARENT);
        i32::try_from(parent).ok().filter(|parent| *parent > 0)
    };
    let is_first = |pid: i32| Status::read(pid, pid).is_ok_and(|status| status.innermost_pid == 1);
    std::iter::successors(parent(&pid), parent).find(|pid| is_first(*pid) && is_farforks(*pid))
}

/// Whether a process is one of farfork's own, or a clone: something is mapped in the window.
fn is_farforks(pid: i32) -> bool {
    let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().any(|line| {
        let start = line.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok());
        start.is_some_and(|start| (window::BASE..window::END).contains(&start))
    })
}

/// Whether the host has the same names for a thread, which has a directory in `/proc`, as for farfork.
fn is_called_alike(thread: &str) -> bool {
    let names = || {
        let names = rustix::system::uname();
        [names.nodename(), names.domainname()].map(|name| name.to_bytes().to_vec())
    };
    let link = PathBuf::from(thread).join("ns/uts");
    let theirs = inside(link, LinkNameSpaceType::HostNameAndNISDomainName, move || Ok(names()));
    theirs.is_ok_and(|theirs| theirs == names())
}

/// Runs `look` in the namespace that `link` leads to, in a new thread, since a thread that enters a
/// namespace cannot always leave it.
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
