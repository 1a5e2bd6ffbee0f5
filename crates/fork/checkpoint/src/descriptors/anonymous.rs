//! Descriptors without a name in any file system.

use farfork_image::model::OpenFile;

use super::error::{CaptureError, CaptureResult, refuse};
use super::subject::Subject;
use super::table::Entry;
use super::watches::{fanotify, inotify};
use super::{epoll, event, ring, timer};
use crate::refuse::{Cause, causes};

/// What is never carried: the start of the kernel's name for it, and why.
const REFUSED: [(&str, &Cause); 15] = [
    ("memfd", causes::descriptors::HUGE_MEMFD),
    ("userfaultfd", causes::descriptors::USERFAULTFD),
    ("perf_event", causes::descriptors::PERF_EVENT),
    ("bpf", causes::descriptors::BPF),
    ("btf", causes::descriptors::BTF),
    ("kvm", causes::descriptors::VIRTUAL_MACHINE),
    ("guest_memfd", causes::descriptors::VIRTUAL_MACHINE),
    ("vfio", causes::descriptors::VFIO),
    ("iommufd", causes::descriptors::IOMMU),
    ("sync_file", causes::descriptors::SYNC_FILE),
    ("dmabuf", causes::descriptors::DMA_BUFFER),
    ("secretmem", causes::descriptors::SECRET),
    ("seccomp", causes::descriptors::SECCOMP),
    ("landlock", causes::descriptors::LANDLOCK),
    ("fscontext", causes::descriptors::MOUNT_CONTEXT),
];
const NAMESPACES: [&str; 10] = [
    "net",
    "mnt",
    "pid",
    "pid_for_children",
    "user",
    "uts",
    "ipc",
    "cgroup",
    "time",
    "time_for_children",
];

/// What the kernel calls `name`, behind `group`, descriptors of one or several processes.
pub fn capture(name: &str, group: &[&Entry], subject: &Subject) -> CaptureResult {
    let entry = group[0];
    match name {
        "eventfd" => event::capture(entry, subject),
        "signalfd" => event::signals(entry, subject),
        "timerfd" => timer::capture(entry, subject),
        "eventpoll" => epoll::capture(group, subject),
        "inotify" => inotify::capture(entry, subject),
        "fanotify" => fanotify::capture(entry, subject),
        "pidfd" => process(group, subject),
        "io_uring" => ring::capture(group, subject),
        _ => Err(refusal(name)),
    }
}

/// A pidfd, carried if it stands for one of the processes. Each process that has it opens its own;
/// one that several have must stand for the first of all, which is there before the others.
fn process(group: &[&Entry], subject: &Subject) -> CaptureResult {
    let info = &group[0].info;
    let pid = info.value("Pid").and_then(|pid| pid.parse::<i32>().ok());
    let Some(member) = pid.and_then(|pid| subject.context.ids.member(pid)) else {
        return Err(refuse(causes::descriptors::PROCESS_HANDLE));
    };
    if member != 0 && group.iter().any(|entry| entry.pid != group[0].pid) {
        return Err(refuse(causes::descriptors::PROCESS_HANDLE_SHARED));
    }
    Ok(OpenFile::ProcessHandle { member, flags: info.status_flags() })
}

fn refusal(name: &str) -> CaptureError {
    if NAMESPACES.contains(&name) {
        return refuse(causes::descriptors::NAMESPACE);
    }
    let known = REFUSED.iter().find(|(prefix, _)| name.trim_start_matches('/').starts_with(prefix));
    match known {
        Some((_, cause)) => refuse(cause),
        None => refuse(causes::descriptors::UNKNOWN),
    }
}
