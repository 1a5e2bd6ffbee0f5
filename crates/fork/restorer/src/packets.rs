//! Messages on packet sockets, with the descriptors that come along.

use farfork_plan::protocol::{MAX_REQUEST_FDS, Request};
use linux_raw_sys::general as k;

use crate::call::{self, syscall};

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

/// The next request, or nothing when the agent has exited.
pub fn receive_request() -> Option<(Request, Received)> {
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
        // SAFETY: the kernel writes into `message`, plain numbers, and `control`, whose sizes are in
        // the header.
        match unsafe { syscall(k::__NR_recvmsg, args) } {
            Err(errno) if errno.0 == linux_raw_sys::errno::EINTR as i32 => {}
            Ok(0) | Err(_) => return None,
            Ok(bytes) => break bytes as usize,
        }
    };
    let is_fds =
        header.control_bytes >= 16 && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS);
    let count = if is_fds { (control.bytes as usize - 16) / 4 } else { 0 };
    // A longer message is not one of the protocol.
    let bytes = if header.flags & MSG_TRUNC != 0 { usize::MAX } else { bytes };
    Some((bytes, Received { fds: control.fds, count: count.min(MAX_REQUEST_FDS) }))
}
