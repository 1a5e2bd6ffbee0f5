//! Why a holder cannot go on.

use std::io;
use std::path::PathBuf;

use farfork_sys::words;
use rustix::io::Errno;

/// The message of each error says what was done, to what, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {}; check the directory and its permissions", words::of(.source), path = path.display())]
    Listen {
        /// Where it was to be.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another process listens there, or another file lies there.
    #[error(
        "cannot listen at {path}: it is in use; end the process that listens there, or give another path",
        path = path.display()
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refuses to wait.
    #[error("cannot wait for machines: {}; the processes of all machines were killed", words::words(.0.raw_os_error()))]
    Wait(Errno),
    /// No server can be started.
    #[error(
        "cannot start a server: {why}; the processes of {machines} machines were killed, because no server \
         answers their page faults; free memory and processes, then start farfork vm serve again"
    )]
    NoServer {
        /// The reason.
        why: String,
        /// Machines that were left.
        machines: usize,
    },
    /// A second signal came.
    #[error(
        "interrupted; the processes of {machines} machines were killed, because their memory is served here"
    )]
    Interrupted {
        /// Machines that were left.
        machines: usize,
    },
}
