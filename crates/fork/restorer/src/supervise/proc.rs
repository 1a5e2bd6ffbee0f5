//! `/proc`, held open from before the clone starts: the clone may unmount its own or mount over it.

use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::text::Text;

/// The directory `/proc` of the init's PID namespace.
#[derive(Clone, Copy)]
pub struct Proc {
    fd: i32,
}

impl Proc {
    /// Opens it.
    pub fn open() -> Result<Proc, Errno> {
        let opened = detached_copy()
            .or_else(|_| open_at(k::AT_FDCWD, PROC.as_ptr() as u64, k::O_DIRECTORY))?;
        Ok(Proc { fd: opened })
    }

    /// The same at a number of at least `lowest`.
    pub fn above(self, lowest: u32) -> Result<Proc, Errno> {
        Ok(Proc { fd: call::move_above(self.fd, lowest)? })
    }

    /// Opens a file below it.
    pub fn file(&self, path: &Path, flags: u32) -> Result<i32, Errno> {
        open_at(self.fd, path.address(), flags)
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

/// A detached mount of the same file system. It does not keep the clone from unmounting the attached
/// one. A user namespace may forbid it.
fn detached_copy() -> Result<i32, Errno> {
    let flags = u64::from(k::OPEN_TREE_CLONE | k::O_CLOEXEC);
    let args = [k::AT_FDCWD as i64 as u64, PROC.as_ptr() as u64, flags];
    // SAFETY: `PROC` ends in NUL; the call makes a descriptor.
    unsafe { syscall(k::__NR_open_tree, args) }.map(|fd| fd as i32)
}

fn open_at(directory: i32, path: u64, flags: u32) -> Result<i32, Errno> {
    let flags = u64::from(flags | k::O_CLOEXEC);
    let args = [directory as i64 as u64, path, flags, 0];
    // SAFETY: `path` ends in NUL; the call makes a descriptor.
    unsafe { syscall(k::__NR_openat, args) }.map(|fd| fd as i32)
}

/// A path below `/proc`.
pub type Path = Text<64>;

/// `TID/name`.
pub fn path_of(tid: u32, name: &[u8]) -> Path {
    Path::new(b"").number(tid.into()).then(b"/").then(name)
}
