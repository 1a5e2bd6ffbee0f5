//! Why something with a seed failed.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use farfork_checkpoint::CheckpointError;
use farfork_fabric::FabricError;
use farfork_far::FarError;
use farfork_sys::words;

/// Why something with a seed failed.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The process cannot be prepared. It goes on.
    #[error("{0}")]
    Prepare(#[from] CheckpointError),
    /// The keeper cannot serve the seed.
    #[error("cannot keep the seed of process {pid}: {doing}: {}", words::of(.source))]
    Keep {
        /// The process.
        pid: i32,
        /// What was being done.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The keeper cannot listen.
    #[error("cannot listen at {address} for clones of the seed: {}; choose another address with --listen", words::of(.source))]
    Listen {
        /// Where.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// The keeper of a seed refuses the handle.
    #[error(
        "the keeper at {address} does not know the handle of seed {id}: the seed has ended, or the handle is not its own; prepare the process again"
    )]
    NotKnown {
        /// The seed.
        id: String,
        /// Where its keeper listens.
        address: SocketAddr,
    },
    /// The keeper cannot be reached.
    #[error(
        "cannot reach the keeper of seed {id}: {source}; if the seed has ended, prepare the process again"
    )]
    Unreachable {
        /// The seed.
        id: String,
        /// The reason.
        source: FabricError,
    },
    /// The keeper refuses.
    #[error("seed {id} at {address}: {why}")]
    Refused {
        /// The seed.
        id: String,
        /// Where its keeper listens.
        address: SocketAddr,
        /// The reason, in the keeper's words.
        why: String,
    },
    /// The answer of the keeper is not one.
    #[error(
        "the keeper of seed {id} gave an answer that this farfork does not know; use the same farfork on both nodes"
    )]
    Protocol {
        /// The seed.
        id: String,
    },
    /// Certificates, beside the key of a handle, cannot be used.
    #[error("{0}")]
    Certificates(#[from] FarError),
    /// The place where keepers report cannot be used.
    #[error("cannot {doing} {}: {}", .path.display(), words::of(.source))]
    Place {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}
