//! What can be wrong with an image.

use farfork_pool::PoolError;
use farfork_types::Cid;

use crate::catalog::ImageName;

/// Why an image could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// {0}
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The image's metadata is not of this version.
    #[error(
        "cannot read image {cid}: it has format version {found}, this farfork reads {expected}; restore \
         it with the farfork that made it, or take a new checkpoint"
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
        "image {cid} is damaged ({what}): remove it, then take a new checkpoint or import it from an \
         archive"
    )]
    Damaged {
        /// The image.
        cid: Cid,
        /// What does not hold.
        what: &'static str,
    },
    /// Another node has another image under the same id.
    #[error(
        "image {cid} at {node} is not the one in the pool ({what} differs): nothing was moved; give a node \
         that has a copy of this image (`farfork images pull` makes one)"
    )]
    OtherFar {
        /// The image.
        cid: Cid,
        /// Address of the other node.
        node: String,
        /// What differs.
        what: &'static str,
    },
    /// Another node has not all bytes of the image, and reads them here.
    #[error(
        "cannot move parts of image {cid} elsewhere: another node has parts of it here only ({hold}); bring them \
         back there first (`farfork images tier --back`)"
    )]
    Held {
        /// The image.
        cid: Cid,
        /// The name by which the other pool holds it.
        hold: ImageName,
    },
    /// Another node serves the image's own file.
    #[error(
        "cannot move parts of image {cid} to {node}: it serves them from this pool; give a node with a copy in \
         a pool of its own (`farfork images pull` makes one)"
    )]
    SameFile {
        /// The image.
        cid: Cid,
        /// Address of the other node.
        node: String,
    },
    /// It is an image of a virtual machine, where one of processes is needed.
    #[error(
        "image {cid} is a virtual machine snapshot, not a process: restore it with `farfork vm serve`, or \
         export it with `farfork vm export`"
    )]
    IsVirtualMachine {
        /// The image.
        cid: Cid,
    },
    /// It is an image of processes, where one of a virtual machine is needed.
    #[error(
        "image {cid} is a checkpoint of processes, not a virtual machine snapshot: start clones of it with \
         `farfork restore`"
    )]
    IsProcesses {
        /// The image.
        cid: Cid,
    },
}
