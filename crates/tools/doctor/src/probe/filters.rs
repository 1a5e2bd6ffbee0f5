//! Seccomp and io_uring.

use super::raw::{answer_system_call, in_child, io_uring, listen_to_system_call};
use super::{Finding, Probe, setting, while_doing};
use crate::Group;
use farfork_sys::words;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "seccomp_user_notification",
        group: Group::Better,
        needed_for: "exact MADV_DONTNEED and mremap in clones that have a supervisor",
        advice: "use Linux 5.19 or later with CONFIG_SECCOMP_FILTER",
        look: seccomp_user_notification,
    },
    Probe {
        id: "io_uring",
        group: Group::Later,
        needed_for: "batched transfers to far memory; processes that hold a ring are refused",
        advice: "nothing, or set sysctl kernel.io_uring_disabled=0",
        look: io_uring_enabled,
    },
];

/// Answers a system call of a thread with a value that the kernel never returns.
fn seccomp_user_notification() -> Finding {
    const MADE_UP: i64 = 424_242;
    in_child(|| {
        let listener = listen_to_system_call(libc::SYS_getppid)
            .map_err(while_doing("installing a filter with a listener"))?;
        let supervisor = std::thread::Builder::new()
            .spawn(move || answer_system_call(&listener, MADE_UP))
            .map_err(while_doing("starting a thread"))?;
        let seen = i64::from(nix::unistd::getppid().as_raw());
        match supervisor.join() {
            Ok(answered) => answered.map_err(while_doing("answering a system call"))?,
            Err(_) => return Err("the supervisor's thread panicked".into()),
        }
        if seen == MADE_UP {
            Ok("answered a system call in a supervisor".into())
        } else {
            Err(format!("the caller got {seen}, the supervisor answered {MADE_UP}"))
        }
    })
}

fn io_uring_enabled() -> Finding {
    let held = setting("/proc/sys/kernel/io_uring_disabled")
        .map_or(String::new(), |value| format!(" (kernel.io_uring_disabled = {value})"));
    match io_uring() {
        Ok(()) => Ok(format!("created a ring{held}")),
        Err(error) => Err(format!("creating a ring: {}{held}", words::of(&error))),
    }
}
