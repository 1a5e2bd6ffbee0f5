//! Descriptors without a name in any file system.

use farfork_image::model::OpenFile;

use super::error::{Capture, Stop, refuse};
use super::subject::Subject;
use super::table::Entry;
use super::{epoll, event, inotify, timer};
use crate::refuse::{Cause, causes};

/// What is never carried: the start of the kernel's name for it, and why.
const REFUSED: [(&str, &Cause); 17] = [
    ("fanotify", causes::descriptors::FANOTIFY),
    ("memfd", causes::descriptors::HUGE_MEMFD),
    ("io_uring", causes::descriptors::IO_URING),
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

/// The descriptor that the kernel calls `name`.
pub fn capture(name: &str, entry: &Entry, subject: &Subject) -> Capture {
    match name {
        "eventfd" => event::capture(entry, subject),
        "signalfd" => event::signals(entry, subject),
        "timerfd" => timer::capture(entry, subject),
        "eventpoll" => epoll::capture(entry, subject),
        "inotify" => inotify::capture(entry, subject),
        "pidfd" => process(entry, subject),
        _ => Err(refusal(name)),
    }
}

/// A pidfd, carried if it stands for the process itself.
fn process(entry: &Entry, subject: &Subject) -> Capture {
    let stands_for = entry.info.value("Pid").and_then(|pid| pid.parse::<i32>().ok());
    match stands_for {
        Some(pid) if pid == subject.pid => {
            Ok(OpenFile::ProcessHandle { member: 0, flags: entry.info.status_flags() })
        }
        _ => Err(refuse(causes::descriptors::PROCESS_HANDLE)),
    }
}

fn refusal(name: &str) -> Stop {
    if NAMESPACES.contains(&name) {
        return refuse(causes::descriptors::NAMESPACE);
    }
    let known = REFUSED.iter().find(|(prefix, _)| name.trim_start_matches('/').starts_with(prefix));
    match known {
        Some((_, cause)) => refuse(cause),
        None => refuse(causes::descriptors::UNKNOWN),
    }
}
