//! Whether two processes, or two descriptors, share a kernel object (`kcmp`, Linux 3.5; needs
//! `CONFIG_KCMP` and permission to read both processes' memory).
#![allow(unsafe_code)] // reason: kcmp has no safe wrapper in any crate we use

use std::cmp::Ordering;

use rustix::io::Errno;

const KCMP_FILE: u64 = 0;
const KCMP_VM: u64 = 1;
const KCMP_FILES: u64 = 2;
const KCMP_FS: u64 = 3;
const KCMP_EPOLL_TFD: u64 = 7;

/// `struct kcmp_epoll_slot`: the `toff`-th watch on number `tfd` of the epoll instance `efd`.
#[repr(C)]
struct EpollSlot {
    efd: u32,
    tfd: u32,
    toff: u32,
}

/// The kernel's own total order on the open file descriptions behind two descriptors of `pid`;
/// equal if they are one.
pub fn order_files(pid: i32, left: u32, right: u32) -> Result<Ordering, Errno> {
    // SAFETY: reads the kernel's tables only.
    let answer = unsafe { kcmp(pid, pid, KCMP_FILE, u64::from(left), u64::from(right)) }?;
    match answer {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Whether descriptor `fd` of `pid` and descriptor `own` of this process are one description.
pub fn is_own_file(pid: i32, fd: u32, own: u32) -> Result<bool, Errno> {
    let this = std::process::id() as i32;
    // SAFETY: reads the kernel's tables only.
    Ok(unsafe { kcmp(pid, this, KCMP_FILE, u64::from(fd), u64::from(own)) }? == 0)
}

/// Whether thread `tid` uses the descriptor table of `pid`.
pub fn shares_table(pid: i32, tid: i32) -> Result<bool, Errno> {
    // SAFETY: reads the kernel's tables only.
    Ok(unsafe { kcmp(pid, tid, KCMP_FILES, 0, 0) }? == 0)
}

/// Whether thread `tid` has the root and the working directory of `pid`, and its umask.
pub fn shares_directories(pid: i32, tid: i32) -> Result<bool, Errno> {
    // SAFETY: reads the kernel's tables only.
    Ok(unsafe { kcmp(pid, tid, KCMP_FS, 0, 0) }? == 0)
}

/// Whether process `other` lives in the address space of `pid`.
pub fn shares_memory(pid: i32, other: i32) -> Result<bool, Errno> {
    // SAFETY: reads the kernel's tables only.
    Ok(unsafe { kcmp(pid, other, KCMP_VM, 0, 0) }? == 0)
}

/// Whether the `nth` watch on number `watched` of the epoll instance `epoll` is a watch on what
/// `watched` is today (Linux 4.13). An error means that one of them is not there.
pub fn is_watching(pid: i32, epoll: u32, watched: u32, nth: u32) -> Result<bool, Errno> {
    let slot = EpollSlot { efd: epoll, tfd: watched, toff: nth };
    let at = &raw const slot as u64;
    // SAFETY: the kernel reads `slot`, which lives across the call.
    Ok(unsafe { kcmp(pid, pid, KCMP_EPOLL_TFD, u64::from(watched), at) }? == 0)
}

/// # Safety
/// With `KCMP_EPOLL_TFD`, `right` must be the address of an [`EpollSlot`].
unsafe fn kcmp(pid: i32, other: i32, kind: u64, left: u64, right: u64) -> Result<i64, Errno> {
    // SAFETY: numbers, and the one address the caller vouches for.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, pid, other, kind, left, right) };
    if answer >= 0 {
        Ok(answer)
    } else {
        Err(Errno::from_raw_os_error(nix::errno::Errno::last_raw()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_duplicate_is_the_same_file_and_another_open_is_not() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let (twin, other) = (null.try_clone().unwrap(), std::fs::File::open("/dev/null").unwrap());
        let pid = std::process::id() as i32;
        let order = |file: &std::fs::File| {
            order_files(pid, null.as_raw_fd() as u32, file.as_raw_fd() as u32).unwrap()
        };
        assert_eq!(order(&twin), Ordering::Equal);
        assert_ne!(order(&other), Ordering::Equal);
        let is_own = |file: &std::fs::File| {
            is_own_file(pid, null.as_raw_fd() as u32, file.as_raw_fd() as u32).unwrap()
        };
        assert!(is_own(&twin) && !is_own(&other));
        assert!(shares_table(pid, pid).unwrap());
        assert!(shares_directories(pid, pid).unwrap());
        assert!(shares_memory(pid, pid).unwrap());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!shares_memory(pid, child.id() as i32).unwrap());
        assert!(!shares_directories(pid, child.id() as i32).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
