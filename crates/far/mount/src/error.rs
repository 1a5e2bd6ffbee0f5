//! What can go wrong with a file system.

use std::io;
use std::path::PathBuf;

use farfork_sys::words;

/// The message of each error says what was done, to what, and why it failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// It was not mounted.
    #[error("cannot mount {what} on {}: {why}", at.display())]
    Mount {
        /// What it shows.
        what: &'static str,
        /// Where.
        at: PathBuf,
        /// The reason.
        why: String,
    },
    /// The operating system refused.
    #[error("cannot serve {what} on {}: {}", at.display(), words::of(source))]
    Io {
        /// What it shows.
        what: &'static str,
        /// Where.
        at: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The server has ended by itself, or was killed too often.
    #[error("{what} on {} ended", at.display())]
    Ended {
        /// What it shows.
        what: &'static str,
        /// Where.
        at: PathBuf,
    },
}
