//! The processes of a clone that is more than one: their births, and where they wait for each
//! other. All of it happens by ops of the plan; who waits for whom is the compiler's to know.
//!
//! A process that fails says so to the others: they wait for it no longer and end. If one is
//! killed, its children end with it.

use core::sync::atomic::{AtomicU32, Ordering};

use farfork_plan::{Birth, MemberPlan, PlanHeader, What, stage, window};
use linux_raw_sys::{general as k, prctl};

use crate::call::{self, CloneArgs, Errno, SysResult, clone3_with_ids, syscall};
use crate::init::{self, SHARED, Shared};
use crate::run::{Failure, elements};
use crate::task;

/// How many processes have arrived at each stage.
type Stages = [AtomicU32; stage::COUNT];

/// In the place of a count that no longer matters.
const FAILED: u32 = 1 << 31;

fn stages() -> &'static Stages {
    // SAFETY: mapped by `begin` before anything here is called, as long as the clone is made.
    unsafe { &*(window::STAGES as *const Stages) }
}

fn plan() -> &'static PlanHeader {
    // SAFETY: the init has mapped it before it forked the first process.
    unsafe { &*(window::PLAN as *const PlanHeader) }
}

fn births() -> &'static [Birth] {
    // SAFETY: the table is the plan's.
    unsafe { elements(plan().births) }
}

/// Whether the clone has several processes.
pub fn has_several() -> bool {
    plan().births.count != 0
}

/// Of several processes, the first is born here: it forks the others.
pub fn begin(shared: &mut Shared) -> Result<(), Failure> {
    if !has_several() {
        return Ok(());
    }
    let flags = k::MAP_SHARED | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE;
    let prot = k::PROT_READ | k::PROT_WRITE;
    // SAFETY: nothing else is mapped there; the kernel clears the page.
    unsafe { call::mmap(window::STAGES, farfork_types::PAGE_BYTES, prot, flags, -1, 0) }
        .map_err(|errno| Failure::of(What::Map, errno))?;
    shared.is_family = true;
    if shared.mounts_proc {
        // The others are in the same mount namespace, and need no other.
        shared.mounts_proc = false;
        init::mount_proc().map_err(|errno| Failure::of(What::Container, errno))?;
    }
    // SAFETY: the ops are the plan's.
    unsafe { shared.slots.run(elements(births()[0].ops)) }
}

/// Forks process number `index` of the table.
pub fn fork(index: u64) -> SysResult {
    let birth = births().get(index as usize).ok_or(Errno(linux_raw_sys::errno::EBADMSG as i32))?;
    // SAFETY: set by the init before it forked.
    let is_any = birth.is_any_pid != 0 && !unsafe { SHARED.get() }.has_namespace;
    let args = CloneArgs {
        exit_signal: u64::from(birth.exit_signal),
        set_tid: if is_any { 0 } else { &raw const birth.pid as u64 },
        set_tid_size: u64::from(!is_any),
        ..CloneArgs::default()
    };
    // SAFETY: without CLONE_VM the child has its own copy of this stack; `born` never returns.
    unsafe { clone3_with_ids(&args, born, index) }
}

/// First function of every process but the first.
extern "C" fn born(index: u64) -> ! {
    // SAFETY: this process has but this thread as yet.
    let shared = unsafe { SHARED.get_mut() };
    // SAFETY: the ops are the plan's.
    if let Err(failure) = unsafe { shared.slots.run(elements(births()[index as usize].ops)) } {
        failure.report(shared.status_fd)
    }
    // SAFETY: the table is the plan's.
    let members = unsafe { elements::<MemberPlan>(plan().members) };
    match members.get(index as usize) {
        Some(member) => task::become_member(plan(), member, shared),
        None => call::exit(call::EXIT_BUG), // its last op ends it
    }
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

/// Arrives at a stage and waits until `count` processes have, if that is not 0.
pub fn meet(stage: u64, count: u64) {
    let arrived = &stages()[stage as usize];
    arrived.fetch_add(1, Ordering::AcqRel);
    wake(arrived);
    if count == 0 {
        return;
    }
    loop {
        let now = arrived.load(Ordering::Acquire);
        if now & FAILED != 0 {
            call::exit(call::EXIT_REPORTED)
        }
        if u64::from(now) >= count {
            return;
        }
        let args = [arrived.as_ptr() as u64, FUTEX_WAIT, u64::from(now), 0];
        // SAFETY: waits on a word that is shared with the others.
        let _ = unsafe { syscall(k::__NR_futex, args) };
    }
}

const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;

fn wake(word: &AtomicU32) {
    // SAFETY: wakes all that wait for the word.
    let _ = unsafe { syscall(k::__NR_futex, [word.as_ptr() as u64, FUTEX_WAKE, i32::MAX as u64]) };
}

/// Ends all who wait, or will.
pub fn fail() {
    for arrived in stages() {
        arrived.fetch_or(FAILED, Ordering::AcqRel);
        wake(arrived);
    }
}

/// The last of the others' waits: until the root has said that the clone runs. One that was
/// stopped does not wait here, since whoever continues it may be one that does.
pub fn wait_until_running(is_stopped: bool) {
    if !is_stopped {
        let arrived = &stages()[stage::RUNNING as usize];
        while arrived.load(Ordering::Acquire) == 0 {
            let args = [arrived.as_ptr() as u64, FUTEX_WAIT, 0, 0];
            // SAFETY: waits on a word that is shared with the others.
            let _ = unsafe { syscall(k::__NR_futex, args) };
        }
        if arrived.load(Ordering::Acquire) & FAILED != 0 {
            call::exit(call::EXIT_REPORTED)
        }
    }
    leave();
}

/// The root's word that the clone runs.
pub fn let_run() {
    if has_several() {
        meet(stage::RUNNING, 0);
        leave();
    }
}

/// Nothing here is needed by a process that runs.
fn leave() {
    // SAFETY: nothing uses the page any more; not even failures, which are told no longer.
    let _ = unsafe { call::munmap(window::STAGES, farfork_types::PAGE_BYTES) };
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
