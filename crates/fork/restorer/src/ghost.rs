//! Inits that wait for their request, in a container that is there already: a ghost, the first
//! process of one that somebody else has made, or a spare, which the template has forked before
//! anybody asked for a clone. Both have a control socket of their own in the place of the template's.

use farfork_plan::protocol::{Hello, VERSION};
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::init::{self, Start};
use crate::mounts::mount_proc;
use crate::packets::{CONTROL_FD, receive_request};
use crate::supervise::Tools;

/// Life of a ghost.
pub fn wait() -> ! {
    // Whoever made the container has left it standard streams, and this program's file.
    close_all_but_control();
    if call::send(CONTROL_FD, &Hello { version: VERSION, reserved: 0 }).is_err() {
        call::exit(0)
    }
    // If there are none, whoever asks for the clone hears why.
    become_init(tools())
}

/// Life of a spare, which has been forked with what its maker was handed.
pub extern "C" fn wait_as_spare(start: u64) -> ! {
    // SAFETY: the template passes a `Start` on a stack that was copied with it.
    let start = unsafe { &*(start as *const Start<'_>) };
    let [control, ..] = start.received.fds() else { call::exit(call::EXIT_BUG) };
    // SAFETY: puts a descriptor in the place of another, which is nobody's here.
    let placed = unsafe { syscall(k::__NR_dup3, [*control as u64, CONTROL_FD as u64, O_CLOEXEC]) };
    close_all_but_control();
    let tools = placed.and_then(|_| mount_proc()).and_then(|_| tools());
    if tools.is_err() {
        call::exit(0) // whoever asks next sees it, and does without
    }
    become_init(tools)
}

const O_CLOEXEC: u64 = k::O_CLOEXEC as u64;

fn close_all_but_control() {
    call::close_range(0, CONTROL_FD as u32 - 1);
    call::close_range(CONTROL_FD as u32 + 1, u32::MAX);
}

/// Made where the control socket and the standard streams are not, which the init closes.
fn tools() -> Result<Tools, Errno> {
    Tools::make()?.above(CONTROL_FD as u32 + 1)
}

/// Waits for the one request, and becomes the init of its clone. Ends when the agent closes its
/// end first, or speaks in a way that is not understood.
fn become_init(tools: Result<Tools, Errno>) -> ! {
    match receive_request() {
        Some((request, received)) => {
            let (request, received) = (&request, &received);
            let start = Start { request, received, has_container: true, tools: Some(tools) };
            init::enter(&raw const start as u64)
        }
        None => call::exit(0),
    }
}
