//! Descriptors and the open file descriptions that they refer to.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{FileIdentity, FileStamp, Message, Socket, SocketOption};

/// One descriptor number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Number.
    pub fd: u32,
    /// Index in [`super::Model::files`]; several descriptors share one after `dup`.
    pub file: u32,
    /// Whether `execve` closes it.
    pub cloexec: bool,
}

/// One open file description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OpenFile {
    /// A regular file or a device, by path.
    Path {
        /// Where it is.
        path: PathBuf,
        /// `open` flags without creation flags.
        flags: u32,
        /// File position.
        offset: u64,
        /// Present for regular files, which must not have changed.
        stamp: Option<FileStamp>,
        /// What was there.
        identity: FileIdentity,
    },
    /// A regular file without a name, in [`super::Model::unnamed`].
    Unnamed {
        /// Index there; several descriptions may have one file open.
        file: u32,
        /// `open` flags without creation flags.
        flags: u32,
        /// File position.
        offset: u64,
    },
    /// One end of a pipe; both ends name the same pipe.
    Pipe {
        /// Identity of the pipe within the image.
        pipe: u64,
        /// Whether this is the write end.
        is_write_end: bool,
        /// Status flags.
        flags: u32,
        /// Capacity in bytes.
        capacity: u32,
        /// Bytes in the pipe; only kept at the read end.
        content: Vec<u8>,
    },
    /// An eventfd.
    Event {
        /// Counter.
        count: u64,
        /// Status flags.
        flags: u32,
        /// `EFD_SEMAPHORE`.
        is_semaphore: bool,
    },
    /// A signalfd.
    Signal {
        /// Signals it accepts.
        mask: u64,
        /// Status flags.
        flags: u32,
    },
    /// A timerfd.
    Timer {
        /// Clock.
        clock: i32,
        /// Status flags.
        flags: u32,
        /// `timerfd_settime` flags to set it with: absolute on the wall clock only, since other
        /// clocks differ between nodes.
        set_flags: u32,
        /// Expirations not yet read.
        ticks: u64,
        /// Interval and expiry, absolute if `set_flags` says so: s, ns, s, ns.
        setting: [u64; 4],
    },
    /// An epoll instance.
    Epoll {
        /// Status flags.
        flags: u32,
        /// Watched descriptors.
        watches: Vec<EpollWatch>,
    },
    /// An inotify instance in whose queue nothing waits.
    Inotify {
        /// Status flags.
        flags: u32,
        /// Watches, by number.
        watches: Vec<InotifyWatch>,
    },
    /// A fanotify group that only gets reports, and in whose queue nothing waits.
    Fanotify {
        /// Status flags.
        flags: u32,
        /// Kind and events of the group, as `fanotify_init` takes them.
        group: u32,
        /// Flags of the files that come with events, likewise.
        event_flags: u32,
        /// What it watches.
        marks: Vec<FanotifyMark>,
    },
    /// A pidfd.
    ProcessHandle {
        /// Index of the process in [`Model::members`](super::Model::members).
        member: u32,
        /// Status flags, with `PIDFD_THREAD`.
        flags: u32,
    },
    /// Master of a pseudo-terminal.
    TerminalMaster {
        /// Index in [`super::Model::terminals`].
        terminal: u32,
        /// Where terminals are made.
        path: PathBuf,
        /// `open` flags.
        flags: u32,
    },
    /// Slave of a pseudo-terminal whose master the process has too.
    TerminalSlave {
        /// Index in [`super::Model::terminals`].
        terminal: u32,
        /// `open` flags.
        flags: u32,
    },
    /// One end of a Unix socket pair; both ends name the same pair.
    SocketPair {
        /// Identity of the pair within the image.
        pair: u64,
        /// 0 or 1.
        end: u32,
        /// `SOCK_STREAM`, `SOCK_DGRAM` or `SOCK_SEQPACKET`.
        kind: u32,
        /// Status flags.
        flags: u32,
        /// Messages (for a stream: bytes) waiting to be read at this end.
        incoming: Vec<Message>,
        /// Bit 0: shut down for reading, bit 1: for writing.
        shutdown: u32,
        /// Receive and send buffer sizes as `getsockopt` gives them.
        buffers: (u32, u32),
        /// Options that the process set.
        options: Vec<SocketOption>,
    },
    /// A shared object: a memfd, or the like.
    Object {
        /// Index in [`super::Model::objects`].
        object: u32,
        /// `open` flags without creation flags.
        flags: u32,
        /// File position.
        offset: u64,
    },
    /// A socket that a clone makes anew, where the caller of restore does not supply another.
    Socket(Box<Socket>),
    /// A file whose other end lies outside; the caller of restore supplies it.
    External {
        /// What it was, for messages.
        description: String,
    },
    /// A ring of io_uring in which nothing is under way and that only changes epoll instances, as libuv
    /// makes them.
    Ring {
        /// Status flags.
        flags: u32,
        /// How many submissions it has room for.
        entries: u32,
        /// How many completions.
        completions: u32,
        /// Whether submissions go through an array of indices, each at its own place.
        has_array: bool,
        /// How many requests it has seen: head and tail of both queues.
        position: u32,
        /// Where its queues are mapped.
        queues: Vec<RingQueue>,
    },
}

/// Where a process has mapped a queue of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingQueue {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// `PROT_*` bits.
    pub prot: u32,
    /// `IORING_OFF_*`.
    pub offset: u64,
}

/// Most requests that a carried ring has seen: a clone's is advanced to there one by one, for 0.3 us each.
pub const RING_POSITIONS: u32 = 1 << 17;
/// Most rings of an image.
pub const MOST_RINGS: usize = 16;

impl OpenFile {
    /// Status flags; those of a file from outside are its supplier's.
    pub fn flags(&self) -> Option<u32> {
        match self {
            OpenFile::Path { flags, .. }
            | OpenFile::Unnamed { flags, .. }
            | OpenFile::Object { flags, .. }
            | OpenFile::Pipe { flags, .. }
            | OpenFile::Event { flags, .. }
            | OpenFile::Signal { flags, .. }
            | OpenFile::Timer { flags, .. }
            | OpenFile::Epoll { flags, .. }
            | OpenFile::Inotify { flags, .. }
            | OpenFile::Fanotify { flags, .. }
            | OpenFile::ProcessHandle { flags, .. }
            | OpenFile::TerminalMaster { flags, .. }
            | OpenFile::TerminalSlave { flags, .. }
            | OpenFile::SocketPair { flags, .. }
            | OpenFile::Ring { flags, .. } => Some(*flags),
            OpenFile::Socket(socket) => Some(socket.flags),
            OpenFile::External { .. } => None,
        }
    }
}

/// A place watched by an inotify instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InotifyWatch {
    /// The watch's number.
    pub number: u32,
    /// What is watched; a symbolic link itself and not what it leads to.
    pub path: PathBuf,
    /// Events and options, as `inotify_add_watch` takes them.
    pub mask: u32,
    /// What was there.
    pub identity: FileIdentity,
}

/// What a fanotify group watches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FanotifyMark {
    /// What is marked; a symbolic link itself and not what it leads to.
    pub path: PathBuf,
    /// What was there.
    pub identity: FileIdentity,
    /// Whether the whole file system is marked, in which `path` is.
    pub is_file_system: bool,
    /// Of `FAN_MARK_EVICTABLE`, `FAN_MARK_IGNORE` and `FAN_MARK_IGNORED_SURV_MODIFY`.
    pub flags: u32,
    /// Events, as `fanotify_mark` takes them.
    pub mask: u64,
    /// Events that are ignored, likewise.
    pub ignored: u64,
}

/// A descriptor watched by an epoll instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpollWatch {
    /// Index in [`Model::members`](super::Model::members) of a process that has the instance, and
    /// under number `fd` what is watched.
    pub member: u32,
    /// Descriptor number at the time it was added.
    pub fd: u32,
    /// `EPOLL*` bits.
    pub events: u32,
    /// User data.
    pub data: u64,
}
