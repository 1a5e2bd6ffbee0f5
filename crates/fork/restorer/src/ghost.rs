//! Inits that wait for their request in a container that exists already. A ghost is the first process
//! of a container that `runc` has made. A preforked init is one that the template has forked before a clone
//! was requested. Both have a control socket of their own in the place of the template's.

use farfork_plan::protocol::{Hello, VERSION};
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::init::{self, InitInput};
use crate::mounts::mount_proc;
use crate::packets::{CONTROL_FD, receive_request};
use crate::supervise::SupervisorTools;

/// Runs a ghost.
pub fn wait() -> ! {
    // The container runtime has left it standard streams, and this program's file.
    close_all_but_control();
    if call::send(CONTROL_FD, &Hello { version: VERSION, reserved: 0 }).is_err() {
        call::exit(0)
    }
    // If they could not be made, the request for the clone fails with the reason.
    become_init(tools())
}

/// Runs a preforked init, which was forked with the request that asked for it.
pub extern "C" fn wait_preforked(start: u64) -> ! {
    // SAFETY: the template passes an `InitInput` on a stack that was copied with it.
    let start = unsafe { &*(start as *const InitInput<'_>) };
    let [control, ..] = start.received.fds() else { call::exit(call::EXIT_BUG) };
    // SAFETY: replaces a descriptor that nothing here uses.
    let placed = unsafe { syscall(k::__NR_dup3, [*control as u64, CONTROL_FD as u64, O_CLOEXEC]) };
    close_all_but_control();
    let tools = placed.and_then(|_| mount_proc()).and_then(|_| tools());
    if tools.is_err() {
        call::exit(0) // the agent notices, and forks another init for the next clone
    }
    become_init(tools)
}

const O_CLOEXEC: u64 = k::O_CLOEXEC as u64;

fn close_all_but_control() {
    call::close_range(0, CONTROL_FD as u32 - 1);
    call::close_range(CONTROL_FD as u32 + 1, u32::MAX);
}

/// Makes the tools at numbers above the control socket: the init closes those below.
fn tools() -> Result<SupervisorTools, Errno> {
    SupervisorTools::new()?.above(CONTROL_FD as u32 + 1)
}

/// Waits for the one request, and becomes the init of its clone. Ends when the agent closes its end
/// first, or sends an invalid request.
fn become_init(tools: Result<SupervisorTools, Errno>) -> ! {
    match receive_request() {
        Some((request, received)) => {
            let (request, received) = (&request, &received);
            let start = InitInput { request, received, has_container: true, tools: Some(tools) };
            init::enter(&raw const start as u64)
        }
        None => call::exit(0),
    }
}
