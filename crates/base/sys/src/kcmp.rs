//! Whether two processes, or two descriptors, share a kernel object (`kcmp`, Linux 3.5; needs
//! `CONFIG_KCMP` and permission to read both processes' memory).
#![allow(unsafe_code)] // reason: kcmp has no safe wrapper in any crate we use

use std::cmp::Ordering;

use rustix::io::Errno;

const KCMP_FILE: u64 = 0;
const KCMP_VM: u64 = 1;
const KCMP_FILES: u64 = 2;
const KCMP_FS: u64 = 3;
const KCMP_SIGHAND: u64 = 4;
const KCMP_SYSVSEM: u64 = 6;
const KCMP_EPOLL_TFD: u64 = 7;

/// `struct kcmp_epoll_slot`: the `toff`-th watch on number `tfd` of the epoll instance `efd`.
#[repr(C)]
struct EpollSlot {
    efd: u32,
    tfd: u32,
    toff: u32,
}

/// What processes and threads may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shareable {
    /// The address space.
    Memory,
    /// The descriptor table.
    Descriptors,
    /// Root and working directory, and the file creation mask.
    Directories,
    /// What happens on signals.
    Actions,
}

/// The kernel's own total order on the open file descriptions behind two descriptors, each a
/// process and a number; equal if they are one.
pub fn order_files(left: (i32, u32), right: (i32, u32)) -> Result<Ordering, Errno> {
    // SAFETY: reads the kernel's tables only.
    let answer = unsafe { kcmp(left.0, right.0, KCMP_FILE, u64::from(left.1), u64::from(right.1)) };
    ordering(answer?)
}

/// The same on what two processes have of a kind.
pub fn order(left: i32, right: i32, what: Shareable) -> Result<Ordering, Errno> {
    let kind = match what {
        Shareable::Memory => KCMP_VM,
        Shareable::Descriptors => KCMP_FILES,
        Shareable::Directories => KCMP_FS,
        Shareable::Actions => KCMP_SIGHAND,
    };
    // SAFETY: reads the kernel's tables only.
    ordering(unsafe { kcmp(left, right, kind, 0, 0) }?)
}

fn ordering(answer: i64) -> Result<Ordering, Errno> {
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

/// Whether a process has a list of changes of semaphores that are to be undone at its end
/// (`SEM_UNDO`), which may be empty where it has threads. The kernel does not show what is in it.
pub fn has_undo_list(pid: i32) -> Result<bool, Errno> {
    // One that surely has none: a thread that has left the list of its process.
    let compare = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_SYSVSEM)
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        let own = nix::unistd::gettid().as_raw();
        // SAFETY: reads the kernel's tables only.
        Ok(unsafe { kcmp(pid, own, KCMP_SYSVSEM, 0, 0) }? != 0)
    };
    std::thread::spawn(compare).join().unwrap_or(Err(Errno::CANCELED))
}

/// Whether process `other` lives in the address space of `pid`.
pub fn shares_memory(pid: i32, other: i32) -> Result<bool, Errno> {
    // SAFETY: reads the kernel's tables only.
    Ok(unsafe { kcmp(pid, other, KCMP_VM, 0, 0) }? == 0)
}

/// Whether the `nth` watch on number `watched` of the epoll instance `epoll`, a process and a
/// number, is a watch on what `watched` of process `pid` is today (Linux 4.13). An error means that
/// one of them is not there.
pub fn is_watching(epoll: (i32, u32), pid: i32, watched: u32, nth: u32) -> Result<bool, Errno> {
    let slot = EpollSlot { efd: epoll.1, tfd: watched, toff: nth };
    let at = &raw const slot as u64;
    // SAFETY: the kernel reads `slot`, which lives across the call.
    Ok(unsafe { kcmp(pid, epoll.0, KCMP_EPOLL_TFD, u64::from(watched), at) }? == 0)
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
        let order_to = |file: &std::fs::File| {
            order_files((pid, null.as_raw_fd() as u32), (pid, file.as_raw_fd() as u32)).unwrap()
        };
        assert_eq!(order_to(&twin), Ordering::Equal);
        assert_ne!(order_to(&other), Ordering::Equal);
        let is_own = |file: &std::fs::File| {
            is_own_file(pid, null.as_raw_fd() as u32, file.as_raw_fd() as u32).unwrap()
        };
        assert!(is_own(&twin) && !is_own(&other));
        assert!(shares_table(pid, pid).unwrap());
        assert!(shares_directories(pid, pid).unwrap());
        assert!(shares_memory(pid, pid).unwrap());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let theirs = child.id() as i32;
        assert!(!shares_memory(pid, theirs).unwrap());
        use Shareable::*;
        for what in [Memory, Descriptors, Directories, Actions] {
            assert_ne!(order(pid, theirs, what).unwrap(), Ordering::Equal, "{what:?}");
            assert_eq!(order(pid, pid, what).unwrap(), Ordering::Equal, "{what:?}");
        }
        assert!(!shares_directories(pid, theirs).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
