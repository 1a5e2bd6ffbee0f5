//! What can go wrong with a pool.

use farfork_sys::words;
use std::io;
use std::path::{Path, PathBuf};

use farfork_types::{CHUNK_BYTES, Cid};

use crate::layout::{MAX_NODE_NAME_BYTES, SMALLEST_BYTES, TRUSTED_OWNER};

/// The message of each error says what was done, to what, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A pool cannot have the size that was asked for.
    #[error(
        "cannot make a pool of {size} bytes at {path}: its size is a multiple of {CHUNK_BYTES} \
         bytes, at least {min}",
        path = path.display(), min = SMALLEST_BYTES
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
        "the superblock of the pool at {path} is damaged: delete the directory and make a new \
         pool; its images are files below images/, which nothing reads without it",
        path = path.display()
    )]
    DamagedSuperblock {
        /// The file.
        path: PathBuf,
    },
    /// The access tables of an image cannot be read.
    #[error(
        "the access tables of image {cid} in the pool at {path} are damaged: run \
         `farfork pool check`, which drops them, then profile the image again",
        path = path.display()
    )]
    DamagedTables {
        /// The file.
        path: PathBuf,
        /// The image.
        cid: Cid,
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
    /// Too few bytes are free.
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
    /// The medium cannot carry a pool.
    #[error("cannot make a pool at {path}: {why}", path = path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// The reason and the way out.
        why: &'static str,
    },
    /// It is a pool of the time when pools were single files.
    #[error(
        "{path} is a pool of an older farfork, which was one file; this one keeps a pool in a directory: \
         export its images with the farfork that made it (`farfork images export`), make a new pool, and \
         import them (`farfork images import`)",
        path = path.display()
    )]
    OldPool {
        /// The file.
        path: PathBuf,
    },
    /// The directory has other things in it.
    #[error(
        "cannot make a pool at {path}: the directory is not empty; give one that is, or that does not \
         exist yet",
        path = path.display()
    )]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The pool is another user's.
    #[error(
        "cannot use the pool at {path}: it belongs to user {owner}, who could have this user run anything \
         (an image is a program); if you trust that user, set {}={owner} here and for the node agent",
        TRUSTED_OWNER, path = path.display()
    )]
    ForeignOwner {
        /// The pool.
        path: PathBuf,
        /// Number of the user.
        owner: u32,
    },
    /// Others may write to the pool's directory.
    #[error(
        "cannot use the pool at {path}: other users may write to its directory; take that from them with \
         `chmod 700`, then run `farfork pool check`",
        path = path.display()
    )]
    Exposed {
        /// The pool.
        path: PathBuf,
    },
    /// The same of a directory in it.
    #[error(
        "cannot use the pool: {path} belongs to another user than the pool, or other users may write to it; \
         give it back with `chown {owner}` and `chmod 700`, then run `farfork pool check`",
        path = path.display()
    )]
    ExposedRoom {
        /// The directory.
        path: PathBuf,
        /// The pool's owner.
        owner: u32,
    },
    /// The file of an image is not its owner's alone.
    #[error(
        "cannot use image {cid}: of {path}, {why}; what it holds may have been read or changed: remove \
         the image and take a new checkpoint",
        path = path.display()
    )]
    UnsafeImage {
        /// The file.
        path: PathBuf,
        /// The image.
        cid: Cid,
        /// What is wrong.
        why: &'static str,
    },
    /// The file of an image is shorter than it was.
    #[error("image {cid} is truncated: remove it and take a new checkpoint")]
    TruncatedImage {
        /// The image.
        cid: Cid,
    },
    /// The file of an image cannot be read.
    #[error("cannot read image {cid}: {}; `farfork pool check` shows what is damaged", words::of(.source))]
    ReadImage {
        /// The image.
        cid: Cid,
        /// The reason.
        source: io::Error,
    },
    /// Bytes of an image lie on another node, and are not to be had here.
    #[error(
        "cannot read all of image {cid}: parts of it lie at {node}; bring them back with \
         `farfork images tier --back`"
    )]
    FarBytes {
        /// The image.
        cid: Cid,
        /// Its address.
        node: String,
    },
    /// Parts of an image cannot leave a medium that other kernels map.
    #[error(
        "cannot move parts of image {cid} to another node: clones of other machines may map its memory \
         (the pool lies on {medium}); keep images whole there"
    )]
    SharedImage {
        /// The image.
        cid: Cid,
        /// What the pool lies on.
        medium: &'static str,
    },
    /// A user has what the user may have.
    #[error(
        "no space for user {user} in the pool at {path}: {what}; remove images with `farfork images rm` and \
         regions with `farfork region destroy`, or raise the limit with `farfork pool quota`",
        path = path.display()
    )]
    OverQuota {
        /// The pool.
        path: PathBuf,
        /// The user.
        user: String,
        /// Which limit.
        what: String,
    },
    /// A name is not a link to an image.
    #[error(
        "the name at {path} is not one that farfork made: run `farfork pool check`, which removes it, and \
         name its image again",
        path = path.display()
    )]
    BadName {
        /// The link.
        path: PathBuf,
    },
    /// A limit cannot be read.
    #[error(
        "the limits of user {user} in the pool at {path} are damaged: set them again with \
         `farfork pool quota`",
        path = path.display()
    )]
    DamagedQuota {
        /// The pool.
        path: PathBuf,
        /// The user.
        user: String,
    },
    /// A user cannot have this name.
    #[error(
        "invalid user {user:?}: a name has 1 to 200 letters, digits, '.', '_' and '-', and starts with \
         none of the last two nor '.'"
    )]
    BadUser {
        /// The name.
        user: String,
    },
    /// A region cannot have this name.
    #[error(
        "invalid name of a region {name:?}: it has 1 to 200 letters, digits, '.', '_' and '-', and starts with \
         none of the last two nor '.'"
    )]
    BadRegionName {
        /// The name.
        name: String,
    },
    /// A region belongs to other processes than those that are to use it.
    #[error(
        "cannot use region {region}: it belongs to user id {has}; run `chown {own} {path}` if no process of \
         that user needs it any more",
        own = rustix::process::geteuid().as_raw(),
        path = path.display()
    )]
    RegionOfOther {
        /// The user and the name.
        region: String,
        /// Its file.
        path: PathBuf,
        /// Its owner.
        has: u32,
    },
    /// Something that farfork did not make is in the place of one of the pool's files.
    #[error(
        "cannot use {path}: it is {found}, where the pool keeps {expected}; farfork did not make it: move it \
         elsewhere, then run `farfork pool check`",
        path = path.display()
    )]
    Misplaced {
        /// The place.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// The pool lies on another medium than the one that it was made on.
    #[error(
        "cannot use the pool at {path}: it was made on {made_on} and lies on {found} now, so it is a copy, \
         which the node agents of the first one take for theirs: export its images where it was made \
         (`farfork images export`), make a new pool here, and import them",
        path = path.display()
    )]
    OtherMedium {
        /// The pool.
        path: PathBuf,
        /// What its superblock names.
        made_on: &'static str,
        /// What it lies on.
        found: &'static str,
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
        move |source| PoolError::of(doing, path.to_owned(), source.into())
    }

    /// What was being done, to which file, and why it failed.
    pub(crate) fn of(doing: &'static str, path: PathBuf, source: io::Error) -> PoolError {
        match source.downcast() {
            Ok(Misplaced { path, found, expected }) => {
                PoolError::Misplaced { path, found, expected }
            }
            Err(source) => PoolError::Io { doing, path, source },
        }
    }
}

/// [`PoolError::Misplaced`], on its way through an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{} is {found}, not {expected}", .path.display())]
pub(crate) struct Misplaced {
    pub(crate) path: PathBuf,
    pub(crate) found: &'static str,
    pub(crate) expected: &'static str,
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
