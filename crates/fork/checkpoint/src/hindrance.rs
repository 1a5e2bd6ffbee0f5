//! Why a thread cannot be stopped, from what `/proc` tells of it.

use std::fs;

use farfork_sys::{kcmp, proc};

use crate::status::Status;

/// Whether a thread has ended, to the last bit or all but its number.
pub fn has_ended(pid: i32, tid: i32) -> bool {
    Status::read(pid, tid).map_or(true, |status| matches!(status.state, Some('X' | 'Z') | None))
}

/// Why the kernel does not let farfork trace a process, and what to do.
pub fn of_tracing(pid: i32) -> &'static str {
    let capabilities = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let may_trace = capabilities
        .is_ok_and(|effective| effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE));
    if is_kernel_thread(pid) {
        "it is a thread of the kernel: name a process that runs a program"
    } else if may_trace {
        "it has rights that farfork has not, or a security module of the kernel keeps it apart: \
         run farfork in its user namespace or one above, and look at the module's rules"
    } else {
        "run as root or as its owner with CAP_SYS_PTRACE, and make sure that no debugger holds it"
    }
}

/// Where the kernel says so, by a flag in `/proc/PID/stat`.
fn is_kernel_thread(pid: i32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    /// Field 9 of proc(5), the state being field 3.
    const FLAGS: usize = 9 - 3;
    let stat = proc::text(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let flags = fields.split(' ').nth(FLAGS).and_then(|field| field.parse().ok());
    flags.is_some_and(|flags: u64| flags & PF_KTHREAD != 0)
}

/// What a thread is at that does not stop, in words.
pub fn of_stopping(pid: i32, tid: i32) -> String {
    if let Some(child) = vfork_child(pid, tid) {
        return format!(
            "it waits in vfork for child {child}, which has neither ended nor executed a program"
        );
    }
    let state = Status::read(pid, tid).ok().and_then(|status| status.state);
    let sleeps = match state {
        Some('D') => "it sleeps in the kernel and cannot be interrupted".to_owned(),
        Some(state) => format!("its state is {state}"),
        None => "its state is not known".to_owned(),
    };
    match fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")) {
        Ok(place) if !["", "0"].contains(&place.trim()) => format!("{sleeps} ({})", place.trim()),
        _ => sleeps,
    }
}

/// The child that runs in the memory of thread `tid`, which waits for it.
fn vfork_child(pid: i32, tid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).ok()?;
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.find(|child| kcmp::shares_memory(pid, *child).unwrap_or(false))
}
