//! The processes of a clone that is more than one: how they are born and end. All of it happens by
//! ops of the plan. They wait for each other in [`stages`](crate::stages), in an order that the
//! compiler of the plan has found.
//!
//! If a process is killed, its children end with it.

use farfork_plan::Birth;
use linux_raw_sys::{general as k, prctl};

use crate::call::{self, CloneArgs, Errno, SysResult, clone3_with_ids, syscall};
use crate::shared::SHARED;
use crate::tables::{self, elements};

/// The processes to be forked, by their numbers; the first entry is the root.
pub fn births() -> &'static [Birth] {
    // SAFETY: the init has mapped the plan; the table is its own.
    unsafe { elements(tables::plan().births) }
}

/// Whether the clone has several processes.
pub fn has_several() -> bool {
    // SAFETY: the init has mapped it before it forked the first process.
    unsafe { tables::plan() }.births.count != 0
}

/// Forks process number `index` of the table.
pub fn fork(index: u64) -> SysResult {
    let birth = births().get(index as usize).ok_or(Errno(linux_raw_sys::errno::EBADMSG as i32))?;
    // SAFETY: set before the first op is run.
    let shared = unsafe { SHARED.get() };
    let is_any = birth.is_any_pid != 0 && !shared.has_namespace;
    let args = CloneArgs {
        exit_signal: u64::from(birth.exit_signal),
        set_tid: if is_any { 0 } else { &raw const birth.pid as u64 },
        set_tid_size: u64::from(!is_any),
        ..CloneArgs::default()
    };
    // SAFETY: without CLONE_VM the child has its own copy of this stack; `born` never returns.
    unsafe { clone3_with_ids(&args, shared.born, index) }
}

/// Has this process die with its parent, which must be `parent` still, unless that is 0.
pub fn follow_parent(parent: u64) -> SysResult {
    let args = [u64::from(prctl::PR_SET_PDEATHSIG), u64::from(k::SIGKILL)];
    // SAFETY: an attribute of this process, and its parent's id.
    unsafe {
        syscall(k::__NR_prctl, args)?;
        match syscall(k::__NR_getppid, [])? {
            now if parent == 0 || now == parent => Ok(0),
            _ => Err(Errno(linux_raw_sys::errno::ESRCH as i32)),
        }
    }
}

/// Ends this process so that its parent gets `status` from its wait.
pub fn end(status: u64) -> ! {
    let signal = status & 0x7f;
    if signal == 0 {
        call::exit((status >> 8 & 0xff) as i32)
    }
    let none = [0u64; 2];
    let unblock = [u64::from(k::SIG_SETMASK), none.as_ptr() as u64, 0, 8];
    // SAFETY: no limit for core dumps but none, and then the end of this process.
    unsafe {
        let limit = [0, u64::from(k::RLIMIT_CORE), none.as_ptr() as u64, 0];
        let _ = syscall(k::__NR_prlimit64, limit);
        let _ = syscall(k::__NR_rt_sigprocmask, unblock);
        let own = syscall(k::__NR_getpid, []).unwrap_or(0);
        let _ = syscall(k::__NR_kill, [own, signal]);
    }
    call::exit(call::EXIT_BUG)
}
