//! Rights over files. A clone opens the parent's files with the parent's rights, while the agent's
//! are still at hand for everything else.

use farfork_plan::place::{FILE_CAPABILITIES, Rights};
use linux_raw_sys::general as k;

use crate::call::{Errno, SysResult, syscall};

const EPERM: Errno = Errno(linux_raw_sys::errno::EPERM as i32);
/// `_LINUX_CAPABILITY_VERSION_3`, for the calling thread.
const HEADER: [u32; 2] = [0x2008_0522, 0];
/// Not an id: makes `setfsuid` and `setfsgid` return the id in force.
const NO_ID: u64 = u32::MAX as u64;

/// Effective, permitted and inheritable capabilities: the low words, then the high ones.
type Capabilities = [u32; 6];

/// Whose rights over files a thread has.
pub struct FileRights {
    /// Address of the [`Rights`] in force, 0 for the agent's own.
    rights: u64,
    user: u64,
    group: u64,
    capabilities: Capabilities,
}

impl FileRights {
    /// The agent's own.
    pub const fn agents() -> FileRights {
        FileRights { rights: 0, user: 0, group: 0, capabilities: [0; 6] }
    }

    /// Whether others than the agent's are in force.
    pub fn is_assumed(&self) -> bool {
        self.rights != 0
    }

    /// Takes the [`Rights`] at address `rights` of the plan. The agent's groups do not come back:
    /// it has all rights over files without them, and the clone's own follow.
    ///
    /// # Safety
    /// `rights` must be such an address.
    pub unsafe fn assume(&mut self, rights: u64) -> SysResult {
        // SAFETY: the caller gives an address in the mapped plan.
        let wanted = unsafe { &*(rights as *const Rights) };
        let (user, group) = (u64::from(wanted.user), u64::from(wanted.group));
        let groups = [wanted.groups.count, wanted.groups.address];
        // SAFETY: changes this thread's rights; the groups are in the plan.
        unsafe {
            match syscall(k::__NR_setgroups, groups) {
                // A process that may not change groups is not root, and has the right ones.
                Ok(_) | Err(EPERM) => {}
                Err(errno) => return Err(errno),
            }
            // Another id than root's takes some of them away.
            self.capabilities = capabilities()?;
            self.group = syscall(k::__NR_setfsgid, [group])?;
            self.user = syscall(k::__NR_setfsuid, [user])?;
            // These two calls do not say whether they did anything.
            let now = [syscall(k::__NR_setfsuid, [NO_ID])?, syscall(k::__NR_setfsgid, [NO_ID])?];
            if now != [user, group] {
                return Err(EPERM);
            }
        }
        self.rights = rights;
        let lost = FILE_CAPABILITIES & !wanted.capabilities;
        let mut fewer = self.capabilities;
        fewer[0] &= !(lost as u32);
        fewer[3] &= !((lost >> 32) as u32);
        set_capabilities(&fewer)
    }

    /// Takes the agent's own again, if others are in force.
    pub fn resume(&mut self) -> SysResult {
        if self.rights == 0 {
            return Ok(0);
        }
        self.rights = 0;
        // SAFETY: changes this thread's rights.
        unsafe {
            syscall(k::__NR_setfsuid, [self.user])?;
            syscall(k::__NR_setfsgid, [self.group])?;
        }
        set_capabilities(&self.capabilities)
    }

    /// Does something with the agent's own rights.
    ///
    /// # Safety
    /// As `call`.
    pub unsafe fn as_agent(&mut self, call: impl FnOnce() -> SysResult) -> SysResult {
        let rights = self.rights;
        self.resume()?;
        let result = call();
        if rights != 0 {
            // SAFETY: they were assumed before.
            unsafe { self.assume(rights) }?;
        }
        result
    }
}

fn capabilities() -> Result<Capabilities, Errno> {
    let (header, mut sets) = (HEADER, [0u32; 6]);
    // SAFETY: the kernel writes 24 bytes.
    unsafe { syscall(k::__NR_capget, [header.as_ptr() as u64, sets.as_mut_ptr() as u64]) }?;
    Ok(sets)
}

fn set_capabilities(sets: &Capabilities) -> SysResult {
    // SAFETY: the kernel reads 24 bytes.
    unsafe { syscall(k::__NR_capset, [HEADER.as_ptr() as u64, sets.as_ptr() as u64]) }
}
