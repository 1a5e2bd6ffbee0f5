//! Reserves memory of the pool in the name of a cgroup.
//!
//! The kernel charges a page of tmpfs to the memory cgroup of the process that first touches it; in cgroup
//! version 1 that is the cgroup of the process, not of the thread. So a short-lived child process
//! joins the cgroup and allocates.
//!
//! 1. The child runs nothing but async-signal-safe calls, with all signals blocked.
//! 2. It has no exit signal: no SIGCHLD handler and no `wait` of the embedding program sees it.
//! 3. It closes all that it inherits but the file: the reader of a pipe that it held open would wait
//!    for its end. Should the writer be killed meanwhile, the file goes with the child.
#![allow(unsafe_code)] // reason: forks a child that only makes system calls

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

use crate::map::GatherMap;

/// Exit status of a child that could not join the cgroup; above every errno.
const NOT_JOINED: c_int = 255;

/// Gives memory to a range of `file`, charged to the cgroup whose member
/// list is `members`, and gathers its pages by `map`. `None` if the cgroup cannot be joined.
pub(crate) fn reserve_in(
    members: &CStr,
    file: &File,
    map: &GatherMap,
    range: &Range<u64>,
) -> Option<io::Result<()>> {
    let file = file.as_raw_fd();
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before)).ok()?;
    // SAFETY: with no flags this is a fork without exit signal; the child only calls `child`, which
    // neither allocates nor locks, and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if pid == 0 {
        close_all_but(file);
        child(members, file, map, range);
    }
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    if pid < 0 { None } else { outcome(pid as libc::pid_t) }
}

fn outcome(pid: libc::pid_t) -> Option<io::Result<()>> {
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` is a valid place.
    while unsafe { libc::waitpid(pid, &mut status, libc::__WCLONE) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Some(Err(error));
        }
    }
    if !libc::WIFEXITED(status) {
        // Only the memory limit of the cgroup kills a process that blocks every signal.
        return Some(Err(io::Error::from_raw_os_error(libc::ENOMEM)));
    }
    match libc::WEXITSTATUS(status) {
        0 => Some(Ok(())),
        NOT_JOINED => None,
        errno => Some(Err(io::Error::from_raw_os_error(errno))),
    }
}

fn close_all_but(kept: RawFd) {
    let close = |first: RawFd, last: RawFd| {
        if first <= last {
            // SAFETY: in the child, where nothing but `kept` is used any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    close(0, kept - 1);
    close(kept + 1, RawFd::MAX);
}

fn child(members: &CStr, file: RawFd, map: &GatherMap, range: &Range<u64>) -> ! {
    let status = if join(members) { reserve(file, range) } else { NOT_JOINED };
    if status == 0 {
        map.gather(range);
    }
    // SAFETY: ends this process without running anything of the parent's.
    unsafe { libc::_exit(status) }
}

fn join(members: &CStr) -> bool {
    // SAFETY: system calls on a C string and a static byte; "0" stands for the caller.
    unsafe {
        let list = libc::open(members.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        list >= 0 && libc::write(list, b"0".as_ptr().cast(), 1) == 1
    }
}

/// 0, or the errno if there is no memory.
fn reserve(file: RawFd, range: &Range<u64>) -> c_int {
    let (offset, len) = (range.start as i64, (range.end - range.start) as i64);
    // SAFETY: a system call on an open descriptor; the errno of this thread is read right after.
    unsafe {
        match libc::fallocate(file, libc::FALLOC_FL_KEEP_SIZE, offset, len) {
            0 => 0,
            _ => *libc::__errno_location(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_keeps_nothing_but_the_file() {
        let files = [(); 4].map(|()| File::open("/dev/null").unwrap());
        let kept = files[2].as_raw_fd();
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if pid == 0 {
            close_all_but(kept);
            // SAFETY: asks for flags of descriptors, and ends the child.
            unsafe {
                let is_open = |fd: &RawFd| libc::fcntl(*fd, libc::F_GETFD) >= 0;
                let is_right = (0..1024).filter(is_open).eq([kept]);
                libc::_exit(if is_right { 0 } else { 1 })
            }
        }
        assert!(matches!(outcome(pid as libc::pid_t), Some(Ok(()))));
    }
}
