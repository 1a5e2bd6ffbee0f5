//! What the clone's first thread does for the whole process, besides memory.

use std::os::unix::ffi::OsStrExt;

use farfork_plan::{Op, What, nr};

use super::arena::Arena;
use super::descriptors;
use crate::model::{Credentials, Leads, Model, PosixTimer};

/// Ops of the process and what they need from the restorer.
pub struct Compiled {
    /// In order.
    pub ops: Vec<Op>,
    /// First of a run of numbers that no descriptor of the parent has.
    pub spare_fd: u32,
    /// Length of that run.
    pub spare_count: u32,
}

/// Compiles everything that the threads of the process share besides memory.
pub fn compile(model: &Model, arena: &mut Arena) -> Compiled {
    let mut ops = Vec::new();
    ops.extend(leadership(model.process.leads));
    ops.extend(directory(model, arena));
    let descriptors = descriptors::ops(model, arena);
    ops.extend(descriptors.ops);
    ops.extend(signals(model, arena));
    ops.extend(attributes(model));
    ops.extend(limits(model, arena));
    let (spare_fd, spare_count) = (descriptors.spare_fd, descriptors.spare_count);
    Compiled { ops, spare_fd, spare_count }
}

fn leadership(leads: Leads) -> Option<Op> {
    match leads {
        Leads::Session => Some(call(What::Attribute, libc::SYS_setsid, &[])),
        Leads::Group => Some(call(What::Attribute, libc::SYS_setpgid, &[0, 0])),
        Leads::Nothing => None,
    }
}

fn directory(model: &Model, arena: &mut Arena) -> Vec<Op> {
    let cwd = &model.process.cwd;
    let path = arena.text(cwd.as_os_str().as_bytes());
    let detail = arena.detail(&format!("working directory {}", cwd.display()));
    vec![
        call(What::Directory, libc::SYS_chdir, &[path]).about(detail),
        call(What::Directory, libc::SYS_umask, &[model.process.umask.into()]),
    ]
}

fn signals(model: &Model, arena: &mut Arena) -> Vec<Op> {
    let mut ops = Vec::new();
    for (signal, action) in &model.signals.actions {
        let at = arena.words(action);
        ops.push(call(What::Signal, libc::SYS_rt_sigaction, &[(*signal).into(), at, 0, 8]));
    }
    for info in &model.signals.pending {
        let signal = u64::from(u32::from_le_bytes([info[0], info[1], info[2], info[3]]));
        let at = arena.put(info, 8);
        let args = [model.process.pid.into(), signal, at];
        ops.push(call(What::Signal, libc::SYS_rt_sigqueueinfo, &args));
    }
    ops
}

/// Ops that start the timers; the threads they signal must exist.
pub fn timers(model: &Model, arena: &mut Arena) -> Vec<Op> {
    let mut ops = Vec::new();
    for (which, setting) in model.timers.interval.iter().enumerate() {
        if *setting != [0; 4] {
            let at = arena.words(setting);
            ops.push(call(What::Timer, libc::SYS_setitimer, &[which as u64, at, 0]));
        }
    }
    for timer in &model.timers.posix {
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

fn attributes(model: &Model) -> Vec<Op> {
    let process = &model.process;
    let mut ops = Vec::new();
    if process.personality != 0 {
        ops.push(call(What::Attribute, libc::SYS_personality, &[process.personality.into()]));
    }
    if process.is_thp_disabled {
        let args = [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0];
        ops.push(call(What::Attribute, libc::SYS_prctl, &args));
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

/// Limits above those of the new node need a right that not even every root has; the clone then
/// keeps the node's.
fn limits(model: &Model, arena: &mut Arena) -> Vec<Op> {
    let limits = model.process.limits.iter().enumerate();
    let op = |(resource, (soft, hard)): (usize, &(u64, u64))| {
        let at = arena.words(&[*soft, *hard]);
        call(What::Attribute, libc::SYS_prlimit64, &[0, resource as u64, at, 0]).may_fail()
    };
    limits.map(op).collect()
}

/// Ops that give the calling thread `credentials`; none where they are the restorer's own.
pub fn credentials(credentials: &Credentials, arena: &mut Arena) -> Vec<Op> {
    let about = |nr, args: &[u64]| call(What::Credentials, nr, args);
    let prctl = libc::SYS_prctl;
    let mut ops: Vec<Op> = (0..=LAST_CAPABILITY)
        .filter(|bit| credentials.capabilities[BOUNDING] & (1 << bit) == 0)
        .map(|bit| about(prctl, &[libc::PR_CAPBSET_DROP as u64, bit]))
        .collect();
    if credentials.uids != [0; 4] || credentials.gids != [0; 4] || !credentials.groups.is_empty() {
        ops.push(about(prctl, &[libc::PR_SET_KEEPCAPS as u64, 1]));
        ops.extend(ids(credentials, arena));
    }
    ops.push(capability_set(credentials, arena));
    // The only one of the bits that a process without CAP_SETPCAP may have set.
    let keeps = u64::from(credentials.securebits & KEEP_CAPS != 0);
    ops.push(about(prctl, &[libc::PR_SET_KEEPCAPS as u64, keeps]));
    ops
}

fn ids(credentials: &Credentials, arena: &mut Arena) -> [Op; 5] {
    let about = |nr, args: &[u64]| call(What::Credentials, nr, args);
    let groups: Vec<u8> = credentials.groups.iter().flat_map(|g| g.to_le_bytes()).collect();
    let groups_at = arena.put(&groups, 8);
    let [uid, euid, suid, fsuid] = credentials.uids.map(u64::from);
    let [gid, egid, sgid, fsgid] = credentials.gids.map(u64::from);
    [
        about(libc::SYS_setgroups, &[credentials.groups.len() as u64, groups_at]),
        about(libc::SYS_setresgid, &[gid, egid, sgid]),
        about(libc::SYS_setfsgid, &[fsgid]),
        about(libc::SYS_setresuid, &[uid, euid, suid]),
        about(libc::SYS_setfsuid, &[fsuid]),
    ]
}

/// `SECBIT_KEEP_CAPS`.
const KEEP_CAPS: u32 = 1 << 4;
/// Index in [`Credentials::capabilities`].
const BOUNDING: usize = 3;
/// `CAP_CHECKPOINT_RESTORE`.
const LAST_CAPABILITY: u64 = 40;
const CAPABILITY_VERSION_3: u64 = 0x2008_0522;

fn capability_set(credentials: &Credentials, arena: &mut Arena) -> Op {
    let [inheritable, permitted, effective, ..] = credentials.capabilities;
    let header = arena.words(&[CAPABILITY_VERSION_3]);
    let low = |set: u64| set & 0xffff_ffff;
    let pack = |a: u64, b: u64| a | b << 32;
    let data = arena.words(&[
        pack(low(effective), low(permitted)),
        pack(low(inheritable), effective >> 32),
        pack(permitted >> 32, inheritable >> 32),
    ]);
    call(What::Credentials, libc::SYS_capset, &[header, data])
}

fn call(what: What, nr: libc::c_long, args: &[u64]) -> Op {
    Op::new(what, nr as u32, args)
}
