//! Why a function could not be profiled.

use std::io;
use std::path::PathBuf;

use farfork_sys::words;

/// Why a function could not be profiled. Its processes have been killed.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A program or file that is needed is missing.
    #[error("cannot {doing}: {reason}; {remedy}")]
    Lacking {
        /// What could not be done.
        doing: String,
        /// Why not.
        reason: String,
        /// What the user can do.
        remedy: String,
    },
    /// A payload cannot be used.
    #[error("cannot use the payload in {}: {reason}", path.display())]
    Payload {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Two payloads would have the same cells.
    #[error(
        "cannot profile two payloads of {bytes} bytes: cells are distinguished by their payloads' sizes; give each payload \
         another \"payload_bytes\""
    )]
    SamePayload {
        /// Their size.
        bytes: u64,
    },
    /// The function fails.
    #[error("cannot profile {function}: {reason}")]
    Function {
        /// The function.
        function: String,
        /// Why not.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {doing}: {}", words::of(.source))]
    Io {
        /// What could not be done.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> ProfileError {
    move |source| ProfileError::Io { doing, source }
}
