//! What can be wrong with an image.

use farfork_pool::PoolError;
use farfork_types::Cid;

/// Why an image could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// {0}
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The image's metadata is not of this version.
    #[error(
        "image {cid} is of format {found}, this farfork reads {expected}: restore it with the \
         farfork that made it, or make it again"
    )]
    Version {
        /// The image.
        cid: Cid,
        /// Its format.
        found: u32,
        /// The one that is read here.
        expected: u32,
    },
    /// The image's metadata is damaged.
    #[error(
        "image {cid} is damaged ({what}): remove it and make it again, or import it from a file"
    )]
    Damaged {
        /// The image.
        cid: Cid,
        /// What does not hold.
        what: &'static str,
    },
    /// The pool has no run of free chunks that is long enough for the metadata.
    #[error(
        "the pool's free chunks are too scattered for the {chunks} chunks of metadata of image \
         {cid}: remove images that are not needed"
    )]
    Scattered {
        /// The image.
        cid: Cid,
        /// Chunks wanted side by side.
        chunks: u32,
    },
}
