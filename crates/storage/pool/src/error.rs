//! What can go wrong with a pool.

use farfork_sys::words;
use std::io;
use std::path::{Path, PathBuf};

use farfork_types::{CHUNK_BYTES, Cid};

use crate::layout::{Layout, MAX_IMAGES, MAX_NODE_NAME_BYTES, MAX_NODES};

/// The message of each error says what was done, to what, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A pool cannot have the size that was asked for.
    #[error(
        "cannot make a pool of {size} bytes at {path}: its size is a multiple of {CHUNK_BYTES} \
         bytes, at least {min} and less than {max}",
        path = path.display(), min = Layout::SMALLEST_BYTES, max = Layout::TOO_MANY_BYTES
    )]
    BadSize {
        /// Where the pool was to be.
        path: PathBuf,
        /// Bytes asked for.
        size: u64,
    },
    /// The operating system refused.
    #[error("cannot {doing} {path}: {}{hint}", words::of(.source), path = path.display(), hint = hint(source))]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The file it was tried on.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is not a pool.
    #[error(
        "{path} is not a farfork pool: make one with `farfork pool create` or give another path",
        path = path.display()
    )]
    NotAPool {
        /// The file.
        path: PathBuf,
    },
    /// The pool was never finished.
    #[error(
        "cannot open the pool at {path}: it is not finished; wait for the command that makes it, or, \
         if that was killed, delete the file and make the pool again",
        path = path.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// The pool has another format.
    #[error(
        "cannot open the pool at {path}: it has format version {found}, this farfork reads {known}; \
         use the farfork that made it, or make a new pool",
        path = path.display()
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The superblock does not fit its checksum.
    #[error(
        "the superblock of the pool at {path} is damaged: its images are lost, delete the file \
         and make a new pool",
        path = path.display()
    )]
    DamagedSuperblock {
        /// The file.
        path: PathBuf,
    },
    /// The record of an image does not fit its checksum.
    #[error(
        "the record of image {cid} in the pool at {path} is damaged: remove the image and take a \
         new checkpoint; `farfork pool check` lists what else is damaged",
        path = path.display()
    )]
    DamagedImage {
        /// The file.
        path: PathBuf,
        /// The image.
        cid: Cid,
    },
    /// The access tables of an image cannot be read.
    #[error(
        "the access tables of image {cid} in the pool at {path} are damaged: end its clones and \
         run `farfork pool check`, which drops them, then profile the image again",
        path = path.display()
    )]
    DamagedTables {
        /// The file.
        path: PathBuf,
        /// The image.
        cid: Cid,
    },
    /// The file is shorter than the pool.
    #[error(
        "the pool at {path} is truncated: the file has {found} of {size} bytes; delete it and make \
         a new pool",
        path = path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that are there.
        found: u64,
        /// Bytes that the superblock states.
        size: u64,
    },
    /// The file was deleted, replaced or unmounted.
    #[error(
        "the pool at {path} has gone since it was opened: it was deleted or unmounted; open \
         the pool that took its place or make a new one",
        path = path.display()
    )]
    Gone {
        /// Where it was.
        path: PathBuf,
    },
    /// Too few chunks are free.
    #[error(
        "no space for {asked} bytes in the pool at {path}: {free} bytes are free; remove images \
         with `farfork images rm`, end clones of removed ones, or make a larger pool",
        path = path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free.
        free: u64,
    },
    /// The pool has room, what it lies on has not.
    #[error(
        "the medium under the pool at {path} has no {asked} bytes left although the pool has: \
         {}; enlarge the mount or the memory limit, or remove images",
        words::of(.source),
        path = path.display()
    )]
    MediumFull {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        asked: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// All image slots are taken.
    #[error(
        "the pool at {path} has {MAX_IMAGES} images and cannot take one more: remove images with \
         `farfork images rm`",
        path = path.display()
    )]
    TooManyImages {
        /// The file.
        path: PathBuf,
    },
    /// All node slots are taken.
    #[error(
        "the pool at {path} has {MAX_NODES} nodes and cannot take one more: forget those that are \
         gone for good with `farfork pool forget-node`",
        path = path.display()
    )]
    TooManyNodes {
        /// The file.
        path: PathBuf,
    },
    /// No such node.
    #[error(
        "the pool at {path} has no node {name}: `farfork pool info` lists those that have registered",
        path = path.display()
    )]
    NoNode {
        /// The file.
        path: PathBuf,
        /// The node asked for.
        name: String,
    },
    /// An agent holds the node's row, or clones map what it pins.
    #[error(
        "cannot forget node {name} of the pool at {path}: its agent or clones of it are running; end them first",
        path = path.display()
    )]
    NodeLives {
        /// The file.
        path: PathBuf,
        /// The node.
        name: String,
    },
    /// A node cannot have this name.
    #[error("cannot register node {name:?}: give a name of 1 to {MAX_NODE_NAME_BYTES} bytes")]
    BadNodeName {
        /// The name.
        name: String,
    },
    /// No such image.
    #[error(
        "the pool at {path} has no image {cid}: it was removed or never published; \
         `farfork images list` shows what is there",
        path = path.display()
    )]
    NoImage {
        /// The file.
        path: PathBuf,
        /// The image asked for.
        cid: Cid,
    },
    /// A range lies outside of the data area.
    #[error(
        "cannot read {len} bytes at offset {offset} of the pool at {path}: they lie outside of \
         its data; the image that names them is damaged",
        path = path.display()
    )]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The root does not fit the image.
    #[error(
        "cannot publish image {cid}: its root has {root_bytes} bytes, the image {image_bytes}; \
         allocate space for the root first"
    )]
    BadRoot {
        /// The image.
        cid: Cid,
        /// Bytes of the root.
        root_bytes: u64,
        /// Bytes of the image.
        image_bytes: u64,
    },
    /// The slot was taken from a living writer.
    #[error(
        "cannot publish image {cid}: its place in the pool at {path} was taken although its \
         writer lives; check the pool and take the checkpoint again",
        path = path.display()
    )]
    SlotLost {
        /// The file.
        path: PathBuf,
        /// The image.
        cid: Cid,
    },
    /// The medium cannot carry a pool.
    #[error("cannot make a pool at {path}: {why}", path = path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// The reason and the way out.
        why: &'static str,
    },
    /// The pool is in use.
    #[error(
        "cannot destroy the pool at {path}: {users}; end them first",
        path = path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// What uses it.
        users: String,
    },
}

impl PoolError {
    /// For `map_err`: what was being done, to which file.
    pub(crate) fn io<E: Into<io::Error>>(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> PoolError {
        move |source| PoolError::Io { doing, path: path.to_owned(), source: source.into() }
    }
}

/// What the user can do about the usual reasons.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::AlreadyExists => "; delete it first or give another path",
        io::ErrorKind::PermissionDenied => "; run as the owner or as root",
        io::ErrorKind::StorageFull => "; free space there or enlarge the mount",
        io::ErrorKind::OutOfMemory => "; free memory, or make the pool smaller",
        _ => "; `farfork doctor` shows what this machine can do",
    }
}
