//! Descriptors without a name in any file system.

use farfork_image::model::OpenFile;

use super::error::{Capture, Stop, refuse};
use super::subject::Subject;
use super::table::Entry;
use super::{epoll, event, inotify, timer};

/// What is never carried: the start of the kernel's name for it, why, and what to do.
const REFUSED: [(&str, &str, &str); 17] = [
    ("fanotify", "others may wait for its answers", "close it, or watch by inotify"),
    ("memfd", "it holds huge pages of hugetlbfs", "make it without MFD_HUGETLB"),
    (
        "io_uring",
        "the kernel works on its requests, and clones may not make rings",
        "run with io_uring switched off, as by UV_USE_IO_URING=0 for Node.js",
    ),
    ("userfaultfd", "it handles page faults of this process", "close it before the checkpoint"),
    ("perf_event", "it counts events of this process", "stop profiling before the checkpoint"),
    ("bpf", "it is a program or map of this kernel", "close it before the checkpoint"),
    ("btf", "it describes types of this kernel", "close it before the checkpoint"),
    ("kvm", "a virtual machine lives in this kernel", "stop the machine before the checkpoint"),
    ("guest_memfd", "a virtual machine lives in this kernel", "stop the machine before"),
    ("vfio", "it is a device given to this process", "close the device before the checkpoint"),
    ("iommufd", "it maps memory for devices", "close the device before the checkpoint"),
    ("sync_file", "it waits for a device", "close the device before the checkpoint"),
    ("dmabuf", "it is memory of a device", "close the device before the checkpoint"),
    ("secretmem", "nobody but the process can read it", "close it before the checkpoint"),
    ("seccomp", "it supervises system calls of a process", "close it before the checkpoint"),
    ("landlock", "it is a set of rules not yet in force", "apply and close it"),
    ("fscontext", "it is a mount in the making", "finish the mount before the checkpoint"),
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
            Ok(OpenFile::ProcessHandle { flags: entry.info.status_flags() })
        }
        _ => Err(refuse(
            "it stands for a process or thread that a clone does not have",
            "close it before the checkpoint, and open it again by the pid",
        )),
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
