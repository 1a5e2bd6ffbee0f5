//! Why a snapshot could not be imported or exported.

use std::io;
use std::path::{Path, PathBuf};

use farfork_pool::PoolError;
use farfork_sys::words;

use crate::error::ImageError;

/// Bytes of the largest state. Firecracker itself reads no more than 10 MB.
pub const MAX_STATE_BYTES: u64 = 64 << 20;

/// The message of each error says what was done, to what, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The operating system refused.
    #[error(
        "cannot {doing} {path}: {}; check the path, its permissions and the free space",
        words::of(.source), path = path.display()
    )]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is a directory, a device or a pipe.
    #[error("cannot import {path}: it is not a regular file; give the file that the monitor wrote", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file has no bytes.
    #[error("cannot import {path}: it is empty; take the snapshot again", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The state is larger than that of any machine.
    #[error(
        "cannot import {path} as the state of a virtual machine: it has {bytes} bytes, more than {MAX_STATE_BYTES}; \
         give the state file first, then the memory file",
        path = path.display()
    )]
    StateTooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The state ends in a checksum that is not its own.
    #[error(
        "cannot import {path}: it begins as a Firecracker snapshot, but its CRC-64 does not match, so it is \
         truncated or damaged; copy it or take the snapshot again",
        path = path.display()
    )]
    DamagedState {
        /// The file.
        path: PathBuf,
    },
    /// The state is that of another processor.
    #[error(
        "cannot import {path}: it is a Firecracker snapshot of an {architecture} machine, which no guest of \
         this machine can resume; import it there",
        path = path.display()
    )]
    OtherArchitecture {
        /// The file.
        path: PathBuf,
        /// Its processor.
        architecture: &'static str,
    },
    /// The memory file has no whole pages.
    #[error(
        "cannot import the memory {path}: it has {bytes} bytes, which is not a multiple of 4096, so it is \
         truncated or not a memory file; take the snapshot again",
        path = path.display()
    )]
    Unaligned {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// A memory of another size than that of its base.
    #[error(
        "cannot import the memory {path} on top of its base: it has {bytes} bytes and the base's {base_bytes}; give \
         the snapshot from which the machine was started",
        path = path.display()
    )]
    OtherSize {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Bytes of the base's memory.
        base_bytes: u64,
    },
    /// Its file system does not show which pages are holes.
    #[error(
        "cannot import the memory {path} on top of a base: its file system does not show which pages are holes, so \
         that those that did not change are not known; write the snapshot to ext4, XFS or a tmpfs without huge pages",
        path = path.display()
    )]
    HolesUnknown {
        /// The file.
        path: PathBuf,
    },
    /// A file changed while it was read.
    #[error(
        "cannot import {path}: it changed while it was read; import it when the monitor has written it",
        path = path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The image or the pool is not as it should be.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl VmError {
    /// For `map_err`: what was being done, to which file.
    pub(super) fn io<E: Into<io::Error>>(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> VmError {
        move |source| VmError::Io { doing, path: path.to_owned(), source: source.into() }
    }
}

impl From<PoolError> for VmError {
    fn from(error: PoolError) -> VmError {
        VmError::Image(error.into())
    }
}
