//! What each thread does to itself before it leaves for the parent's code.

use farfork_plan::{Op, Table, ThreadPlan, What};

use super::arena::Arena;
use super::filters::By;
use super::{Subject, credentials, filters, frame, process, scheduling, tree};
use crate::model::{Hardening, Thread};

const FS_BASE: usize = 21;
const GS_BASE: usize = 22;
const ARCH_SET_GS: u64 = 0x1001;
const DEFAULT_TIMER_SLACK_NS: u64 = 50_000;

/// Plans of all threads, the leader's first.
pub fn compile(subject: Subject<'_>, arena: &mut Arena) -> Vec<ThreadPlan> {
    let member = subject.member;
    let is_leader = |index| index == 0;
    let by = filters::by(&member.threads);
    let plan = |(index, thread): (usize, &Thread)| {
        let ops = ops(subject, thread, is_leader(index), arena);
        ThreadPlan {
            tid: thread.tid,
            confines_all: u32::from(is_leader(index) && by == By::First),
            fs_base: thread.registers[FS_BASE],
            frame: frame::put(thread, arena),
            ops: arena.ops(&ops),
            last_ops: match by {
                By::First if !is_leader(index) => Table::default(),
                by => {
                    let last = filters::ops(thread, by, arena);
                    arena.ops(&last)
                }
            },
        }
    };
    member.threads.iter().enumerate().map(plan).collect()
}

fn ops(subject: Subject<'_>, thread: &Thread, is_leader: bool, arena: &mut Arena) -> Vec<Op> {
    let member = subject.member;
    let mut ops = identity(thread, arena);
    if is_leader {
        // By now every thread that a timer may signal is there.
        ops.extend(process::timers(member, arena));
        ops.extend(scheduling::threads(member, arena));
    }
    ops.extend(pending(member.process.pid, thread, arena));
    ops.extend(credentials::ops(&thread.credentials, arena));
    if thread.no_new_privs {
        let args = [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0];
        ops.push(Op::new(What::Credentials, libc::SYS_prctl as u32, &args));
    }
    if is_leader && subject.model.is_tree() {
        ops.push(tree::follow_parent());
    } else {
        ops.extend(after_credentials(thread));
    }
    ops.extend(hardening(&thread.hardening, arena));
    ops
}

fn identity(thread: &Thread, arena: &mut Arena) -> Vec<Op> {
    let mut name = thread.comm.clone();
    name.push(0);
    let name = arena.put(&name, 1);
    let mut ops = vec![
        call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]),
        call(libc::SYS_set_tid_address, &[thread.clear_child_tid]),
        call(libc::SYS_set_robust_list, &[thread.robust_list.0, 24]),
    ];
    if thread.robust_list.0 == 0 {
        ops.pop();
    }
    let (address, length, signature, _) = thread.rseq;
    if address != 0 {
        ops.push(call(libc::SYS_rseq, &[address, length.into(), 0, signature.into()]));
    }
    if thread.registers[GS_BASE] != 0 {
        ops.push(call(libc::SYS_arch_prctl, &[ARCH_SET_GS, thread.registers[GS_BASE]]));
    }
    if thread.timer_slack_ns != DEFAULT_TIMER_SLACK_NS {
        ops.push(call(libc::SYS_prctl, &[libc::PR_SET_TIMERSLACK as u64, thread.timer_slack_ns]));
    }
    ops
}

fn pending(pid: u32, thread: &Thread, arena: &mut Arena) -> Vec<Op> {
    thread
        .pending
        .iter()
        .map(|info| {
            let signal = u64::from(u32::from_le_bytes([info[0], info[1], info[2], info[3]]));
            let info = arena.put(info, 8);
            let args = [pid.into(), thread.tid.into(), signal, info];
            Op::new(What::Signal, libc::SYS_rt_tgsigqueueinfo as u32, &args)
        })
        .collect()
}

/// Changing ids clears these attributes.
fn after_credentials(thread: &Thread) -> Option<Op> {
    let signal = thread.parent_death_signal;
    let args = [libc::PR_SET_PDEATHSIG as u64, signal.into()];
    (signal != 0).then(|| call(libc::SYS_prctl, &args))
}

/// A node that cannot do these starts no clone: it would be less than its parent had asked for.
fn hardening(wanted: &Hardening, arena: &mut Arena) -> Vec<Op> {
    let prctl = |args: &[u64]| call(libc::SYS_prctl, args);
    let mut ops = Vec::new();
    for (speculation, control) in &wanted.speculation {
        let detail = arena.detail(&format!("speculation {speculation}, to be set to {control}"));
        let args = [PR_SET_SPECULATION_CTRL, (*speculation).into(), (*control).into(), 0, 0];
        ops.push(prctl(&args).about(detail));
    }
    if wanted.hides_tsc {
        ops.push(prctl(&[libc::PR_SET_TSC as u64, libc::PR_TSC_SIGSEGV as u64]));
    }
    if wanted.hides_cpuid {
        let detail = arena.detail("cpuid, to be hidden");
        ops.push(call(libc::SYS_arch_prctl, &[ARCH_SET_CPUID, 0]).about(detail));
    }
    if let Some(policy) = wanted.memory_failure {
        let set = libc::PR_MCE_KILL_SET as u64;
        ops.push(prctl(&[libc::PR_MCE_KILL as u64, set, policy.into(), 0, 0]));
    }
    ops
}

const PR_SET_SPECULATION_CTRL: u64 = 53;
const ARCH_SET_CPUID: u64 = 0x1012;

fn call(nr: libc::c_long, args: &[u64]) -> Op {
    Op::new(What::Attribute, nr as u32, args)
}
