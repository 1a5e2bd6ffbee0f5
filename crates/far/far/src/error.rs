//! What can go wrong with far memory.

use std::io;
use std::path::PathBuf;

use farfork_fabric::{BadCertificates, FabricError};
use farfork_pool::PoolError;
use farfork_sys::words;
use farfork_types::TlsFiles;

/// The message of each error says what was done, to what, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    /// The operating system refused.
    #[error("cannot {doing} {}: {}", path.display(), words::of(source))]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The file it was tried on.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file is not a key.
    #[error("{} is not a key of far memory: give the file that \"farfork far serve\" wrote", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// Other users can read a key.
    #[error("other users can read the key {}: run chmod 600 on it", path.display())]
    ExposedKey {
        /// The file.
        path: PathBuf,
    },
    /// Files for TLS cannot be used.
    #[error("cannot use {}, {} and {} for TLS: {reason}", files.cert.display(), files.key.display(), files.ca.display())]
    Certificates {
        /// The files.
        files: TlsFiles,
        /// Which one, and why.
        reason: BadCertificates,
    },
    /// The mount of a source has other files for TLS than a command gives.
    #[error(
        "{source_address} is mounted {mounted}: run \"farfork far unmount {source_address}\" first, so that \
         the certificates that are given count"
    )]
    OtherTls {
        /// The source.
        source_address: String,
        /// In words.
        mounted: &'static str,
    },
    /// The source cannot be read.
    #[error("cannot read far memory: {0}; see that \"farfork far serve\" runs there")]
    Fabric(#[from] FabricError),
    /// The far process has failed, or refused.
    #[error("{0}")]
    Process(String),
    /// The file system of images is not there.
    #[error("{0}")]
    Mount(#[from] farfork_mount::MountError),
    /// The pool cannot be used.
    #[error("{0}")]
    Pool(#[from] PoolError),
}

impl FarError {
    /// For `map_err`: what was being done, to which file.
    pub fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> FarError {
        let path = path.into();
        move |source| FarError::Io { doing, path, source }
    }
}
