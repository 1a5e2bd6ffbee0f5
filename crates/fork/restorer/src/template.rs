//! The template: the small process that every clone on a node is forked from.

use farfork_plan::protocol::{MAX_REQUEST_FDS, PidMode, Request, Spawned};
use linux_raw_sys::general as k;

use crate::call::{self, CloneArgs, SysResult, syscall};
use crate::{ghost, init, settle};

/// The socket to the node agent.
pub const CONTROL_FD: i32 = 3;

const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const MSG_CMSG_CLOEXEC: u64 = 0x4000_0000;
const MSG_TRUNC: u64 = 0x20;

/// Descriptors that came with a request, in order.
pub struct Received {
    fds: [i32; MAX_REQUEST_FDS],
    count: usize,
}

impl Received {
    /// The descriptors.
    pub fn fds(&self) -> &[i32] {
        &self.fds[..self.count]
    }

    /// Closes them.
    pub fn close(&self) {
        self.fds().iter().for_each(|fd| call::close_range(*fd as u32, *fd as u32));
    }
}

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
    while let Some((request, received)) = receive() {
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

/// A mount namespace of its own, from which nothing that containers mount spreads.
fn leave_shared_mounts() -> SysResult {
    let root = c"/".as_ptr() as u64;
    let private = u64::from(MS_REC | MS_PRIVATE);
    // SAFETY: both calls change only this process's view of the file system.
    unsafe {
        syscall(k::__NR_unshare, [u64::from(k::CLONE_NEWNS)])?;
        syscall(k::__NR_mount, [0, root, 0, private, 0])
    }
}

const MS_REC: u32 = 1 << 14;
const MS_PRIVATE: u32 = 1 << 18;

#[repr(C)]
struct MessageHeader {
    name: u64,
    name_bytes: u64,
    vectors: u64,
    vector_count: u64,
    control: u64,
    control_bytes: u64,
    flags: u64,
}

#[repr(C, align(8))]
struct Control {
    bytes: u64,
    level: i32,
    kind: i32,
    fds: [i32; MAX_REQUEST_FDS],
}

/// The next request, or nothing when the agent has gone.
pub fn receive() -> Option<(Request, Received)> {
    let mut request = Request::default();
    let (bytes, received) = receive_from(CONTROL_FD, &mut request)?;
    (bytes == size_of::<Request>()).then_some((request, received))
}

/// The next message on the packet socket `fd`, its length and its descriptors; nothing when the
/// other end is closed.
pub fn receive_from<T: Copy>(fd: i32, message: &mut T) -> Option<(usize, Received)> {
    let mut control = Control { bytes: 0, level: 0, kind: 0, fds: [-1; MAX_REQUEST_FDS] };
    let vector = [message as *mut T as u64, size_of::<T>() as u64];
    let mut header = MessageHeader {
        name: 0,
        name_bytes: 0,
        vectors: vector.as_ptr() as u64,
        vector_count: 1,
        control: &raw mut control as u64,
        control_bytes: size_of::<Control>() as u64,
        flags: 0,
    };
    let args = [fd as u64, &raw mut header as u64, MSG_CMSG_CLOEXEC];
    let bytes = loop {
        // SAFETY: the kernel writes into `message`, plain numbers, and `control`, whose sizes it is
        // told.
        match unsafe { syscall(k::__NR_recvmsg, args) } {
            Err(errno) if errno.0 == linux_raw_sys::errno::EINTR as i32 => {}
            Ok(0) | Err(_) => return None,
            Ok(bytes) => break bytes as usize,
        }
    };
    let is_fds =
        header.control_bytes >= 16 && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS);
    let count = if is_fds { (control.bytes as usize - 16) / 4 } else { 0 };
    // What did not fit is no message of ours.
    let bytes = if header.flags & MSG_TRUNC != 0 { usize::MAX } else { bytes };
    Some((bytes, Received { fds: control.fds, count: count.min(MAX_REQUEST_FDS) }))
}

/// Forks the init of a container, or a spare one. It becomes a child of the agent, which alone waits for it.
fn spawn(request: &Request, received: &Received) -> SysResult {
    // No clone changes the mounts that the next one starts with.
    let namespaces = match request.pid_mode {
        mode if mode == PidMode::New as u32 => k::CLONE_NEWPID | k::CLONE_NEWNS,
        _ => k::CLONE_NEWNS,
    };
    let args = CloneArgs { flags: u64::from(k::CLONE_PARENT | namespaces), ..CloneArgs::default() };
    let start = init::Start { request, received, has_container: false, tools: None };
    let life = if request.prepares == 0 { init::enter } else { ghost::wait_as_spare };
    // SAFETY: without CLONE_VM the child has its own copy of this stack.
    unsafe { call::clone3_entry(&args, life, &raw const start as u64) }
}
