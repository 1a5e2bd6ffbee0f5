//! Descriptors without a name in any file system.

use super::error::{Capture, Stop, refuse};
use super::subject::Subject;
use super::table::Entry;
use super::{epoll, event, timer};

/// What is never carried: the start of the kernel's name for it, why, and what to do.
const REFUSED: [(&str, &str, &str); 13] = [
    ("inotify", "the kernel watches files for it", "close it before the checkpoint"),
    ("fanotify", "the kernel watches file systems for it", "close it before the checkpoint"),
    ("pidfd", "it stands for a process that a clone does not have", "close it, or keep the pid"),
    ("memfd", "it holds huge pages of hugetlbfs", "make it without MFD_HUGETLB"),
    ("io_uring", "the kernel works on its requests", "run with io_uring switched off"),
    ("userfaultfd", "it handles page faults of this process", "close it before the checkpoint"),
    ("perf_event", "it counts events of this process", "stop profiling before the checkpoint"),
    ("bpf", "it is a program or map of this kernel", "close it before the checkpoint"),
    ("kvm", "a virtual machine lives in this kernel", "stop the machine before the checkpoint"),
    ("seccomp", "it supervises system calls of a process", "close it before the checkpoint"),
    ("landlock", "it is a set of rules not yet in force", "apply and close it"),
    ("fscontext", "it is a mount in the making", "close it before the checkpoint"),
    ("dmabuf", "it is memory of a device", "close the device before the checkpoint"),
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
        _ => Err(refusal(name)),
    }
}

fn refusal(name: &str) -> Stop {
    if NAMESPACES.contains(&name) {
        return refuse("a namespace lives in this kernel", "close it before the checkpoint");
    }
    let known =
        REFUSED.iter().find(|(prefix, ..)| name.trim_start_matches('/').starts_with(prefix));
    match known {
        Some((_, reason, remedy)) => refuse(*reason, *remedy),
        None => refuse("farfork does not know what it holds", "close it before the checkpoint"),
    }
}
