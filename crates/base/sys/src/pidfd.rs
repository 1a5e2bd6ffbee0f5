//! Processes by descriptor, which stays valid when the pid is reused.
#![allow(unsafe_code)] // reason: signals without a name, and a peer's pidfd, have no safe wrapper

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The process that has this pid now (Linux 5.3).
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// The process at the other end of a Unix socket, which connected it (Linux 6.5).
pub fn of_peer(socket: impl AsFd) -> io::Result<OwnedFd> {
    const PEER_PIDFD: i32 = 77;
    let fd = crate::socket::integer_option(socket.as_fd(), libc::SOL_SOCKET, PEER_PIDFD)?;
    // SAFETY: the kernel has just made the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends it a signal by number, real-time signals as well.
pub fn send_signal(process: impl AsFd, signal: i32) -> io::Result<()> {
    let process = process.as_fd().as_raw_fd();
    let null = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: without a siginfo the kernel makes one up; no memory is involved.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, null, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_signal_reaches_the_process_that_was_opened_and_none_after_it() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = open(child.id() as i32).unwrap();
        let real_time = libc::SIGRTMIN() + 3;
        send_signal(&process, real_time).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(real_time));
        let after = send_signal(&process, libc::SIGTERM).unwrap_err();
        assert_eq!(after.raw_os_error(), Some(libc::ESRCH));
        assert!(open(0).is_err());
    }
}
