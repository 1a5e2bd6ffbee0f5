//! The proof that clones of an image live: locks that only the kernel can drop.

use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farfork_sys::boot::Boot;
use farfork_sys::proc;
use farfork_types::Cid;
use rustix::fs::{major, minor};

use crate::error::PoolError;
use crate::lock::{self, LockByte};

/// A small empty file per node and pool. The byte of an image is locked as long as a clone of that image
/// lives on the node.
#[derive(Debug)]
pub struct PinFile {
    path: PathBuf,
    file: File,
    holder: Holder,
}

/// Which pin file shows what lives of a node. It stays this one at least as long as a process
/// holds a lock in it, and for one boot of one machine at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) boot: Boot,
    device: u64,
    inode: u64,
}

impl Holder {
    fn of(file: &Metadata) -> Holder {
        Holder { boot: Boot::now(), device: file.dev(), inode: file.ino() }
    }

    pub(crate) fn to_words(self) -> [u64; 4] {
        [self.boot.machine, self.boot.boot, self.device, self.inode]
    }

    pub(crate) fn from_words(words: [u64; 4]) -> Holder {
        let [machine, boot, device, inode] = words;
        Holder { boot: Boot { machine, boot }, device, inode }
    }

    /// Whether the kernel's list of all locks has one of this file, wherever that lies. Files are
    /// compared by device and inode; some file systems (overlay, btrfs) have others in that list.
    pub(crate) fn is_listed(&self) -> Result<bool, PoolError> {
        let path = Path::new("/proc/locks");
        let locks = proc::text(path).map_err(PoolError::io("look for locks in", path))?;
        let (major, minor) = (major(self.device), minor(self.device));
        let file = format!("{major:02x}:{minor:02x}:{}", self.inode);
        Ok(locks.split_ascii_whitespace().any(|word| word == file))
    }
}

impl PinFile {
    /// Opens the file at `path`, which is made if it is not there.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn open(path: &Path) -> Result<PinFile, PoolError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(PoolError::io("open the pin file", path))?;
        let found = file.metadata().map_err(PoolError::io("look at the pin file", path))?;
        Ok(PinFile { path: path.to_owned(), file, holder: Holder::of(&found) })
    }

    pub(crate) fn holder(&self) -> Holder {
        self.holder
    }

    /// Locks the byte of `cid` for as long as any copy of the returned file descriptor is open, or mapped.
    /// It is closed on exec unless the caller passes it on.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn hold(&self, cid: Cid) -> Result<OwnedFd, PoolError> {
        lock::share(&self.file, LockByte::holder(cid))
            .map_err(PoolError::io("lock an image in the pin file", &self.path))
    }

    /// Whether the byte of `cid` is locked.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn is_held(&self, cid: Cid) -> Result<bool, PoolError> {
        lock::is_held(&self.file, LockByte::holder(cid))
            .map_err(PoolError::io("look for holders in the pin file", &self.path))
    }

    /// Whether the byte of any image is locked.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub(crate) fn is_any_held(&self) -> Result<bool, PoolError> {
        lock::is_any_held(&self.file)
            .map_err(PoolError::io("look for holders in the pin file", &self.path))
    }
}
