//! Mounts of the template and of containers.

use linux_raw_sys::general as k;

use crate::call::{SysResult, syscall};

/// A mount namespace of its own, from which nothing that containers mount spreads.
pub fn leave_shared_mounts() -> SysResult {
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

/// Mounts the `/proc` of this PID namespace over the one inherited.
pub fn mount_proc() -> SysResult {
    let (kind, at) = (c"proc".as_ptr() as u64, c"/proc".as_ptr() as u64);
    let flags = u64::from(MS_NOSUID | MS_NODEV | MS_NOEXEC);
    // SAFETY: changes this mount namespace only.
    unsafe { syscall(k::__NR_mount, [kind, at, kind, flags, 0]) }
}

const MS_NOSUID: u32 = 2;
const MS_NODEV: u32 = 4;
const MS_NOEXEC: u32 = 8;
