//! Locks between processes of one kernel: bytes of a file, far beyond its end.
//!
//! 1. A lock belongs to an open file description of its own, so that two threads of one process
//!    exclude each other and a holder can be seen through any other description.
//! 2. It is dropped by hand, which also drops it for children that inherited the description,
//!    and by the kernel when the last process that has the description dies.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use farfork_types::Cid;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{Mode, OFlags};

/// A byte that stands for something lockable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockByte(i64);

/// No medium has files that large.
const LOCKS_AT: i64 = 1 << 62;

impl LockByte {
    /// Of the superblock: guards publication where there are quotas, the users' tables, and nodes.
    pub(crate) const TABLES: LockByte = LockByte(LOCKS_AT);
    /// Of the superblock: guards names.
    pub(crate) const NAMES: LockByte = LockByte(LOCKS_AT + 1);
    /// Of the superblock: shared by all that write an image.
    pub(crate) const WRITERS: LockByte = LockByte(LOCKS_AT + 2);
    /// Of a file that is being written, or that its writer holds still.
    pub(crate) const WRITER: LockByte = LockByte(LOCKS_AT + 3);
    /// Of a node's file: its agent lives.
    pub(crate) const NODE: LockByte = LockByte(LOCKS_AT + 4);

    /// A byte of a pin file, held by clones of the image. Ids are random, and far fewer than these.
    pub(crate) fn holder(cid: Cid) -> LockByte {
        let mut low = [0; 8];
        low.copy_from_slice(&cid.to_bytes()[..8]);
        LockByte(i64::from_le_bytes(low) & (LOCKS_AT - 1))
    }

    fn request(self, kind: i32) -> nix::libc::flock {
        request(kind, self.0, 1)
    }
}

fn request(kind: i32, start: i64, len: i64) -> nix::libc::flock {
    nix::libc::flock {
        l_type: kind as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Opens what `file` is open on once more: a fresh open file description, closed on exec.
pub(crate) fn reopen(file: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// A held exclusive lock.
#[derive(Debug)]
pub(crate) struct HeldLock {
    file: OwnedFd,
    byte: LockByte,
}

impl HeldLock {
    /// Waits for the lock.
    pub(crate) fn take(file: &File, byte: LockByte) -> io::Result<HeldLock> {
        let file = reopen(file, OFlags::RDWR)?;
        let request = byte.request(nix::libc::F_WRLCK);
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLKW(&request)) {
                Ok(_) => return Ok(HeldLock { file, byte }),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_take(file: &File, byte: LockByte) -> io::Result<Option<HeldLock>> {
        let file = reopen(file, OFlags::RDWR)?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&byte.request(nix::libc::F_WRLCK))) {
            Ok(_) => Ok(Some(HeldLock { file, byte })),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let request = self.byte.request(nix::libc::F_UNLCK);
        // Closing the description, which follows, drops the lock as well.
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&request));
    }
}

/// Takes a shared lock on a fresh open file description and hands the description out: the lock
/// lives as long as any copy or mapping of it.
pub(crate) fn share(file: &File, byte: LockByte) -> io::Result<OwnedFd> {
    let fresh = reopen(file, OFlags::RDONLY)?;
    fcntl(&fresh, FcntlArg::F_OFD_SETLK(&byte.request(nix::libc::F_RDLCK)))?;
    Ok(fresh)
}

/// The same, if no other has it alone. A file that can only be read will do.
pub(crate) fn try_share(file: &File, byte: LockByte) -> io::Result<Option<OwnedFd>> {
    match share(file, byte) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
        shared => shared.map(Some),
    }
}

/// Whether an open file description other than `file`'s own holds the lock.
pub(crate) fn is_held(file: &File, byte: LockByte) -> io::Result<bool> {
    stands_in_the_way(file, byte.request(nix::libc::F_WRLCK))
}

/// Whether another open file description holds a lock of any byte.
pub(crate) fn is_any_held(file: &File) -> io::Result<bool> {
    // A length of 0 means all that follows.
    stands_in_the_way(file, request(nix::libc::F_WRLCK, 0, 0))
}

fn stands_in_the_way(file: &File, mut request: nix::libc::flock) -> io::Result<bool> {
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut request))?;
    Ok(i32::from(request.l_type) != nix::libc::F_UNLCK)
}
