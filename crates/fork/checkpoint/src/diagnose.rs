//! Why a thread cannot be stopped, from what `/proc` shows of it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use farfork_sys::frozen::FrozenGroup;
use farfork_sys::{kcmp, proc};

use crate::error::CheckpointError;
use farfork_sys::status::Status;

/// For [`CheckpointError::Frozen`]: the cgroup was frozen before the checkpoint.
pub const BEFORE: &str = "is frozen";
/// The cgroup was frozen during the checkpoint.
pub const MEANWHILE: &str = "was frozen while the process was being checkpointed";

/// Whether a thread is dead or a zombie.
pub fn has_ended(pid: i32, tid: i32) -> bool {
    Status::read(pid, tid).map_or(true, |status| matches!(status.state, Some('X' | 'Z') | None))
}

/// Refuses a process that is in a frozen cgroup.
pub fn refuse_frozen(pid: i32, when: &'static str) -> Result<(), CheckpointError> {
    match FrozenGroup::find(pid) {
        Some(group) => Err(CheckpointError::Frozen { pid, group: Box::new(group), when }),
        None => Ok(()),
    }
}

/// Refuses a thread in a frozen cgroup, of a process that a signal has stopped. In cgroup v1 an
/// attempt to stop it would block the tracer until the thaw.
pub fn refuse_frozen_thread(pid: i32, tid: i32) -> Result<(), CheckpointError> {
    match FrozenGroup::find_of_thread(pid, tid) {
        Some(group) => {
            Err(CheckpointError::Frozen { pid, group: Box::new(group), when: MEANWHILE })
        }
        None => Ok(()),
    }
}

/// Replaces an error that a frozen cgroup has caused by one that names the cgroup. To a tracer, a
/// frozen thread looks as if it did not stop, or did not exist.
pub fn explain_frozen(error: CheckpointError) -> CheckpointError {
    let pid = match &error {
        CheckpointError::DoesNotStop { pid, .. } | CheckpointError::Changed { pid, .. } => *pid,
        CheckpointError::Kernel { pid, source, .. }
            if source.raw_os_error() == Some(libc::ESRCH) =>
        {
            *pid
        }
        _ => return error,
    };
    refuse_frozen(pid, MEANWHILE).err().unwrap_or(error)
}

/// Refuses a thread that another farfork traces.
pub fn refuse_other_checkpoint(pid: i32, tracer: u32) -> Result<(), CheckpointError> {
    let name = proc::text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let program = |id: &str| fs::metadata(format!("/proc/{id}/exe")).ok();
    let is_same = match (program(&tracer.to_string()), program("self")) {
        (Some(its), Some(own)) => (its.dev(), its.ino()) == (own.dev(), own.ino()),
        _ => false,
    };
    if tracer != 0 && (is_same || name.trim() == "farfork") {
        return Err(CheckpointError::UnderWay { pid, tracer });
    }
    Ok(())
}

/// Why the kernel does not let farfork trace a thread of a process, and what to do.
pub fn tracing_error(pid: i32, tid: i32) -> CheckpointError {
    let tracer = Status::read(pid, tid).map_or(0, |status| status.tracer);
    let why = why_not_traced(pid, tracer);
    let other = |()| CheckpointError::NotPermitted { pid, why };
    refuse_other_checkpoint(pid, tracer).map_or_else(|error| error, other)
}

fn why_not_traced(pid: i32, tracer: u32) -> &'static str {
    let capabilities = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let may_trace = capabilities
        .is_ok_and(|effective| effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE));
    if is_kernel_thread(pid) {
        "it is a kernel thread; name a process that runs a program"
    } else if tracer != 0 {
        "a debugger traces it; detach the debugger"
    } else if may_trace {
        "it has capabilities that farfork lacks, or a security module forbids it; run farfork in \
         its user namespace or one above, and check the module's rules; if another checkpoint \
         of it has just ended, try again"
    } else {
        "farfork lacks CAP_SYS_PTRACE; run it as root, or as the owner of the process with \
         CAP_SYS_PTRACE, without a debugger attached"
    }
}

/// The kernel shows it by a flag in `/proc/PID/stat`.
fn is_kernel_thread(pid: i32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    /// Field 9 of proc(5), the state being field 3.
    const FLAGS: usize = 9 - 3;
    let stat = proc::text(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let flags = fields.split(' ').nth(FLAGS).and_then(|field| field.parse().ok());
    flags.is_some_and(|flags: u64| flags & PF_KTHREAD != 0)
}

/// Why a thread does not stop, for messages.
pub fn why_not_stopped(pid: i32, tid: i32) -> String {
    if let Some(child) = vfork_child(pid, tid) {
        return format!(
            "it waits in vfork for child {child}, which has neither exited nor executed a program"
        );
    }
    if let Some(what) = ring_thread(pid, tid) {
        return what.to_owned();
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

/// Threads that the kernel makes for rings of io_uring are among those of the process, and run no program.
fn ring_thread(pid: i32, tid: i32) -> Option<&'static str> {
    let name = proc::text(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    match name.trim() {
        name if name.starts_with("iou-sqp-") => Some(
            "it is the thread of the kernel that polls a ring of io_uring (SQPOLL); start the program by \
             `farfork run`, as on a kernel without io_uring",
        ),
        name if name.starts_with("iou-wrk-") => Some(
            "it is a thread of the kernel that works on requests of io_uring, or ends a few seconds after \
             the last one",
        ),
        _ => None,
    }
}

/// The child that runs in the memory of thread `tid`, which waits for it.
fn vfork_child(pid: i32, tid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).ok()?;
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.find(|child| kcmp::shares_memory(pid, *child).unwrap_or(false))
}
