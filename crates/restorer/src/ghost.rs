//! A ghost: the first process of a container that somebody else has made, waiting to become the
//! init of a clone. It has the template's control socket and memory, and forks no init: it is one.

use farfork_plan::protocol::{Hello, VERSION};

use crate::call;
use crate::init::{self, Start};
use crate::template::{CONTROL_FD, receive};

/// Waits for the one request, and becomes the init of its clone. Ends when the agent closes its
/// end first, or speaks in a way that is not understood.
pub fn wait() -> ! {
    // Whoever made the container has left it standard streams, and this program's file.
    call::close_range(0, CONTROL_FD as u32 - 1);
    call::close_range(CONTROL_FD as u32 + 1, u32::MAX);
    if call::send(CONTROL_FD, &Hello { version: VERSION, reserved: 0 }).is_err() {
        call::exit(0)
    }
    match receive() {
        Some((request, received)) => {
            let start = Start { request: &request, received: &received, is_ghost: true };
            init::enter(&raw const start as u64)
        }
        None => call::exit(0),
    }
}
