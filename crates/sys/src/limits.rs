//! Resource limits of other processes.
#![allow(unsafe_code)] // reason: prlimit takes pointers

use std::io;

/// Soft and hard limit of `resource` (an `RLIMIT_*` number) of a process.
pub fn of(pid: i32, resource: u32) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    let result = unsafe { libc::prlimit(pid, resource, std::ptr::null(), &raw mut limit) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((limit.rlim_cur, limit.rlim_max))
}
