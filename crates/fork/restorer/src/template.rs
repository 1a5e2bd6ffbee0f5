//! The template: the small process that every clone on a node is forked from.

use farfork_plan::protocol::{PidMode, Request, Spawned};
use linux_raw_sys::general as k;

use crate::call::{self, CloneArgs, SysResult, syscall};
use crate::mounts::leave_shared_mounts;
use crate::packets::{CONTROL_FD, Received, receive_request};
use crate::{ghost, init, settle};

/// Serves requests until the agent closes its end. A program that has more arguments than its name
/// is a ghost instead.
///
/// # Safety
/// Called from `_start` alone, on the stack inside the window.
pub unsafe extern "C" fn serve(arguments: u64) -> ! {
    settle::drop_the_rest();
    block_all_signals();
    default_all_signals();
    if arguments > 1 {
        ghost::wait()
    }
    if leave_shared_mounts().is_err() {
        call::exit(call::EXIT_BUG)
    }
    while let Some((request, received)) = receive_request() {
        let init_pid = match spawn(&request, &received) {
            Ok(pid) => pid as i64,
            Err(errno) => -i64::from(errno.0),
        };
        received.close();
        if call::send(CONTROL_FD, &Spawned { init_pid }).is_err() {
            break;
        }
    }
    call::exit(0)
}

/// Signals stay blocked until a clone's `rt_sigreturn` restores the parent's mask.
fn block_all_signals() {
    let all = u64::MAX;
    let args = [u64::from(k::SIG_BLOCK), &raw const all as u64, 0, 8];
    // SAFETY: the kernel reads eight bytes of mask.
    let _ = unsafe { syscall(k::__NR_rt_sigprocmask, args) };
}

/// Plans only name signals whose action is not the default one.
fn default_all_signals() {
    let action = [0u64; 4]; // handler SIG_DFL, no flags, no restorer, empty mask
    for signal in 1..=64u64 {
        let args = [signal, action.as_ptr() as u64, 0, 8];
        // SAFETY: the kernel reads one sigaction; SIGKILL and SIGSTOP are refused, as they should.
        let _ = unsafe { syscall(k::__NR_rt_sigaction, args) };
    }
}

/// Forks the init of a container, or a preforked one. It becomes a child of the agent, which alone waits for it.
fn spawn(request: &Request, received: &Received) -> SysResult {
    // No clone changes the mounts that the next one starts with.
    let namespaces = match request.pid_mode {
        mode if mode == PidMode::New as u32 => k::CLONE_NEWPID | k::CLONE_NEWNS,
        _ => k::CLONE_NEWNS,
    };
    let args = CloneArgs { flags: u64::from(k::CLONE_PARENT | namespaces), ..CloneArgs::default() };
    let start = init::InitInput { request, received, has_container: false, tools: None };
    let life = if request.prepares == 0 { init::enter } else { ghost::wait_preforked };
    // SAFETY: without CLONE_VM the child has its own copy of this stack.
    unsafe { call::clone3_entry(&args, life, &raw const start as u64) }
}
