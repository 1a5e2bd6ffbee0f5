//! Why a benchmark failed.

use farfork_sys::words;
use std::io;
use std::path::PathBuf;

use farfork_checkpoint::CheckpointError;
use farfork_image::error::ImageError;
use farfork_node::NodeError;
use farfork_pool::PoolError;

/// Why a benchmark failed. What it had started has been killed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The machine lacks something.
    #[error("cannot {doing}: {reason}; {remedy}")]
    Lacking {
        /// What could not be done.
        doing: String,
        /// Why not.
        reason: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// No such subject.
    #[error("unknown subject {unknown}; the subjects are {known}")]
    Unknown {
        /// The name that was given.
        unknown: String,
        /// All subjects.
        known: String,
    },
    /// A run gave a wrong result.
    #[error("wrong result of {case}: {reason}")]
    Wrong {
        /// The case.
        case: String,
        /// What is wrong.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {doing} {}: {}", path.display(), words::of(.source))]
    Io {
        /// What could not be done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A trace of calls cannot be read.
    #[error("cannot read the trace {}: {reason}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The platform did not do what it was asked.
    #[error("the platform failed while {doing}: {reason}")]
    Platform {
        /// What it was doing.
        doing: String,
        /// Why.
        reason: String,
    },
    /// A subject gave no answer, or a wrong one.
    #[error(
        "wrong or missing answer of {case}: {reason}; the benchmark stops, its figures would mean nothing"
    )]
    Answer {
        /// Subject and how it was started.
        case: String,
        /// What is wrong.
        reason: String,
    },
    /// The pool could not be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An image could not be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The agent could not start a clone.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A subject could not be checkpointed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// An error of a system call, with what it was for.
pub(crate) fn io(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> BenchError {
    let path = path.into();
    move |source| BenchError::Io { doing, path, source }
}
