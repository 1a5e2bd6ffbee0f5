//! A clone that was made before it was requested, up to its last steps. It sleeps in one call, until
//! the agent or its client sends a message on its socket.
//!
//! ```text
//!  agent ── Supply, external descriptors ──► ops that change only the first thread, then late ops
//!                                            that other processes cannot notice, then its rights
//!                                            waits on     (long before, or just before)
//!  agent or its client ── Start ──► what is left ─► "running" ─► leaves
//! ```
//! The descriptors come before the wake-up. So the wake-up is one small message, and the ops that need
//! the descriptors are done by then. The socket lies in the restorer's run of numbers, which is closed
//! before any of the parent's code runs.

use farfork_plan::protocol::{
    SLOT_EXTERNAL, SLOT_IMAGE, SLOT_SOURCE, Status, StatusKind, VERSION, Wake, WakeKind,
};
use farfork_plan::{MemberPlan, Op, ThreadPlan, What, nr, window};
use linux_raw_sys::{general as k, prctl};

use crate::call::{self, Errno, syscall};
use crate::failure::Failure;
use crate::packets::{Received, receive_from};
use crate::settle::{VDSO, VDSO_AT};
use crate::shared::Shared;
use crate::slots::Slots;
use crate::sources;
use crate::tables::{self, elements};

/// Ops that are still to be run: those of the process that may have to wait for the start, then
/// those of its first thread.
pub struct RemainingOps {
    late: &'static [Op],
    own: &'static [Op],
}

impl RemainingOps {
    /// All late ops of a process, and all ops of its first thread.
    pub fn new(member: &MemberPlan, first: &ThreadPlan) -> RemainingOps {
        // SAFETY: the tables are the plan's.
        unsafe { RemainingOps { late: elements(member.late_ops), own: elements(first.ops) } }
    }

    /// What the first thread does to itself, and what depends on nothing.
    fn begin(&mut self, slots: &mut Slots) -> Result<(), Failure> {
        // SAFETY: the ops are this thread's.
        self.own = unsafe { slots.run_while(self.own, |_, op| is_private(op)) }?;
        Ok(())
    }

    /// What can be done once the descriptors have come. The late ops need the agent's rights; when
    /// none is left, those are given up, as far as no timer is to be set before.
    fn go_on(&mut self, slots: &mut Slots) -> Result<(), Failure> {
        // SAFETY: the ops are the plan's; no other thread of this process makes descriptors now.
        self.late = unsafe { slots.run_while(self.late, is_quiet) }?;
        if self.late.is_empty() {
            hide().map_err(|errno| Failure::new(What::Attribute, errno))?;
            // SAFETY: the ops are this thread's.
            self.own = unsafe { slots.run_while(self.own, |_, op| !is_timer(op)) }?;
        }
        Ok(())
    }

    /// What is left.
    fn end(&self, slots: &mut Slots) -> Result<(), Failure> {
        // SAFETY: as in `go_on`.
        unsafe {
            slots.run(self.late)?;
            slots.run(self.own)
        }
    }
}

/// Whether an op changes only the calling thread, and needs no rights. The kernel writes to the memory
/// that is named here. Such a page fault can take long, so it comes before the start.
fn is_private(op: &Op) -> bool {
    let is_name = op.args[0] == u64::from(prctl::PR_SET_NAME);
    let is_slack = op.args[0] == u64::from(prctl::PR_SET_TIMERSLACK);
    match op.nr {
        k::__NR_prctl => is_name || is_slack,
        number => {
            [k::__NR_set_tid_address, k::__NR_set_robust_list, k::__NR_rseq, k::__NR_arch_prctl]
                .contains(&number)
        }
    }
}

/// Whether only this process can notice a late op: it puts a descriptor from the caller in its place,
/// or sets a limit.
fn is_quiet(slots: &Slots, op: &Op) -> bool {
    [nr::MOVE_FD, k::__NR_dup3, k::__NR_prlimit64].contains(&op.nr) || slots.is_supplied(op)
}

/// Whether an op sets time running, or makes what it runs for.
fn is_timer(op: &Op) -> bool {
    [nr::TIMER_CREATE, k::__NR_timer_settime, k::__NR_setitimer].contains(&op.nr)
}

/// Keeps processes with the parent's ids from looking into this one, which has descriptors of
/// farfork's. The parent's own attribute is set when it leaves.
fn hide() -> Result<(), Errno> {
    // SAFETY: an attribute of this process.
    unsafe { syscall(k::__NR_prctl, [u64::from(prctl::PR_SET_DUMPABLE), 0]) }.map(|_| ())
}

/// Waits until the clone is to start, then runs `rest`. Ends the clone when the other end of its socket
/// is closed.
pub fn for_start(socket: i32, shared: &mut Shared, mut rest: RemainingOps) -> Result<(), Failure> {
    fetch_plan();
    touch_vdso();
    // Nothing is read from the image after this.
    shared.slots.close(SLOT_IMAGE);
    (0..sources::files().len()).for_each(|file| shared.slots.close(SLOT_SOURCE + file as u8));
    rest.begin(&mut shared.slots)?;
    let waits = Status { kind: StatusKind::Waits as u32, ..Status::default() };
    if call::send(shared.status_fd, &waits).is_err() {
        call::exit(call::EXIT_REPORTED)
    }
    let mut is_supplied = false;
    loop {
        let mut wake = Wake::default();
        let Some((bytes, received)) = receive_from(socket, &mut wake) else {
            call::exit(call::EXIT_REPORTED)
        };
        let is_ours = bytes == size_of::<Wake>() && wake.version == VERSION;
        let is_whole = received.fds().len() == shared.expected as usize;
        match wake.kind {
            kind if is_ours && kind == WakeKind::Supply as u32 && is_whole && !is_supplied => {
                supply(&received, shared).map_err(|errno| Failure::new(What::Descriptor, errno))?;
                is_supplied = true;
                rest.go_on(&mut shared.slots)?;
            }
            kind if is_ours && kind == WakeKind::Start as u32 && is_supplied => {
                let now = shared.now_ns();
                shared.at_ns = [wake.requested_ns, now, now, now, 0, 0];
                return rest.end(&mut shared.slots);
            }
            // Not a valid message at this point: ignored.
            _ => received.close(),
        }
    }
}

/// Moves the external descriptors out of the way of the clone's numbers.
fn supply(received: &Received, shared: &mut Shared) -> Result<(), Errno> {
    for (index, fd) in received.fds().iter().enumerate() {
        let kept = call::duplicate_above(*fd, shared.spare_fd)?;
        shared.slots.set(SLOT_EXTERNAL + index as u8, kept);
    }
    received.close();
    Ok(())
}

/// Maps the rest of the plan, so that no page fault delays the start.
fn fetch_plan() {
    // SAFETY: the init has mapped the plan, which says how long it is.
    unsafe {
        let bytes = tables::plan().bytes;
        let advice = u64::from(k::MADV_POPULATE_READ);
        let _ = syscall(k::__NR_madvise, [window::PLAN, bytes, advice]);
    }
}

/// The same for the kernel's pages, which most programs ask for the time.
fn touch_vdso() {
    // SAFETY: this thread alone has set it; the plan has moved it there.
    unsafe {
        match *VDSO_AT.get() {
            0 => {}
            start => VDSO.get().touch(start),
        }
    }
}
