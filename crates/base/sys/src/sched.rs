//! Scheduling attributes of other threads.
#![allow(unsafe_code)] // reason: sched_getattr and ioprio_get have no wrappers

use std::io;

/// `struct sched_attr` in its first version (Linux 3.14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Attributes {
    /// Bytes of this struct.
    pub size: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Nice value of the ordinary policies.
    pub nice: i32,
    /// Priority of the real-time policies.
    pub priority: u32,
    /// Deadline policy, in ns; for the ordinary policies the time slice.
    pub runtime: u64,
    /// Deadline policy, in ns.
    pub deadline: u64,
    /// Deadline policy, in ns.
    pub period: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// Scheduling attributes of a thread.
pub fn attributes(tid: i32) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    let bytes = size_of::<Attributes>();
    // SAFETY: the kernel writes at most `bytes` bytes to `found`.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut found, bytes, 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
}

/// I/O priority of a thread as `ioprio_set` takes it, 0 where it follows the nice value.
pub fn io_priority(tid: i32) -> io::Result<u32> {
    const IOPRIO_WHO_PROCESS: i32 = 1;
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as u32) }
}
