//! Why a benchmark could not be run.

use farfork_sys::words;
use std::io;
use std::path::PathBuf;

use farfork_checkpoint::CheckpointError;
use farfork_image::error::ImageError;
use farfork_node::NodeError;
use farfork_pool::PoolError;

/// Why a benchmark could not be run to its end. What it had started is gone.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The machine lacks something.
    #[error("cannot {doing}: {reason}; {remedy}")]
    Lacking {
        /// In doing what.
        doing: String,
        /// Why.
        reason: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// There is no such subject.
    #[error("unknown subject {unknown}; the subjects are {known}")]
    Unknown {
        /// What was asked for.
        unknown: String,
        /// All that there is.
        known: String,
    },
    /// The system refused something.
    #[error("cannot {doing} {}: {}", path.display(), words::of(.source))]
    Io {
        /// In doing what.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A trace of calls cannot be read.
    #[error("cannot read calls from {}: {reason}", path.display())]
    Trace {
        /// Its file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The platform does not do what it was asked.
    #[error("the platform, {doing}: {reason}")]
    Platform {
        /// While doing what.
        doing: String,
        /// What is wrong.
        reason: String,
    },
    /// A subject gave no answer, or a wrong one.
    #[error("{case}: {reason}; figures of a process that answers wrongly would mean nothing")]
    Answer {
        /// Subject and way to start it.
        case: String,
        /// What was wrong.
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

/// Names what was being done to what.
pub(crate) fn io(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> BenchError {
    let path = path.into();
    move |source| BenchError::Io { doing, path, source }
}
