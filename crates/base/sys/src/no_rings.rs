//! A process and its descendants without io_uring, as on a kernel that does not have it.
#![allow(unsafe_code)] // reason: seccomp has no safe wrapper

use std::io;

/// `seccomp_data.nr`.
const NUMBER_AT: u32 = 0;
/// Set in the numbers of x32 calls.
const X32: u32 = 0x4000_0000;
/// The same in every table of calls.
const IO_URING_SETUP: u32 = libc::SYS_io_uring_setup as u32;

const fn step(code: u32, if_true: u8, if_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: if_true, jf: if_false, k }
}

const FILTER: [libc::sock_filter; 5] = [
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER_AT),
    step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, !X32),
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, IO_URING_SETUP),
    step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
];

/// Answers ENOSYS to `io_uring_setup` from now on: in this thread, and in what it starts and executes. They
/// get no rights from set-user-ID programs any more (`no_new_privs`), so that a clone can have the filter
/// whatever its rights are.
///
/// # Errors
/// The kernel has no seccomp filters (`CONFIG_SECCOMP_FILTER`).
pub fn forbid() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let mut filter = FILTER;
    let program = libc::sock_fprog { len: FILTER.len() as u16, filter: filter.as_mut_ptr() };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, 0);
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_rings_has_all_other_calls() {
        let answers = std::thread::spawn(|| {
            forbid().unwrap();
            let number = libc::SYS_io_uring_setup;
            // SAFETY: the call fails before it reads anything.
            let ring = unsafe { libc::syscall(number, 1, std::ptr::null::<u8>()) };
            let error = io::Error::last_os_error();
            // SAFETY: it has no arguments.
            (ring, error.raw_os_error(), unsafe { libc::getpid() })
        });
        let own = std::process::id() as i32;
        assert_eq!(answers.join().unwrap(), (-1, Some(libc::ENOSYS), own));
    }
}
