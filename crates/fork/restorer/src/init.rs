//! The init of a clone's container: makes the container, forks the clone in it, and stays as its
//! reaper and supervisor.

use farfork_plan::protocol::{
    MAX_REQUEST_FDS, PidMode, Request, SLOT_EXTERNAL, SLOT_IMAGE, SLOT_SOURCE,
};
use farfork_plan::{MemberPlan, PLAN_MAGIC, PlanHeader, ThreadPlan, What, window};
use linux_raw_sys::general as k;

use crate::call::{self, CloneArgs, Errno, SysResult, clone3_with_ids, syscall};
use crate::failure::Failure;
use crate::mounts::mount_proc;
use crate::packets::{CONTROL_FD, Received};
use crate::run::transfer_all;
use crate::shared::{SHARED, Shared};
use crate::supervise::{Supervisor, SupervisorTools};
use crate::tables::elements;
use crate::task;
use crate::{clocks, overlay, pager, sources, watch};

/// What the init starts from.
pub struct InitInput<'a> {
    /// The agent's request.
    pub request: &'a Request,
    /// Descriptors: image, status socket, pin, overlay, sources, then the external ones.
    pub received: &'a Received,
    /// The container is there already, its `/proc` mounted.
    pub has_container: bool,
    /// What the supervisor needs, if it was made already, or why it could not be made.
    pub tools: Option<Result<SupervisorTools, Errno>>,
}

/// First function of the init, forked from the template or a ghost.
pub extern "C" fn enter(start: u64) -> ! {
    // SAFETY: all callers pass an `InitInput` on a stack that stays, or was copied with it.
    let start = unsafe { &*(start as *const InitInput<'_>) };
    // SAFETY: this process is the only one with this address space as yet.
    let shared = unsafe { SHARED.get_mut() };
    shared.at_ns[0] = call::now_ns();
    let [image, status, _pin, ..] = start.received.fds() else { call::exit(call::EXIT_BUG) };
    shared.status_fd = *status;
    match prepare(start, *image, shared) {
        Ok(supervisor) => supervisor.run(),
        Err(failure) => failure.report(shared.status_fd),
    }
}

fn prepare(start: &InitInput<'_>, image: i32, shared: &mut Shared) -> Result<Supervisor, Failure> {
    let request = start.request;
    let plan = map_plan(request, image).map_err(|errno| Failure::new(What::Map, errno))?;
    shared.plan_at = (request.plan_offset, request.plan_bytes);
    shared.keeps_groups = request.keeps_groups != 0;
    shared.is_trial = request.is_trial != 0;
    shared.has_overlay = request.overlay_bytes != 0;
    shared.has_sources = request.sources_bytes != 0;
    let is_new = request.pid_mode == PidMode::New as u32;
    // A parent that was pid 1 becomes pid 1: a namespace starts with it too, and needs a `/proc` of
    // its own beside the one by which this process looks at the clone's children.
    shared.mounts_proc = is_new && plan.is_pid_one != 0;
    shared.has_namespace = is_new;
    if is_new && !start.has_container {
        mount_proc().map_err(|errno| Failure::new(What::Container, errno))?;
    }
    let fds = keep_descriptors(start, plan, shared)
        .map_err(|errno| Failure::new(What::Descriptor, errno))?;
    let supervisor = Supervisor::new(plan, request, start.tools, fds)
        .map_err(|errno| Failure::new(What::Supervisor, errno))?;
    if request.sets_clocks != 0 {
        clocks::for_children(request.clocks_ns)
            .map_err(|errno| Failure::new(What::Clocks, errno))?;
        shared.ahead_ns = request.ahead_ns;
    }
    let ends = |is_wanted: fn() -> bool, what| match shared.has_overlay && is_wanted() {
        true => pager::ends(fds).map(Some).map_err(|errno| Failure::new(what, errno)),
        false => Ok(None),
    };
    let (pager, watch) =
        (ends(pager::is_wanted, What::Pages)?, ends(watch::is_wanted, What::Watch)?);
    shared.pager_fd = pager.map(|ends| ends.theirs);
    shared.watch_fd = watch.map(|ends| ends.theirs);
    if shared.has_overlay && overlay::is_helped() {
        let event = call::event(fds).map_err(|errno| Failure::new(What::Pages, errno))?;
        shared.leaves_fd = Some(event);
    }
    shared.at_ns[1] = call::now_ns();
    let clone_fds = CloneFds::collect(request, shared);
    let pid = start_process(plan, shared).map_err(|errno| Failure::new(What::Process, errno))?;
    if let Some(ends) = pager {
        pager::start(&shared.slots, ends).map_err(|errno| {
            // SAFETY: ends the clone, which no namespace may do.
            let _ = unsafe { syscall(k::__NR_kill, [pid, u64::from(k::SIGKILL)]) };
            Failure::new(What::Pages, errno)
        })?;
    }
    if let Some(ends) = watch {
        call::close_range(ends.theirs as u32, ends.theirs as u32);
    }
    clone_fds.close();
    Ok(supervisor.with_process(pid as i32, watch.map(|ends| ends.own), shared.leaves_fd))
}

fn map_plan(request: &Request, image: i32) -> Result<&'static PlanHeader, Errno> {
    let flags = k::MAP_PRIVATE | k::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing else is mapped at the plan's place.
    unsafe {
        call::mmap(
            window::PLAN,
            request.plan_bytes,
            k::PROT_READ,
            flags,
            image,
            request.plan_offset,
        )?;
        let plan = &*(window::PLAN as *const PlanHeader);
        if plan.magic != PLAN_MAGIC {
            return Err(Errno(EBADMSG));
        }
        if plan.is_copied != 0 {
            copy_plan(request, image)?;
        }
        Ok(plan)
    }
}

/// Puts a copy in the plan's place, so that no process of the clone inherits a mapping of the image.
///
/// # Safety
/// Nothing may access the plan meanwhile.
unsafe fn copy_plan(request: &Request, image: i32) -> Result<(), Errno> {
    let (at, bytes) = (window::PLAN, request.plan_bytes);
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED;
    // SAFETY: passed on to the caller.
    unsafe {
        call::mmap(at, bytes, k::PROT_READ | k::PROT_WRITE, flags, -1, 0)?;
        transfer_all(k::__NR_pread64, [image as u64, at, bytes, request.plan_offset, 0, 0])?;
        syscall(k::__NR_mprotect, [at, bytes, u64::from(k::PROT_READ)])?;
    }
    Ok(())
}

const EBADMSG: i32 = linux_raw_sys::errno::EBADMSG as i32;

/// Moves the descriptors that are needed out of the way of the clone's numbers and closes all others.
/// Returns the lowest number that is free for the supervisor.
fn keep_descriptors(
    start: &InitInput<'_>,
    plan: &PlanHeader,
    shared: &mut Shared,
) -> Result<u32, Errno> {
    let (spare, request) = (plan.spare_fd, start.request);
    let fds = start.received.fds();
    let waits = request.waits != 0;
    (shared.spare_fd, shared.expected) = (spare, request.external_count);
    // Those of a clone that waits come later; its socket is the last.
    let last = if waits { 1 } else { request.external_count as usize };
    let first_external = fds.len().saturating_sub(last);
    let first_source = first_external.saturating_sub(request.source_count as usize);
    for (index, fd) in fds.iter().enumerate() {
        let kept = call::duplicate_above(*fd, spare)?;
        match index {
            0 => shared.slots.set(SLOT_IMAGE, kept),
            1 => shared.status_fd = kept,
            2 => hold_pin(kept)?,
            _ if index < first_source && shared.has_overlay && index == FIRST_OWN => {
                overlay::map(kept, request.overlay_bytes)?;
            }
            _ if index < first_source => sources::map_table(kept, request.sources_bytes)?,
            _ if index < first_external => {
                shared.slots.set(SLOT_SOURCE + (index - first_source) as u8, kept);
            }
            _ if waits => shared.wake_fd = Some(kept),
            _ => shared.slots.set(SLOT_EXTERNAL + (index - first_external) as u8, kept),
        }
    }
    start.received.close();
    call::close_range(0, CONTROL_FD as u32);
    Ok(spare)
}

/// Number of the first descriptor after the image, the status socket and the pin.
const FIRST_OWN: usize = 3;

/// Maps the pin. It then lasts as long as any process that is forked from here and may map the image,
/// even one that outlives its init.
fn hold_pin(pin: i32) -> Result<(), Errno> {
    let flags = k::MAP_PRIVATE | k::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing else is mapped at the pin's place, and nothing accesses it.
    unsafe { call::mmap(window::PIN, farfork_types::PAGE_BYTES, k::PROT_NONE, flags, pin, 0) }?;
    call::close_range(pin as u32, pin as u32);
    Ok(())
}

/// Descriptors that only the clone needs. The init closes them once the clone has copies: the readers
/// of a pipe that it held open would never see its end, and only plans may use the image.
struct CloneFds {
    fds: [i32; MAX_REQUEST_FDS],
    count: usize,
}

impl CloneFds {
    fn collect(request: &Request, shared: &Shared) -> CloneFds {
        let mut clone_fds = CloneFds { fds: [-1; MAX_REQUEST_FDS], count: 0 };
        let externals =
            (0..u64::from(request.external_count)).map(|i| u64::from(SLOT_EXTERNAL) + i);
        let sources = (0..u64::from(request.source_count)).map(|i| u64::from(SLOT_SOURCE) + i);
        let own = sources.chain([u64::from(SLOT_IMAGE)]);
        let slots = externals.chain(own).map(|slot| shared.slots.get(slot));
        let all = slots.filter(|fd| *fd >= 0).chain(shared.wake_fd);
        for (place, fd) in clone_fds.fds.iter_mut().zip(all) {
            *place = fd;
            clone_fds.count += 1;
        }
        clone_fds
    }

    fn close(&self) {
        for fd in &self.fds[..self.count] {
            call::close_range(*fd as u32, *fd as u32);
        }
    }
}

/// Forks the clone's first thread, with its parent's pid. It goes on with a copy of this memory,
/// stack and all, and makes the parent's out of it.
fn start_process(plan: &'static PlanHeader, shared: &Shared) -> SysResult {
    let is_pid_one = shared.mounts_proc;
    // SAFETY: the tables are the plan's.
    let [root, ..] = (unsafe { elements::<MemberPlan>(plan.members) }) else {
        return Err(Errno(EBADMSG));
    };
    // SAFETY: as above.
    let [leader, ..] = (unsafe { elements::<ThreadPlan>(root.threads) }) else {
        return Err(Errno(EBADMSG));
    };
    let tid = if is_pid_one { 1 } else { leader.tid };
    let container = if is_pid_one { k::CLONE_NEWPID | k::CLONE_NEWNS } else { 0 };
    // This process is not in the IPC namespace: only processes of the clone may be.
    let has_ipc = plan.has_own_ipc != 0 || shared.is_trial;
    let ipc = if has_ipc { k::CLONE_NEWIPC } else { 0 };
    let args = CloneArgs {
        flags: u64::from(container | ipc),
        exit_signal: u64::from(k::SIGCHLD),
        set_tid: &raw const tid as u64,
        set_tid_size: 1,
        ..CloneArgs::default()
    };
    // SAFETY: without CLONE_VM the child has its own copy of this stack; `lead` never returns.
    unsafe { clone3_with_ids(&args, task::lead, plan as *const PlanHeader as u64) }
}
