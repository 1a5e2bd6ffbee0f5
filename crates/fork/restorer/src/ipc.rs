//! Objects of System V, which are known by their ids.

use farfork_plan::ipc;
use linux_raw_sys::{general as k, prctl};

use crate::call::{self, Errno, SysResult, syscall};
use crate::text::Text;

const IPC_CREAT: u64 = 0o1000;
const IPC_EXCL: u64 = 0o2000;
/// What its maker may do until it has its own permissions.
const OWNER: u64 = 0o600;
const KEEP: u64 = u32::MAX as u64;

/// Makes what [`farfork_plan::nr::MAKE_IPC`] says.
///
/// # Safety
/// As a call: makes an object of this IPC namespace, and has no effect on memory.
pub unsafe fn make([kind, id, key, size, user, group]: [u64; 6]) -> SysResult {
    let flags = IPC_CREAT | IPC_EXCL | OWNER;
    let (next, number, args) = match kind {
        ipc::SEGMENT => (c"/proc/sys/kernel/shm_next_id", k::__NR_shmget, [key, size, flags]),
        ipc::SEMAPHORES => (c"/proc/sys/kernel/sem_next_id", k::__NR_semget, [key, size, flags]),
        ipc::QUEUE => (c"/proc/sys/kernel/msg_next_id", k::__NR_msgget, [key, flags, 0]),
        _ => return Err(Errno(linux_raw_sys::errno::EBADMSG as i32)),
    };
    // SAFETY: calls that touch no memory but what they read.
    unsafe {
        let path = next.as_ptr() as u64;
        choose(path, id)?;
        match as_creator(user, group, || syscall(number, args))? {
            made if made == id => Ok(made),
            _ => Err(Errno(linux_raw_sys::errno::EEXIST as i32)),
        }
    }
}

/// Has the kernel give this id to the next object (`CONFIG_CHECKPOINT_RESTORE`).
unsafe fn choose(path: u64, id: u64) -> SysResult {
    let text = Text::<24>::new(b"").number(id as i64);
    let (at, flags) = (k::AT_FDCWD as i64 as u64, u64::from(k::O_WRONLY | k::O_CLOEXEC));
    // SAFETY: the kernel reads the path and `text`.
    unsafe {
        let fd = syscall(k::__NR_openat, [at, path, flags])?;
        let written = syscall(k::__NR_write, [fd, text.address(), text.bytes().len() as u64]);
        call::close_range(fd as u32, fd as u32);
        written
    }
}

/// Who makes an object is its creator for ever.
unsafe fn as_creator(user: u64, group: u64, make: impl FnOnce() -> SysResult) -> SysResult {
    // SAFETY: the effective ids are this thread's own, and come back.
    unsafe {
        let (own_user, own_group) = (syscall(k::__NR_geteuid, [])?, syscall(k::__NR_getegid, [])?);
        if (user, group) == (own_user, own_group) {
            return make();
        }
        syscall(k::__NR_setresgid, [KEEP, group, KEEP])?;
        syscall(k::__NR_setresuid, [KEEP, user, KEEP])?;
        let made = make();
        syscall(k::__NR_setresuid, [KEEP, own_user, KEEP])?;
        syscall(k::__NR_setresgid, [KEEP, own_group, KEEP])?;
        // What the kernel takes away when ids change.
        syscall(k::__NR_prctl, [u64::from(prctl::PR_SET_DUMPABLE), 1])?;
        made
    }
}
