//! What a checkpoint knows of a process: plain values, independent of the pool that holds them.
//!
//! The model is encoded into the image's metadata. The hot path never reads it; it serves to
//! compile the plan, to show a user what is in the image, and to move images between pools.
//! Addresses are the parent's, lengths are bytes, times nanoseconds unless a name says otherwise.
//!
//! ```text
//!  Model ─┬─ members   processes: a parent comes before its children
//!         └─ files, objects, terminals, …   what they may share, referred to by index
//! ```

mod clocks;
mod connection;
mod files;
mod filter;
mod identity;
mod ipc;
mod locks;
mod memory;
mod process;
mod shared;
mod socket;
mod terminal;
mod unnamed;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use clocks::{Clocks, Offsets, Readings};
pub use connection::TcpConnection;
pub use files::{
    Descriptor, EpollWatch, FanotifyMark, InotifyWatch, MOST_RINGS, OpenFile, RING_POSITIONS,
    RingQueue,
};
pub use filter::SeccompFilter;
pub use identity::{Credentials, Hardening, Scheduling};
pub use ipc::{MessageQueue, QueuedMessage, SemaphoreSet, SystemVIdentity};
pub use locks::{Lock, LockKind, Notice};
pub use memory::{
    Backing, FileIdentity, FileStamp, Memory, Region, RegionTraits, Segment, Stored, StoredWindow,
};
pub use process::{Kinship, PosixTimer, Process, Signals, Thread, Timers};
pub use shared::{ObjectExtent, ObjectKind, SharedObject, SystemVSegment};
pub use socket::{Message, Socket, SocketFile, SocketOption, SocketRole};
pub use terminal::{SETTINGS_BYTES, Terminal};
pub use unnamed::UnnamedFile;

/// Pages per 2 MiB window, as 64-bit words of a bitmap.
pub const WINDOW_WORDS: usize = 8;

/// A process at rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// What the image was made on.
    pub made_on: MadeOn,
    /// Seconds since the epoch when it was made.
    pub created_unix_s: u64,
    /// Its processes, at least one. The first is the ancestor of the others.
    pub members: Vec<Member>,
    /// Memory without a name that mappings and descriptors share, referred to by index.
    pub objects: Vec<SharedObject>,
    /// What the image holds of `objects`, as if it were an address space.
    pub content: Stored,
    /// Whether a clone is in an IPC namespace of its own, as it must be to have objects of System V.
    pub has_own_ipc: bool,
    /// Semaphores of System V.
    pub semaphores: Vec<SemaphoreSet>,
    /// Message queues of System V.
    pub queues: Vec<MessageQueue>,
    /// Open file descriptions that descriptors refer to, or only messages in flight.
    pub files: Vec<OpenFile>,
    /// Files without a name that some of `files` have open.
    pub unnamed: Vec<UnnamedFile>,
    /// Terminals whose masters are among `files`.
    pub terminals: Vec<Terminal>,
    /// Mounts that files lie on, in the order in which they were made.
    pub mounts: Vec<Mount>,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Place in the tree.
    pub kinship: Kinship,
    /// Identity and attributes.
    pub process: Process,
    /// The address space.
    pub memory: Memory,
    /// Threads, the leader first.
    pub threads: Vec<Thread>,
    /// Signal actions and pending signals.
    pub signals: Signals,
    /// Interval and POSIX timers.
    pub timers: Timers,
    /// Open descriptors, by number.
    pub descriptors: Vec<Descriptor>,
    /// Locks and leases that it holds.
    pub locks: Vec<Lock>,
    /// Those of its files that send signals.
    pub notices: Vec<Notice>,
}

/// A mount of the process's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where.
    pub point: PathBuf,
    /// Type of the file system.
    pub fs_type: String,
    /// What the file system says that it is made of.
    pub source: String,
    /// Options of the mount, separated by commas.
    pub options: String,
    /// Present if the process had it for itself alone: where the node has the same file or
    /// directory, to be bound to `point` in the clone.
    pub bound_from: Option<PathBuf>,
}

/// Kernel and processor of the parent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MadeOn {
    /// `uname -r`.
    pub kernel: String,
    /// Version of farfork.
    pub farfork: String,
    /// XCR0: which register sets the processor saves.
    pub xcr0: u64,
    /// Processor features, as `/proc/cpuinfo` names them.
    pub cpu_flags: Vec<String>,
    /// CRC-32C of the vDSO's bytes.
    pub vdso_crc: u32,
    /// The parent's clocks.
    pub clocks: Clocks,
}

impl Model {
    /// TCP connections that go on where their parent ended.
    pub fn connections(&self) -> impl Iterator<Item = &TcpConnection> {
        self.files.iter().filter_map(|file| match file {
            OpenFile::Socket(socket) => match &socket.role {
                SocketRole::Established(connection) => Some(&**connection),
                _ => None,
            },
            _ => None,
        })
    }

    /// Whether it has several processes.
    pub fn is_tree(&self) -> bool {
        self.members.len() > 1
    }

    /// The process that a clone is known by: the ancestor of the others.
    ///
    /// # Panics
    /// If there is none. A [valid](Model::validate) model has one.
    pub fn root(&self) -> &Member {
        &self.members[0]
    }
}
