//! What belongs to each thread.

use std::fs;

use farfork_image::model::{Credentials, Hardening, Scheduling, Signals, Thread};
use farfork_plan::window;
use farfork_sys::{ptrace, sched, xstate};

use crate::error::{CheckpointError, doing};
use crate::filters;
use crate::hardening;
use crate::inject::{Injector, RESTARTS, RemoteThread};
use crate::kernel_state;
use crate::refuse::{Refusals, causes};
use crate::stopped::StoppedProcess;
use farfork_sys::status::Status;

const PR_GET_TID_ADDRESS: u64 = 40;
/// Code segment of 64-bit programs.
const CODE_64: u64 = 0x33;

const EINTR: u64 = -4i64 as u64;
/// Restarted after a handler with `SA_RESTART`.
const ERESTARTSYS: i64 = -512;
/// Restarted after any handler.
const ERESTARTNOINTR: i64 = -513;

/// Collects a stopped thread; `tid` is its id in this PID namespace. A clone is under
/// `own_filters` of farfork's own, which are made anew.
pub fn collect(
    injector: &Injector<'_>,
    tid: i32,
    signals: &Signals,
    own_filters: u32,
    refusals: &mut Refusals,
) -> Result<Thread, CheckpointError> {
    let pid = injector.pid();
    let kernel = |what| doing(pid, what);
    let registers = injector.registers(tid)?;
    let area = ptrace::xstate(tid).map_err(kernel("read the vector registers"))?;
    let rseq = ptrace::rseq_configuration(tid).unwrap_or_default();
    let pending =
        ptrace::pending_signals(tid, false).map_err(kernel("read the pending signals"))?;
    let mask = ptrace::signal_mask(tid).map_err(kernel("read the signal mask"))?;
    let status = Status::read(pid, tid)?;
    check(&status, &area, tid, refusals);
    let thread = injector.thread(tid)?;
    let asked = ask(injector, &thread)?;
    let object = format!("thread {tid} ({})", status.name);
    kernel_state::check_thread(&thread, &object, refusals)?;
    drop(thread);
    let handler_restarts = about_to_handle(&status, mask, signals);
    Ok(Thread {
        tid: status.innermost_tid,
        comm: fs::read(format!("/proc/{pid}/task/{tid}/comm"))
            .map(|name| name.strip_suffix(b"\n").unwrap_or(&name).to_vec())
            .unwrap_or_default(),
        registers: resumable(&registers, handler_restarts),
        xstate: area,
        signal_mask: mask,
        alternate_stack: asked.alternate_stack,
        pending,
        clear_child_tid: asked.clear_child_tid,
        robust_list: ptrace::robust_list(tid).map_err(kernel("read the robust list"))?,
        rseq: (rseq.address, rseq.size, rseq.signature, rseq.flags),
        parent_death_signal: asked.parent_death_signal,
        timer_slack_ns: asked.timer_slack_ns,
        no_new_privs: status.no_new_privs,
        credentials: credentials(&status, asked.securebits),
        filters: filters::collect(tid, &status, own_filters, refusals)?,
        hardening: asked.hardening,
        scheduling: scheduling(tid).map_err(kernel("read the priorities"))?,
    })
}

/// Whether a thread runs the restorer's code instead of its own.
pub fn is_any_in_window(stopped: &StoppedProcess) -> Result<bool, CheckpointError> {
    for tid in stopped.tids() {
        let registers =
            ptrace::registers(*tid).map_err(doing(stopped.pid(), "read the registers"))?;
        if (window::BASE..window::END).contains(&registers.rip) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the kernel shows only to the thread itself.
struct ThreadState {
    alternate_stack: (u64, u32, u64),
    clear_child_tid: u64,
    parent_death_signal: u32,
    timer_slack_ns: u64,
    securebits: u32,
    hardening: Hardening,
}

fn credentials(status: &Status, securebits: u32) -> Credentials {
    Credentials {
        uids: status.uids,
        gids: status.gids,
        groups: status.groups.clone(),
        capabilities: status.capabilities,
        securebits,
    }
}

fn scheduling(tid: i32) -> std::io::Result<Scheduling> {
    let found = sched::attributes(tid)?;
    let is_deadline = found.policy == libc::SCHED_DEADLINE as u32;
    let deadline_ns = [found.runtime, found.deadline, found.period];
    Ok(Scheduling {
        policy: found.policy,
        flags: found.flags,
        nice: found.nice,
        priority: found.priority,
        // For other policies it is the time slice, which is the node's.
        deadline_ns: if is_deadline { deadline_ns } else { [0; 3] },
        io_priority: sched::io_priority(tid)?,
    })
}

fn ask(injector: &Injector<'_>, thread: &RemoteThread<'_>) -> Result<ThreadState, CheckpointError> {
    let at = injector.scratch();
    let prctl = |option| thread.call(libc::SYS_prctl, [option, at, 0, 0, 0, 0]);
    thread.call(libc::SYS_sigaltstack, [0, at, 0, 0, 0, 0])?;
    let [stack, flags, bytes] = injector.words()?;
    prctl(PR_GET_TID_ADDRESS)?;
    let [clear_child_tid] = injector.words()?;
    prctl(libc::PR_GET_PDEATHSIG as u64)?;
    let [signal] = injector.words()?;
    Ok(ThreadState {
        // SS_ONSTACK is a report, not a setting.
        alternate_stack: (stack, flags as u32 & !1, bytes),
        clear_child_tid,
        parent_death_signal: signal as u32,
        timer_slack_ns: prctl(libc::PR_GET_TIMERSLACK as u64)?,
        securebits: prctl(libc::PR_GET_SECUREBITS as u64)? as u32,
        hardening: hardening::collect(injector, thread)?,
    })
}

/// Whether the threads can make calls for the checkpoint; refuses those that cannot. A seccomp
/// filter might kill the process for a call that it does not expect, so it is set aside. A clone
/// is under `own_filters` of farfork's own, which are made anew.
pub fn can_call(
    pid: i32,
    tids: &[i32],
    own_filters: u32,
    refusals: &mut Refusals,
) -> Result<bool, CheckpointError> {
    let mut can_call = true;
    for tid in tids {
        let status = Status::read(pid, *tid)?;
        let object = format!("thread {tid} ({})", status.name);
        let registers = ptrace::registers(*tid).map_err(doing(pid, "read the registers"))?;
        if registers.cs != CODE_64 {
            refusals.add(object, causes::threads::CODE_32);
            can_call = false;
        } else if ptrace::dispatches_calls(*tid).unwrap_or(false) {
            refusals.add(object, causes::threads::SYSCALL_DISPATCH);
            can_call = false;
        } else if !filters::suspend(*tid, &status, own_filters, refusals) {
            can_call = false;
        }
    }
    Ok(can_call)
}

fn check(status: &Status, area: &[u8], tid: i32, refusals: &mut Refusals) {
    let object = format!("thread {tid} ({})", status.name);
    if xstate::word(area, xstate::PRESENT_OFFSET) & xstate::AMX != 0 {
        refusals.add(object.clone(), causes::threads::AMX);
    }
    if status.is_ptraced_before {
        refusals.add(object, causes::process::TRACED);
    }
}

/// The signal that a thread is about to handle, if any: whether its handler lets calls restart.
fn about_to_handle(status: &Status, mask: u64, signals: &Signals) -> Option<bool> {
    let deliverable = status.pending & !mask;
    let first = signals.actions.iter().find(|(signal, [handler, ..])| {
        let is_handled = *handler != libc::SIG_DFL as u64 && *handler != libc::SIG_IGN as u64;
        is_handled && deliverable >> (signal - 1) & 1 != 0
    })?;
    Some(first.1[1] & libc::SA_RESTART as u64 != 0)
}

/// Registers with which the thread goes on as if it had never stopped: an interrupted system
/// call is made again, or reports the signal that is about to be handled, as the kernel would
/// have it.
fn resumable(registers: &ptrace::Registers, handler_restarts: Option<bool>) -> Vec<u64> {
    let mut registers = *registers;
    let result = registers.rax as i64;
    let is_call = (registers.orig_rax as i64) >= 0;
    if is_call && RESTARTS.contains(&result) {
        let is_interrupted = match (result, handler_restarts) {
            (_, None) | (ERESTARTNOINTR, _) => false,
            (ERESTARTSYS, Some(restarts)) => !restarts,
            _ => true,
        };
        if is_interrupted {
            registers.rax = EINTR;
        } else {
            // The instruction is two bytes long. A relative time-out starts anew, as the kernel
            // keeps what is left of it (-516) to itself.
            registers.rax = registers.orig_rax;
            registers.rip -= 2;
        }
    }
    registers.orig_rax = u64::MAX;
    ptrace::words(&registers).to_vec()
}
