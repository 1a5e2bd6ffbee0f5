//! The task that made a handed-over call, as it is seen through `/proc`.

use farfork_types::PAGE_BYTES;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::maps::AddressSpace;

/// A task of the clone, or of a process that descends from it, held in a system call.
pub struct Caller {
    /// Its id in the init's namespace.
    pub tid: u32,
    /// What is mapped in it.
    pub space: AddressSpace,
}

impl Caller {
    /// Looks at the task `tid`.
    pub fn open(tid: u32) -> Result<Caller, Errno> {
        let space = AddressSpace::open(ProcPath::new(tid).file(b"maps").bytes())?;
        Ok(Caller { tid, space })
    }

    /// Ends looking.
    pub fn close(self) {
        self.space.close();
    }

    /// Whether the caller's pidfd refers to a task of its own address space.
    pub fn names_itself(&self, pidfd: i32) -> bool {
        if pidfd <= PIDFD_SELF_FIRST {
            return true; // one of the PIDFD_SELF values (Linux 6.14); the kernel refuses others
        }
        let mut text = [0u8; 1024];
        let path = ProcPath::new(self.tid).file(b"fdinfo/").number(pidfd as u32);
        let Ok(text) = read_file(path.bytes(), &mut text) else { return false };
        let pid = text
            .split(|byte| *byte == b'\n')
            .find_map(|line| line.strip_prefix(b"Pid:\t"))
            .map_or(0, |digits| digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')));
        // SAFETY: kcmp has no effects.
        let order =
            unsafe { syscall(k::__NR_kcmp, [u64::from(self.tid), u64::from(pid), KCMP_VM, 0, 0]) };
        pid != 0 && order == Ok(0)
    }

    /// Opens its memory, whatever the protection of its pages.
    pub fn memory(&self) -> Result<Memory, Errno> {
        let path = ProcPath::new(self.tid).file(b"mem");
        open(path.bytes(), k::O_RDWR).map(|fd| Memory { fd })
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

/// A path below `/proc/PID`, NUL-terminated.
struct ProcPath {
    bytes: [u8; 64],
    length: usize,
}

impl ProcPath {
    /// `/proc/TID/`.
    fn new(tid: u32) -> ProcPath {
        ProcPath { bytes: [0; 64], length: 0 }.file(b"/proc/").number(tid).file(b"/")
    }

    /// The same with `name` appended.
    fn file(mut self, name: &[u8]) -> ProcPath {
        for byte in name {
            if self.length + 1 < self.bytes.len() {
                self.bytes[self.length] = *byte;
                self.length += 1;
            }
        }
        self
    }

    /// The same with a decimal number appended.
    fn number(self, value: u32) -> ProcPath {
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        let mut rest = value;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return self.file(&digits[at..]);
            }
        }
    }

    /// The path with its NUL.
    fn bytes(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}

fn open(path: &[u8], flags: u32) -> Result<i32, Errno> {
    let args =
        [k::AT_FDCWD as i64 as u64, path.as_ptr() as u64, u64::from(flags | k::O_CLOEXEC), 0];
    // SAFETY: `path` ends in NUL; the call makes a descriptor.
    unsafe { syscall(k::__NR_openat, args) }.map(|fd| fd as i32)
}

/// A file's text, for the few lines under `/proc` that are needed.
pub fn read_file<'a>(path: &[u8], text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let fd = open(path, k::O_RDONLY)?;
    let args = [fd as u64, text.as_mut_ptr() as u64, text.len() as u64];
    // SAFETY: the kernel writes at most `text.len()` bytes.
    let read = unsafe { syscall(k::__NR_read, args) };
    call::close_range(fd as u32, fd as u32);
    Ok(&text[..read? as usize])
}
