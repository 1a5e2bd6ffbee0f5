//! The proof that clones of an image live: locks that only the kernel can drop.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::PoolError;
use crate::ids::ImageSlot;
use crate::lock::{self, LockByte};

/// A small empty file per node and pool. The byte of an image's slot is locked as long as a clone
/// of that image lives on the node.
#[derive(Debug)]
pub struct PinFile {
    path: PathBuf,
    file: File,
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
        Ok(PinFile { path: path.to_owned(), file })
    }

    /// Locks the byte of `slot` for as long as any copy of the returned file descriptor is open, or mapped.
    /// It is closed on exec: whoever passes it on says so.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn hold(&self, slot: ImageSlot) -> Result<OwnedFd, PoolError> {
        lock::share(&self.file, LockByte::holder(slot))
            .map_err(PoolError::io("lock a slot in the pin file", &self.path))
    }

    /// Whether anybody holds the byte of `slot`.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn is_held(&self, slot: ImageSlot) -> Result<bool, PoolError> {
        lock::is_held(&self.file, LockByte::holder(slot))
            .map_err(PoolError::io("look for holders in the pin file", &self.path))
    }
}
