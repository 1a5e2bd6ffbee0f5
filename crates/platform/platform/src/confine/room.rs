//! Room for files of functions, and why there is none.

use std::io;
use std::path::{Path, PathBuf};

use farfork_sys::words;

/// The folder of a function cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The archive is invalid; its owner has to mend it.
    #[error("cannot unpack the archive: {0}")]
    Archive(String),
    /// The program is invalid; its owner has to mend it.
    #[error("cannot use the program: {0}")]
    Program(String),
    /// Functions could not reach their folders.
    #[error(
        "cannot keep folders of functions in {}: users of functions may not traverse {}; run chmod o+x \
        on it, or keep the platform's state elsewhere (--state DIR)", .at.display(),
        .closed.display()
    )]
    Closed {
        /// The directory of the folders.
        at: PathBuf,
        /// The directory that cannot be traversed.
        closed: PathBuf,
    },
    /// A file operation fails.
    #[error("cannot {doing} {}: {}", .path.display(), words::of(.source))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A file operation has failed.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { doing, path: path.clone(), source }
}

/// What a file or directory takes of the disk at least. Empty files count, too.
pub(super) const LEAST: u64 = 4096;

/// What a group may have on the disk, and what it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) most: u64,
    pub(super) taken: u64,
}
