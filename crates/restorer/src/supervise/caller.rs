//! The task that made a handed-over call, as it is seen through `/proc`.

use farfork_types::PAGE_BYTES;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::proc::{Path, Proc};
use crate::call::{self, Errno, syscall};
use crate::maps::AddressSpace;

/// A task of the clone, or of a process that descends from it, held in a system call.
pub struct Caller {
    proc: Proc,
    /// Its id in the init's namespace.
    pub tid: u32,
    /// What is mapped in it.
    pub space: AddressSpace,
}

impl Caller {
    /// Looks at the task `tid`.
    pub fn open(proc: Proc, tid: u32) -> Result<Caller, Errno> {
        let maps = proc.file(&Path::of(tid, b"maps"), k::O_RDONLY)?;
        Ok(Caller { proc, tid, space: AddressSpace::of(maps) })
    }

    /// Ends looking.
    pub fn close(self) {
        self.space.close();
    }

    /// Whether the caller's pidfd refers to a task of its own address space.
    pub fn names_itself(&self, pidfd: i32) -> Result<bool, Errno> {
        if pidfd <= PIDFD_SELF_FIRST {
            return Ok(true); // one of the PIDFD_SELF values (Linux 6.14); the kernel refuses others
        }
        let mut text = [0u8; 1024];
        let path = Path::of(self.tid, b"fdinfo/").number(pidfd as u32);
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

    /// Opens its memory, whatever the protection of its pages.
    pub fn memory(&self) -> Result<Memory, Errno> {
        let path = Path::of(self.tid, b"mem");
        self.proc.file(&path, k::O_RDWR).map(|fd| Memory { fd })
    }

    /// Copies words from an address that the caller named, which may be bad.
    pub fn read_words(&self, from: u64, to: &mut [[u64; 2]]) -> Result<(), Errno> {
        let bytes = size_of_val(to) as u64;
        let memory = self.memory()?;
        // SAFETY: the kernel writes at most `bytes` to `to`, plain words.
        let read = unsafe {
            let args = [memory.fd as u64, to.as_mut_ptr() as u64, bytes, from];
            syscall(k::__NR_pread64, args)
        };
        memory.close();
        if read? == bytes { Ok(()) } else { Err(Errno(e::EFAULT as i32)) }
    }
}

const KCMP_VM: u64 = 1;
const PIDFD_SELF_FIRST: i32 = -10_000;

/// The memory of another process, open.
pub struct Memory {
    fd: i32,
}

impl Memory {
    /// Copies `bytes` to fresh memory, which stays untouched where they are zeros.
    pub fn copy_to_zeros(&self, from: u64, to: u64, bytes: u64) -> Result<(), Errno> {
        let mut page = [0u64; PAGE_BYTES as usize / 8];
        for offset in (0..bytes).step_by(PAGE_BYTES as usize) {
            let at = page.as_mut_ptr() as u64;
            let args = [self.fd as u64, at, PAGE_BYTES, from + offset];
            // SAFETY: the kernel writes at most a page to `page`.
            progress(unsafe { syscall(k::__NR_pread64, args) }?)?;
            if page.iter().any(|word| *word != 0) {
                let args = [self.fd as u64, at, PAGE_BYTES, to + offset];
                // SAFETY: the kernel reads from `page`.
                progress(unsafe { syscall(k::__NR_pwrite64, args) }?)?;
            }
        }
        Ok(())
    }

    /// Overwrites `start..end` with zeros.
    pub fn clear(&self, start: u64, end: u64) -> Result<(), Errno> {
        let mut at = start;
        while at < end {
            let part = (end - at).min(ZEROS.len() as u64);
            let args = [self.fd as u64, ZEROS.as_ptr() as u64, part, at];
            // SAFETY: the kernel reads from `ZEROS`.
            at += progress(unsafe { syscall(k::__NR_pwrite64, args) }?)?;
        }
        Ok(())
    }

    /// Closes it.
    pub fn close(self) {
        call::close_range(self.fd as u32, self.fd as u32);
    }
}

static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

fn progress(bytes: u64) -> Result<u64, Errno> {
    if bytes == 0 { Err(Errno(e::ENOMEM as i32)) } else { Ok(bytes) }
}
