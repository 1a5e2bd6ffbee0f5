//! What can go wrong with a region.

use std::io;
use std::path::{Path, PathBuf};

use farfork_sys::words;

use crate::layout::{CLIENTS, LARGEST_BYTES, MAILBOXES, MOST_SLOTS, NAME_BYTES, SMALLEST_BYTES};

/// The message of each error says what was done, to what, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// A region cannot have the size that was asked for.
    #[error(
        "cannot create a region of {bytes} bytes at {path}: its size is a multiple of 4096 bytes from \
         {SMALLEST_BYTES} to {LARGEST_BYTES}",
        path = path.display()
    )]
    BadSize {
        /// Where it was to be.
        path: PathBuf,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A region with node-local metadata cannot have the size that was asked for.
    #[error(
        "cannot create a region of {bytes} bytes at {path}: with its metadata in node-local memory, its size is a \
         multiple of 65536 bytes",
        path = path.display()
    )]
    BadNodeSize {
        /// Where it was to be.
        path: PathBuf,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Node-local metadata cannot be in this directory.
    #[error(
        "cannot keep the metadata of a region in {directory}: give an absolute path of at most 256 bytes",
        directory = directory.display()
    )]
    BadDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// Node-local metadata is not there, but clients live.
    #[error(
        "cannot open the region at {path}: its metadata is not at {metadata}, and {clients} clients use it; \
         end them, and the next client rebuilds it",
        path = path.display(),
        metadata = metadata.display()
    )]
    MetadataLost {
        /// The region.
        path: PathBuf,
        /// Where its metadata belongs.
        metadata: PathBuf,
        /// Number of living clients.
        clients: usize,
    },
    /// This process has lost metadata mapped, which is rebuilt by another process or when this one has closed it.
    #[error(
        "cannot go on with the region at {path}: its metadata was lost since this process opened it; \
         close all handles of it in this process, and open it again",
        path = path.display()
    )]
    MetadataReplaced {
        /// The region.
        path: PathBuf,
    },
    /// The directory of node-local metadata is one in which its owner could not have put it.
    #[error(
        "cannot open the region at {path}: its metadata belongs into {metadata}, which is neither a directory of user {owner} nor \
         one of all users with the sticky bit; open it as that user",
        path = path.display(),
        metadata = metadata.display()
    )]
    ForeignMetadata {
        /// The region.
        path: PathBuf,
        /// The directory.
        metadata: PathBuf,
        /// Owner of the region.
        owner: u32,
    },
    /// The operating system refused.
    #[error("cannot {doing} {path}: {}", words::of(.source), path = path.display())]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The file it was tried on.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The region is another user's.
    #[error(
        "cannot open the region at {path}: it belongs to user {owner}, whose processes alone may use it; run this one as \
         that user, or make a region of your own",
        path = path.display()
    )]
    ForeignOwner {
        /// The file.
        path: PathBuf,
        /// Number of the user.
        owner: u32,
    },
    /// The file is not a region.
    #[error(
        "{path} is not a region: make one with \"farfork region create\" or give another path",
        path = path.display()
    )]
    NotARegion {
        /// The file.
        path: PathBuf,
    },
    /// The region has another format.
    #[error(
        "cannot open the region at {path}: it has format version {found}, this farfork reads {known}; \
         use the farfork that made it, or make a new region",
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
    /// The header does not fit its checksum, or contradicts itself.
    #[error(
        "cannot open the region at {path}: its header is damaged; make a new region",
        path = path.display()
    )]
    DamagedHeader {
        /// The file.
        path: PathBuf,
    },
    /// The file has another size than the region.
    #[error(
        "cannot open the region at {path}: the file has {found} bytes, the region {expected}; it was \
         truncated or is a part of a copy: make a new region",
        path = path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes of the file.
        found: u64,
        /// Bytes of the region.
        expected: u64,
    },
    /// Something else is mapped where the region belongs.
    #[error(
        "cannot map the region at {path}: this process uses memory between {address:#x} and {end:#x}, \
         where every client maps it; open the region earlier, or make another one",
        path = path.display()
    )]
    AddressTaken {
        /// The file.
        path: PathBuf,
        /// Where it belongs.
        address: u64,
        /// Its end there.
        end: u64,
    },
    /// No protection key is available for its metadata.
    #[error(
        "cannot protect the metadata of the region at {path}: this machine has no protection keys, or this process uses \
         all of them ({}); unset FARFORK_PROTECTED to use the region without",
        words::of(.source),
        path = path.display()
    )]
    NoProtectionKey {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// All ids of clients are taken.
    #[error(
        "cannot open the region at {path}: it has {CLIENTS} living clients, the most there can be; \
         close one",
        path = path.display()
    )]
    ClientsFull {
        /// The file.
        path: PathBuf,
    },
    /// Clients use a region that is to be removed.
    #[error(
        "cannot destroy the region at {path}: {clients} clients use it; end them first",
        path = path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Number of living clients.
        clients: usize,
    },
    /// No run of free spans is long enough.
    #[error(
        "cannot allocate an object of {bytes} bytes: the region has no free space of this length; free \
         objects, or make a larger region"
    )]
    NoRun {
        /// Bytes asked for.
        bytes: usize,
    },
    /// No slot is free.
    #[error("cannot allocate an object: the region is full; free objects, or make a larger region")]
    Full,
    /// The client does not own what it passed.
    #[error(
        "cannot {doing} {pointer:#x}: it is not an object that this client owns (freed or sent already, \
         or not from this region)"
    )]
    NotOwned {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The pointer.
        pointer: usize,
    },
    /// A client of a checked region passed what it must not.
    #[error("cannot {doing} {pointer:#x}: {what}")]
    Misused {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The pointer.
        pointer: usize,
        /// What is there.
        what: String,
    },
    /// The object of a reference, in a checked region, is not there any more.
    #[error("stale reference {reference:#x}: {what}")]
    StaleReference {
        /// The reference.
        reference: u64,
        /// What is there.
        what: String,
    },
    /// A client of a checked region has lost its id.
    #[error("cannot go on as client {id} of the region: {reason}")]
    LostId {
        /// The id.
        id: u8,
        /// How it was lost.
        reason: String,
    },
    /// An object with references cannot be so large.
    #[error(
        "cannot allocate an object of {bytes} bytes with references: it may have {most} at most; keep the \
         data in an object of its own"
    )]
    BadNode {
        /// Bytes asked for.
        bytes: usize,
        /// Most bytes.
        most: usize,
    },
    /// An object that cannot be linked, sent as a root or released.
    #[error("cannot change a structure at {pointer:#x}: {reason}")]
    NotLinkable {
        /// The pointer.
        pointer: usize,
        /// Why not.
        reason: &'static str,
    },
    /// Another client may change the structure.
    #[error(
        "cannot change the structure: its writer is client {writer} (0: none); let it pass the role on, and \
         take it"
    )]
    NotWriter {
        /// The writer.
        writer: u8,
    },
    /// A reference that does not belong to the region.
    #[error("{reference:#x} is not a reference to an object of this region")]
    ForeignReference {
        /// The reference.
        reference: u64,
    },
    /// An operation cannot be registered.
    #[error("cannot register guarded operation \"{name}\": {reason}")]
    BadOperation {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A library does not have guarded operations.
    #[error("cannot load guarded operations from {path}: {reason}", path = path.display())]
    BadLibrary {
        /// The library.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A call of or in a guarded operation that has not happened.
    #[error("cannot {doing} in a guarded operation: {reason}")]
    Guard {
        /// What was tried, as a verb.
        doing: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A mailbox cannot have this name.
    #[error(
        "invalid mailbox name \"{name}\" (expected 1 to {NAME_BYTES} bytes without control characters)"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// A mailbox cannot have so many slots.
    #[error("cannot open mailbox {name} with {slots} slots: {reason}")]
    BadSlots {
        /// Its name.
        name: String,
        /// Slots asked for.
        slots: u64,
        /// Why not.
        reason: String,
    },
    /// The region has as many mailboxes as it can have.
    #[error(
        "cannot make mailbox {name}: the region has {MAILBOXES} mailboxes, the most there can be; use \
         one of them, or another region"
    )]
    MailboxesFull {
        /// Name of the new one.
        name: String,
    },
    /// Another living client sends or receives there.
    #[error(
        "cannot {doing} mailbox {name}: client {holder} does so; a mailbox has one sender and one \
         receiver until they close the region or die"
    )]
    RoleTaken {
        /// `send to` or `receive from`.
        doing: &'static str,
        /// The mailbox.
        name: String,
        /// The client.
        holder: u8,
    },
    /// A word of the region has an impossible value.
    #[error(
        "the region at {path} is damaged: {what}; a client wrote where it must not, make a new region",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is impossible.
        what: String,
    },
}

impl ObjectsError {
    /// For `map_err`: what was being done to which file.
    pub(crate) fn io<E: Into<io::Error>>(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> ObjectsError {
        move |source| ObjectsError::Io { doing, path: path.to_owned(), source: source.into() }
    }

    /// For slots: the most there can be.
    pub(crate) fn slots(name: &str, slots: u64, reason: impl Into<String>) -> ObjectsError {
        ObjectsError::BadSlots { name: name.to_owned(), slots, reason: reason.into() }
    }

    pub(crate) fn too_many_slots(name: &str, slots: u64) -> ObjectsError {
        let reason = format!("it has a power of two of them, at most {MOST_SLOTS}");
        ObjectsError::slots(name, slots, reason)
    }

    /// The error's number for C.
    pub fn errno(&self) -> i32 {
        match self {
            ObjectsError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            ObjectsError::ForeignOwner { .. } | ObjectsError::ForeignMetadata { .. } => {
                libc::EACCES
            }
            ObjectsError::MetadataReplaced { .. } => libc::ESTALE,
            ObjectsError::OtherVersion { .. } => libc::EPROTONOSUPPORT,
            ObjectsError::DamagedHeader { .. }
            | ObjectsError::Damaged { .. }
            | ObjectsError::Truncated { .. } => libc::EBADMSG,
            ObjectsError::AddressTaken { .. } => libc::EADDRINUSE,
            ObjectsError::NoProtectionKey { .. } => libc::EOPNOTSUPP,
            ObjectsError::LostId { .. } => libc::EOWNERDEAD,
            ObjectsError::ClientsFull { .. } => libc::EUSERS,
            ObjectsError::InUse { .. }
            | ObjectsError::MetadataLost { .. }
            | ObjectsError::RoleTaken { .. } => libc::EBUSY,
            ObjectsError::Full | ObjectsError::NoRun { .. } => libc::ENOMEM,
            ObjectsError::NotWriter { .. } => libc::EPERM,
            ObjectsError::MailboxesFull { .. } => libc::ENOSPC,
            ObjectsError::BadSize { .. }
            | ObjectsError::BadNodeSize { .. }
            | ObjectsError::BadDirectory { .. }
            | ObjectsError::NotARegion { .. }
            | ObjectsError::NotOwned { .. }
            | ObjectsError::Misused { .. }
            | ObjectsError::StaleReference { .. }
            | ObjectsError::BadNode { .. }
            | ObjectsError::NotLinkable { .. }
            | ObjectsError::ForeignReference { .. }
            | ObjectsError::BadName { .. }
            | ObjectsError::BadOperation { .. }
            | ObjectsError::BadLibrary { .. }
            | ObjectsError::Guard { .. }
            | ObjectsError::BadSlots { .. } => libc::EINVAL,
        }
    }
}
