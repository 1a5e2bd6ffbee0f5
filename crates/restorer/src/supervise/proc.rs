//! `/proc`, held open from before the clone starts, which may unmount its own or cover it.

use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};

/// The directory `/proc` of the init's PID namespace.
#[derive(Clone, Copy)]
pub struct Proc {
    fd: i32,
}

impl Proc {
    /// Opens it at a number of at least `lowest`.
    pub fn open(lowest: u32) -> Result<Proc, Errno> {
        let opened = detached_copy().or_else(|_| open_at(k::AT_FDCWD, PROC, k::O_DIRECTORY))?;
        let kept = call::duplicate_above(opened, lowest);
        call::close_range(opened as u32, opened as u32);
        kept.map(|fd| Proc { fd })
    }

    /// Opens a file below it.
    pub fn file(&self, path: &Path, flags: u32) -> Result<i32, Errno> {
        open_at(self.fd, path.bytes(), flags)
    }

    /// The text of a file below it, as far as it has room.
    pub fn read<'a>(&self, path: &Path, text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let fd = self.file(path, k::O_RDONLY)?;
        let args = [fd as u64, text.as_mut_ptr() as u64, text.len() as u64];
        // SAFETY: the kernel writes at most `text.len()` bytes.
        let read = unsafe { syscall(k::__NR_read, args) };
        call::close_range(fd as u32, fd as u32);
        Ok(&text[..read? as usize])
    }
}

const PROC: &[u8] = b"/proc\0";

/// A mount of the same file system that is in no place, and so keeps nobody from unmounting the
/// one that is. A user namespace may forbid it.
fn detached_copy() -> Result<i32, Errno> {
    let flags = u64::from(k::OPEN_TREE_CLONE | k::O_CLOEXEC);
    let args = [k::AT_FDCWD as i64 as u64, PROC.as_ptr() as u64, flags];
    // SAFETY: `PROC` ends in NUL; the call makes a descriptor.
    unsafe { syscall(k::__NR_open_tree, args) }.map(|fd| fd as i32)
}

fn open_at(directory: i32, path: &[u8], flags: u32) -> Result<i32, Errno> {
    let flags = u64::from(flags | k::O_CLOEXEC);
    let args = [directory as i64 as u64, path.as_ptr() as u64, flags, 0];
    // SAFETY: `path` ends in NUL; the call makes a descriptor.
    unsafe { syscall(k::__NR_openat, args) }.map(|fd| fd as i32)
}

/// A path below `/proc`, NUL-terminated.
pub struct Path {
    bytes: [u8; 64],
    length: usize,
}

impl Path {
    /// The path `name`.
    pub fn new(name: &[u8]) -> Path {
        Path { bytes: [0; 64], length: 0 }.then(name)
    }

    /// `TID/name`.
    pub fn of(tid: u32, name: &[u8]) -> Path {
        Path::new(b"").number(tid).then(b"/").then(name)
    }

    /// The same with `name` appended.
    pub fn then(mut self, name: &[u8]) -> Path {
        for byte in name {
            if self.length + 1 < self.bytes.len() {
                self.bytes[self.length] = *byte;
                self.length += 1;
            }
        }
        self
    }

    /// The same with a decimal number appended.
    pub fn number(self, value: u32) -> Path {
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        let mut rest = value;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return self.then(&digits[at..]);
            }
        }
    }

    /// The path with its NUL.
    fn bytes(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}
