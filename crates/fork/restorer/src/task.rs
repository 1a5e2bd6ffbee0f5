//! The clone, from its fork to the parent's code: its first thread builds memory and all else
//! that the threads share, then starts the others.

use farfork_plan::protocol::{SLOT_IMAGE, Status, StatusKind};
use farfork_plan::{MemberPlan, PlanHeader, Table, ThreadPlan, What, window};
use linux_raw_sys::general as k;

use crate::call::{self, CloneArgs, SysResult, clone3_with_ids, sigreturn, syscall};
use crate::failure::Failure;
use crate::gate::GATE;
use crate::mounts::mount_proc;
use crate::shared::{SHARED, Shared};
use crate::slots::Slots;
use crate::tables::{self, elements};
use crate::wait::{self, RemainingOps};
use crate::{family, overlay, pager, stages, trial, watch};

const ARCH_SET_FS: u64 = 0x1002;

/// First function of the clone's first thread.
pub extern "C" fn lead(plan: u64) -> ! {
    // SAFETY: the init passes its mapped plan; this process has but this thread as yet.
    let (plan, shared) = unsafe { (&*(plan as *const PlanHeader), SHARED.get_mut()) };
    shared.at_ns[2] = shared.now_ns();
    // SAFETY: the tables are the plan's; the init has looked at them.
    let member = unsafe { &elements::<MemberPlan>(plan.members)[0] };
    if let Err(failure) = begin_family(shared) {
        failure.report(shared.status_fd)
    }
    become_member(plan, member, shared)
}

/// Of several processes, the first is born here: it forks the others.
fn begin_family(shared: &mut Shared) -> Result<(), Failure> {
    if !family::has_several() {
        return Ok(());
    }
    stages::map().map_err(|errno| Failure::new(What::Map, errno))?;
    (shared.is_family, shared.born) = (true, born);
    if shared.mounts_proc {
        // The others are in the same mount namespace, and need no other.
        shared.mounts_proc = false;
        mount_proc().map_err(|errno| Failure::new(What::Container, errno))?;
    }
    // SAFETY: the ops are the plan's.
    unsafe { shared.slots.run(elements(family::births()[0].ops)) }
}

/// First function of every process but the first.
extern "C" fn born(index: u64) -> ! {
    // SAFETY: this process has but this thread as yet.
    let shared = unsafe { SHARED.get_mut() };
    let birth = &family::births()[index as usize];
    // SAFETY: the ops are the plan's.
    if let Err(failure) = unsafe { shared.slots.run(elements(birth.ops)) } {
        failure.report(shared.status_fd)
    }
    // SAFETY: the init has mapped the plan; the table is its own.
    let (plan, members) = unsafe {
        let plan = tables::plan();
        (plan, elements::<MemberPlan>(plan.members))
    };
    match members.get(index as usize) {
        Some(member) => become_member(plan, member, shared),
        None => call::exit(call::EXIT_BUG), // its last op ends it
    }
}

/// Makes this process `member`, and leaves for its code.
fn become_member(plan: &PlanHeader, member: &MemberPlan, shared: &mut Shared) -> ! {
    // SAFETY: the tables are the plan's.
    let threads = unsafe { elements::<ThreadPlan>(member.threads) };
    let first = plan.members.address as *const MemberPlan;
    let index = (&raw const *member as usize - first as usize) / size_of::<MemberPlan>();
    if let Err(failure) = build(member, index, threads, shared) {
        failure.report(shared.status_fd)
    }
    shared.at_ns[4] = shared.now_ns();
    default_slice();
    if let Err(failure) = join(member, shared) {
        failure.report(shared.status_fd)
    }
    if index == 0 {
        announce(shared);
        if let Some(event) = shared.leaves_fd {
            call::signal(event);
        }
        if shared.is_trial && shared.is_family {
            // The others end, too. Only filters are left to be tried, and a process behind its filters
            // could not report the failure of another.
            stages::fail();
            call::exit(0)
        }
        stages::let_run();
    } else {
        stages::wait_until_running(member.stop_ops.count != 0);
    }
    // Every descriptor that is not the parent's.
    call::close_range(plan.spare_fd, plan.spare_fd + plan.spare_count - 1);
    stop(member);
    keep_own(plan, member);
    if threads[0].confines_all != 0 {
        confine(&threads[0]);
        GATE.open(shared.others, false);
    } else {
        GATE.open(shared.others, threads.iter().any(has_filters));
        confine(&threads[0]);
        GATE.leave(has_filters(&threads[0]));
    }
    trial::end_if_it_is_one();
    // SAFETY: the frame is the leader's, complete, in the plan.
    unsafe { sigreturn(threads[0].frame) }
}

fn has_filters(thread: &ThreadPlan) -> bool {
    thread.last_ops.count != 0
}

/// Does what the other threads would have undone, and what waits for other processes.
fn join(member: &MemberPlan, shared: &mut Shared) -> Result<(), Failure> {
    // SAFETY: the ops are the plan's.
    unsafe {
        shared.slots.run(elements(member.joined_ops))?;
        shared.slots.run(elements(member.settle_ops))
    }
}

fn build(
    member: &MemberPlan,
    index: usize,
    threads: &'static [ThreadPlan],
    shared: &mut Shared,
) -> Result<(), Failure> {
    if member.kept.count == 0 {
        show_plan(shared).map_err(|errno| Failure::new(What::Map, errno))?;
    }
    // SAFETY: the plan is of a sealed image and this address space is to become its parent's.
    unsafe { shared.slots.run(elements(member.memory_ops))? };
    if shared.has_overlay {
        supply(index, shared)?;
    }
    map_stacks(threads.len() as u64).map_err(|errno| Failure::new(What::Map, errno))?;
    shared.at_ns[3] = shared.now_ns();
    if shared.mounts_proc {
        mount_proc().map_err(|errno| Failure::new(What::Container, errno))?;
    }
    // SAFETY: the ops are the plan's; the clone's descriptors and signals are its own.
    unsafe { shared.slots.run(elements(member.task_ops))? };
    if shared.wake_fd.is_none() {
        // SAFETY: as above.
        unsafe { shared.slots.run(elements(member.late_ops))? };
    }
    shared.others = threads.len() as u32 - 1;
    for (index, thread) in threads.iter().enumerate().skip(1) {
        start_thread(index, thread).map_err(|errno| Failure::new(What::Thread, errno))?;
    }
    // What the first thread sets for others, they do not set again.
    GATE.await_others(shared.others);
    // Nothing here uses thread-local storage.
    // SAFETY: a register of this thread.
    unsafe { syscall(k::__NR_arch_prctl, [ARCH_SET_FS, threads[0].fs_base]) }
        .map_err(|errno| Failure::new(What::Thread, errno))?;
    match shared.wake_fd {
        Some(socket) => wait::for_start(socket, shared, RemainingOps::new(member, &threads[0])),
        // SAFETY: the ops are this thread's.
        None => unsafe { shared.slots.run(elements(threads[0].ops)) },
    }
}

/// Maps the image's own plan where the init has put a copy in its place. By this mapping a checkpoint finds the image.
fn show_plan(shared: &Shared) -> SysResult {
    // SAFETY: the init has mapped it.
    if unsafe { tables::plan() }.is_copied == 0 {
        return Ok(0);
    }
    let (offset, bytes) = shared.plan_at;
    let image = shared.slots.get(u64::from(SLOT_IMAGE));
    let flags = k::MAP_PRIVATE | k::MAP_FIXED;
    // SAFETY: the same bytes, read-only, take the place of the copy.
    unsafe { call::mmap(window::PLAN, bytes, k::PROT_READ, flags, image, offset) }
}

/// What the tiering policy wants to happen before the process touches its memory.
fn supply(index: usize, shared: &Shared) -> Result<(), Failure> {
    // SAFETY: the init has mapped it.
    let Some(overlay) = (unsafe { overlay::members() }).get(index) else { return Ok(()) };
    if let Err(errno) = overlay::prefer_far(overlay) {
        Failure::new(What::FarMemory, errno).warn(shared.status_fd);
    }
    if let Some(socket) = shared.pager_fd {
        pager::hand_over(overlay, index, socket)
            .map_err(|errno| Failure::new(What::Pages, errno))?;
    }
    if let Some(socket) = shared.watch_fd {
        watch::begin(overlay, index, socket).map_err(|errno| Failure::new(What::Watch, errno))?;
    }
    pager::copy(overlay, &shared.slots).map_err(|errno| Failure::new(What::Pages, errno))?;
    if shared.leaves_fd.is_none() {
        overlay::populate(overlay);
    }
    Ok(())
}

/// Stacks for all threads but the first, which goes on with the init's.
fn map_stacks(threads: u64) -> SysResult {
    if threads == 1 {
        return Ok(0);
    }
    let bytes = (threads - 1) * window::STACK_BYTES;
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing else is mapped at the stacks' place.
    unsafe { call::mmap(window::STACKS, bytes, k::PROT_READ | k::PROT_WRITE, flags, -1, 0) }
}

fn start_thread(index: usize, thread: &'static ThreadPlan) -> SysResult {
    let args = CloneArgs {
        flags: u64::from(call::THREAD | k::CLONE_SETTLS),
        stack: window::STACKS + (index as u64 - 1) * window::STACK_BYTES,
        stack_size: window::STACK_BYTES,
        tls: thread.fs_base,
        set_tid: &raw const thread.tid as u64,
        set_tid_size: 1,
        ..CloneArgs::default()
    };
    // SAFETY: the stack is this thread's alone; `follow` never returns.
    unsafe { clone3_with_ids(&args, follow, thread as *const ThreadPlan as u64) }
}

/// First function of every other thread.
extern "C" fn follow(thread: u64) -> ! {
    // SAFETY: the leader passes an element of the plan's table.
    let thread = unsafe { &*(thread as *const ThreadPlan) };
    let mut slots = Slots::new();
    // SAFETY: the ops are this thread's own.
    if let Err(failure) = unsafe { slots.run(elements(thread.ops)) } {
        // SAFETY: the status descriptor was set before any thread was started.
        failure.report(unsafe { SHARED.get() }.status_fd)
    }
    // Filters may forbid it, and may be there when the gate opens.
    default_slice();
    // SAFETY: set before any thread was started.
    GATE.arrive(unsafe { SHARED.get() }.others);
    GATE.pass();
    confine(thread);
    GATE.leave(has_filters(thread));
    trial::end_if_it_is_one();
    // SAFETY: the frame is this thread's, complete, in the plan.
    unsafe { sigreturn(thread.frame) }
}

/// Stops the clone, if its parent was stopped, before any thread runs the parent's code.
fn stop(member: &MemberPlan) {
    // SAFETY: the ops are the plan's.
    if unsafe { Slots::new().run(elements(member.stop_ops)) }.is_err() {
        call::exit(call::EXIT_REPORTED)
    }
}

/// Unmaps what the plan has of other processes, if this one must not read them. Its other threads need no more
/// than what is kept.
fn keep_own(plan: &PlanHeader, member: &MemberPlan) {
    let Table { address: start, count } = member.kept;
    if count == 0 {
        return;
    }
    let (end, last) = (start + count, window::PLAN + plan.bytes);
    for (from, to) in [(end, last), (window::PLAN, start)] {
        // SAFETY: what is kept has the threads' filters and frames; nothing else of the plan is used any more.
        if from < to && unsafe { call::munmap(from, to - from) }.is_err() {
            call::exit(call::EXIT_REPORTED)
        }
    }
}

/// Puts the calling thread, or all threads, under the parent's seccomp filters. A failure cannot be
/// reported any more. A clone that is less confined than its parent must not run.
fn confine(thread: &ThreadPlan) {
    // SAFETY: the ops are this thread's own.
    if unsafe { Slots::new().run(elements(thread.last_ops)) }.is_err() {
        call::exit(call::EXIT_REPORTED)
    }
}

/// Gives back the short time slices that the agent has asked for itself and its children, and
/// leaves everything else as it is.
fn default_slice() {
    // struct sched_attr: size and policy, flags, nice and priority, runtime, deadline, period.
    let mut attributes = [0u64; 6];
    let (at, bytes) = (attributes.as_mut_ptr() as u64, size_of_val(&attributes) as u64);
    // SAFETY: the kernel writes 48 bytes.
    let got = unsafe { syscall(k::__NR_sched_getattr, [0, at, bytes, 0]) };
    let policy = (attributes[0] >> 32) as u32;
    if got.is_ok() && FAIR.contains(&policy) {
        attributes[3] = 0;
        // SAFETY: the kernel reads 48 bytes.
        let _ = unsafe { syscall(k::__NR_sched_setattr, [0, attributes.as_ptr() as u64, 0]) };
    }
}

/// Policies whose runtime is a time slice: `SCHED_OTHER`, `SCHED_BATCH`.
const FAIR: [u32; 2] = [k::SCHED_NORMAL, k::SCHED_BATCH];

/// Reports to the agent that the clone runs.
fn announce(shared: &mut Shared) {
    shared.at_ns[5] = shared.now_ns();
    let status =
        Status { kind: StatusKind::Running as u32, at_ns: shared.at_ns, ..Status::default() };
    if call::send(shared.status_fd, &status).is_err() {
        // The agent has exited: no process would know of this clone.
        if shared.is_family {
            stages::fail();
        }
        call::exit(call::EXIT_REPORTED)
    }
}
