//! Priorities. The node may refuse them; the user is warned then.
//!
//! The first thread sets them for all threads, so that every warning comes before the clone is
//! said to run.

use farfork_plan::{Op, What};

use super::arena::Arena;
use crate::model::{Member, Scheduling, Thread};

const SLOT_PROC: u8 = 248;
/// Bytes of `struct sched_attr`.
const ATTRIBUTES_BYTES: u64 = 48;
const IOPRIO_WHO_PROCESS: u64 = 1;
/// What every process has that has not asked for another: private, shared and huge anonymous
/// memory, and ELF headers.
const DEFAULT_COREDUMP_FILTER: u32 = 0x33;

/// Ops for all threads, which must exist; the caller must still have its rights.
pub fn threads(member: &Member, arena: &mut Arena) -> Vec<Op> {
    member.threads.iter().flat_map(|thread| one(thread, arena)).collect()
}

fn one(thread: &Thread, arena: &mut Arena) -> Vec<Op> {
    let own = thread.scheduling;
    let mut ops = Vec::new();
    if (Scheduling { io_priority: 0, ..own }) != Scheduling::default() {
        let nice = u64::from(own.nice as u32);
        let [runtime, deadline, period] = own.deadline_ns;
        let at = arena.words(&[
            ATTRIBUTES_BYTES | u64::from(own.policy) << 32,
            own.flags,
            nice | u64::from(own.priority) << 32,
            runtime,
            deadline,
            period,
        ]);
        let detail = arena.detail(&format!("{} of thread {}", words(&own), thread.tid));
        let args = [thread.tid.into(), at, 0];
        let op = Op::new(What::Scheduling, libc::SYS_sched_setattr as u32, &args);
        ops.push(op.about(detail).warns());
    }
    if own.io_priority != 0 {
        let detail = arena.detail(&format!("the I/O priority of thread {}", thread.tid));
        let args = [IOPRIO_WHO_PROCESS, thread.tid.into(), own.io_priority.into()];
        let op = Op::new(What::Scheduling, libc::SYS_ioprio_set as u32, &args);
        ops.push(op.about(detail).warns());
    }
    ops
}

fn words(own: &Scheduling) -> String {
    let Scheduling { policy, nice, priority, .. } = own;
    match *policy as i32 {
        libc::SCHED_FIFO => format!("policy SCHED_FIFO {priority}"),
        libc::SCHED_RR => format!("policy SCHED_RR {priority}"),
        libc::SCHED_BATCH => format!("policy SCHED_BATCH, nice value {nice}"),
        libc::SCHED_IDLE => format!("policy SCHED_IDLE, nice value {nice}"),
        libc::SCHED_OTHER => format!("nice value {nice}"),
        _ => format!("policy {policy}"),
    }
}

/// Ops for what only `/proc` sets.
pub fn process(member: &Member, arena: &mut Arena) -> Vec<Op> {
    let (score, filter) = (member.process.oom_score_adj, member.process.coredump_filter);
    let mut ops = Vec::new();
    if score != 0 {
        ops.extend(write("oom_score_adj", &score.to_string(), arena));
    }
    if filter != DEFAULT_COREDUMP_FILTER {
        ops.extend(write("coredump_filter", &format!("{filter:#x}"), arena));
    }
    ops
}

fn write(file: &str, text: &str, arena: &mut Arena) -> [Op; 3] {
    let detail = arena.detail(&format!("{file} {text}"));
    let path = arena.text(format!("/proc/self/{file}").as_bytes());
    let at = arena.put(text.as_bytes(), 1);
    let op = |nr: i64, args: &[u64]| Op::new(What::Attribute, nr as u32, args).about(detail);
    let slot = u64::from(SLOT_PROC);
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as u64;
    [
        op(libc::SYS_openat, &[libc::AT_FDCWD as i64 as u64, path, flags]).store(SLOT_PROC),
        op(libc::SYS_write, &[slot, at, text.len() as u64]).slot_arg(0).warns(),
        op(libc::SYS_close, &[slot]).slot_arg(0),
    ]
}
