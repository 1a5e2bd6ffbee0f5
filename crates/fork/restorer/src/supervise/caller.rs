//! The task that made a handed-over call, as it is seen through `/proc`.

use core::cell::OnceCell;

use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::memory::Memory;
use super::proc::{self, Proc};
use super::smaps;
use crate::call::{Errno, syscall};
use crate::maps::AddressSpace;

/// A task of the clone, or of a process that descends from it, held in a system call.
pub struct Caller {
    proc: Proc,
    /// Its id in the init's namespace.
    pub tid: u32,
    /// What is mapped in it.
    pub space: AddressSpace,
    memory: OnceCell<Memory>,
}

impl Caller {
    /// Looks at the task `tid`.
    pub fn open(proc: Proc, tid: u32) -> Result<Caller, Errno> {
        let maps = proc.file(&proc::path_of(tid, b"maps"), k::O_RDONLY)?;
        Ok(Caller { proc, tid, space: AddressSpace::from_maps_fd(maps), memory: OnceCell::new() })
    }

    /// Ends looking.
    pub fn close(self) {
        self.space.close();
        if let Some(memory) = self.memory.into_inner() {
            memory.close();
        }
    }

    /// Whether the caller's pidfd refers to a task of its own address space.
    pub fn names_itself(&self, pidfd: i32) -> Result<bool, Errno> {
        if pidfd <= PIDFD_SELF_FIRST {
            return Ok(true); // one of the PIDFD_SELF values (Linux 6.14); the kernel refuses others
        }
        let mut text = [0u8; 1024];
        let path = proc::path_of(self.tid, b"fdinfo/").number(pidfd.into());
        let text = match self.proc.read(&path, &mut text) {
            Err(Errno(errno)) if errno == e::ENOENT as i32 => return Ok(false),
            text => text?,
        };
        let pid = text
            .split(|byte| *byte == b'\n')
            .find_map(|line| line.strip_prefix(b"Pid:\t"))
            .map_or(0, |digits| digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')));
        if pid == 0 {
            return Ok(false); // no pidfd, or of a process outside
        }
        // SAFETY: kcmp has no effects.
        unsafe { syscall(k::__NR_kcmp, [u64::from(self.tid), u64::from(pid), KCMP_VM, 0, 0]) }
            .map(|order| order == 0)
    }

    /// Its memory, whatever the protection of the pages. Opened once: as long as the call is
    /// known to wait for its answer afterwards, it is the caller's.
    pub fn memory(&self) -> Result<&Memory, Errno> {
        if self.memory.get().is_none() {
            let fd = self.proc.file(&proc::path_of(self.tid, b"mem"), k::O_RDWR)?;
            let _ = self.memory.set(Memory::from_fd(fd, self.tid));
        }
        self.memory.get().ok_or(Errno(e::ENOMEM as i32))
    }

    /// The attributes of the mapping at `address`, as bits of [`smaps`].
    pub fn attributes(&self, address: u64) -> Result<u64, Errno> {
        let fd = self.proc.file(&proc::path_of(self.tid, b"smaps"), k::O_RDONLY)?;
        smaps::look_up(fd, address)
    }

    /// Whether all mappings in `start..end` have the same attributes.
    pub fn are_alike(&self, start: u64, end: u64) -> Result<bool, Errno> {
        let fd = self.proc.file(&proc::path_of(self.tid, b"smaps"), k::O_RDONLY)?;
        smaps::are_alike(fd, start, end)
    }
}

const KCMP_VM: u64 = 1;
const PIDFD_SELF_FIRST: i32 = -10_000;
