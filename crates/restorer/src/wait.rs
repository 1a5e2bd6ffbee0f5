//! A clone that was made before anybody asked for it, up to what has to wait (`late_ops`): it sleeps
//! in the one call from which it is woken, by whoever holds the other end of its socket.
//!
//! ```text
//!  agent ── Supply, external descriptors ──► waits on     (long before, or just before)
//!  agent or its client ── Start ──► late_ops ─► the first thread's ops ─► "running" ─► leaves
//! ```
//! The descriptors come before the wake-up, so that this is one small message. The socket lies in the
//! restorer's run of numbers, which is closed before any of the parent's code runs.

use farfork_plan::protocol::{SLOT_EXTERNAL, Status, StatusKind, VERSION, Wake, WakeKind};
use farfork_plan::{PlanHeader, window};
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::init::Shared;
use crate::template::{Received, receive_from};

/// Waits until the clone is to start. Ends it when nobody can ask for that any more.
pub fn for_start(socket: i32, shared: &mut Shared) -> Result<(), Errno> {
    fetch_plan();
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
                supply(&received, shared)?;
                is_supplied = true;
            }
            kind if is_ours && kind == WakeKind::Start as u32 && is_supplied => {
                let now = shared.now_ns();
                shared.at_ns = [wake.requested_ns, now, now, now, 0, 0];
                return Ok(());
            }
            // Not understood, and nothing was done.
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

/// Maps what of the plan is left to be read, so that it does not fault when there is hurry.
fn fetch_plan() {
    // SAFETY: the init has mapped the plan, which says how long it is.
    unsafe {
        let bytes = (*(window::PLAN as *const PlanHeader)).bytes;
        let advice = u64::from(k::MADV_POPULATE_READ);
        let _ = syscall(k::__NR_madvise, [window::PLAN, bytes, advice]);
    }
}
