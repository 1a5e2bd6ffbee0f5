//! What the clone's first thread does for the whole process, besides memory.

use farfork_plan::{Op, What, nr};

use super::arena::Arena;
use super::descriptors::DescriptorOps;
use super::place::Opener;
use super::{Subject, descriptors, place, scheduling};
use crate::model::{Member, PosixTimer};

/// Slot for the working directory; descriptors of the process are made later.
const SLOT_DIRECTORY: u8 = 249;

/// Compiles everything that the threads of the process share besides memory.
pub fn compile(subject: Subject<'_>, arena: &mut Arena) -> DescriptorOps {
    let member = subject.member;
    let mut ops = Vec::new();
    if !subject.model.is_tree() {
        ops.extend(leadership(member));
    }
    ops.extend(directory(member, arena));
    let descriptors = descriptors::ops(subject, arena);
    ops.extend(descriptors.early);
    ops.extend(signals(member, arena));
    ops.extend(attributes(member));
    ops.extend(scheduling::process(member, arena));
    let mut late = descriptors.late;
    late.extend(limits(member, arena)); // which forbid files, and numbers of descriptors
    DescriptorOps { early: ops, late }
}

fn leadership(member: &Member) -> Option<Op> {
    match member.process.pid {
        pid if pid == member.kinship.session => Some(call(What::Attribute, libc::SYS_setsid, &[])),
        pid if pid == member.kinship.group => {
            Some(call(What::Attribute, libc::SYS_setpgid, &[0, 0]))
        }
        _ => None,
    }
}

fn directory(member: &Member, arena: &mut Arena) -> Vec<Op> {
    let (cwd, identity) = (&member.process.cwd, &member.process.cwd_identity);
    let detail = arena.detail(&format!("working directory {}", cwd.display()));
    let flags = (libc::O_PATH | libc::O_DIRECTORY) as u64;
    let (mut ops, mut opener) = (Vec::new(), Opener::new(member, arena));
    opener.assume(&mut ops);
    let wanted = place::identity(identity, None, arena);
    let open = place::open(What::Directory, cwd, flags, wanted, arena);
    ops.push(open.store(SLOT_DIRECTORY).about(detail));
    // The parent may no longer have had the right to enter it.
    opener.resume(&mut ops);
    let on_it = |number| call(What::Directory, number, &[SLOT_DIRECTORY.into()]).slot_arg(0);
    ops.extend([on_it(libc::SYS_fchdir).about(detail), on_it(libc::SYS_close)]);
    ops.push(call(What::Directory, libc::SYS_umask, &[member.process.umask.into()]));
    ops
}

fn signals(member: &Member, arena: &mut Arena) -> Vec<Op> {
    let mut ops = Vec::new();
    for (signal, action) in &member.signals.actions {
        let at = arena.words(action);
        ops.push(call(What::Signal, libc::SYS_rt_sigaction, &[(*signal).into(), at, 0, 8]));
    }
    for info in &member.signals.pending {
        let signal = u64::from(u32::from_le_bytes([info[0], info[1], info[2], info[3]]));
        let at = arena.put(info, 8);
        let args = [member.process.pid.into(), signal, at];
        ops.push(call(What::Signal, libc::SYS_rt_sigqueueinfo, &args));
    }
    ops
}

/// Ops that start the timers; the threads they signal must exist.
pub fn timers(member: &Member, arena: &mut Arena) -> Vec<Op> {
    let mut ops = Vec::new();
    for (which, setting) in member.timers.interval.iter().enumerate() {
        if *setting != [0; 4] {
            let at = arena.words(setting);
            ops.push(call(What::Timer, libc::SYS_setitimer, &[which as u64, at, 0]));
        }
    }
    for timer in &member.timers.posix {
        ops.extend(posix_timer(timer, arena));
    }
    ops
}

fn posix_timer(timer: &PosixTimer, arena: &mut Arena) -> [Op; 2] {
    let mut event = vec![0u64; 8]; // struct sigevent
    event[0] = timer.value;
    event[1] = u64::from(timer.signal) | u64::from(timer.notify) << 32;
    event[2] = u64::from(timer.tid);
    let event = arena.words(&event);
    let setting = arena.words(&timer.setting);
    let id = u64::from(timer.id);
    [
        Op::new(What::Timer, nr::TIMER_CREATE, &[id, timer.clock as i64 as u64, event]),
        call(What::Timer, libc::SYS_timer_settime, &[id, 0, setting, 0]),
    ]
}

/// What a thread's change of ids would undo, and what would hinder the making of a clone.
pub fn joined(member: &Member) -> Vec<Op> {
    // 2 cannot be set, only inherited. 0 is the nearest: other users may not trace the clone either.
    let dumpable = u64::from(member.process.dumpable == 1);
    let mut ops =
        vec![call(What::Attribute, libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, dumpable])];
    let exec_gain = u64::from(member.process.refuses_exec_gain);
    if exec_gain != 0 {
        ops.push(call(What::Attribute, libc::SYS_prctl, &[PR_SET_MDWE, exec_gain, 0, 0, 0]));
    }
    ops
}

/// Stops the clone where the parent was stopped, until another process continues it.
pub fn stop(member: &Member) -> Vec<Op> {
    let args = [member.process.pid.into(), libc::SIGSTOP as u64];
    let stop = call(What::Signal, libc::SYS_kill, &args);
    if member.process.is_stopped { vec![stop] } else { Vec::new() }
}

fn attributes(member: &Member) -> Vec<Op> {
    let process = &member.process;
    let mut ops = Vec::new();
    if process.personality != 0 {
        ops.push(call(What::Attribute, libc::SYS_personality, &[process.personality.into()]));
    }
    if process.thp_disable != 0 {
        let args = [libc::PR_SET_THP_DISABLE as u64, 1, (process.thp_disable & !1).into(), 0, 0];
        ops.push(call(What::Attribute, libc::SYS_prctl, &args));
    }
    if process.merges_memory {
        ops.push(call(What::Attribute, libc::SYS_prctl, &[PR_SET_MEMORY_MERGE, 1, 0, 0, 0]));
    }
    if process.locks_future != 0 {
        ops.push(call(What::Attribute, libc::SYS_mlockall, &[process.locks_future.into()]));
    }
    if process.is_child_subreaper {
        let args = [libc::PR_SET_CHILD_SUBREAPER as u64, 1];
        ops.push(call(What::Attribute, libc::SYS_prctl, &args));
    }
    for command in [1u32, 2, 3, 4, 5, 6, 7].map(|bit| 1u64 << bit) {
        if u64::from(process.membarrier) & command != 0 {
            ops.push(call(What::Attribute, libc::SYS_membarrier, &[command]));
        }
    }
    ops
}

/// Linux 6.3.
const PR_SET_MDWE: u64 = 65;
/// Linux 6.4.
const PR_SET_MEMORY_MERGE: u64 = 67;

/// Limits above those of the node need CAP_SYS_RESOURCE, which root in a container may lack. The clone
/// then keeps the node's limits, and the user is warned.
fn limits(member: &Member, arena: &mut Arena) -> Vec<Op> {
    let limits = member.process.limits.iter().enumerate();
    let op = |(resource, (soft, hard)): (usize, &(u64, u64))| {
        let at = arena.words(&[*soft, *hard]);
        let detail = arena.detail(&format!("resource limit {}", LIMITS[resource.min(15)]));
        let args = [0, resource as u64, at, 0];
        call(What::Attribute, libc::SYS_prlimit64, &args).about(detail).warns()
    };
    limits.map(op).collect()
}

/// `RLIMIT_*` in their order.
const LIMITS: [&str; 16] = [
    "CPU",
    "FSIZE",
    "DATA",
    "STACK",
    "CORE",
    "RSS",
    "NPROC",
    "NOFILE",
    "MEMLOCK",
    "AS",
    "LOCKS",
    "SIGPENDING",
    "MSGQUEUE",
    "NICE",
    "RTPRIO",
    "RTTIME",
];

fn call(what: What, nr: libc::c_long, args: &[u64]) -> Op {
    Op::new(what, nr as u32, args)
}
