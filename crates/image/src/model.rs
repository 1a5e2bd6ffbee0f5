//! What a checkpoint knows of a process: plain values, independent of the pool that holds them.
//!
//! The model is encoded into the image's metadata. The hot path never reads it; it serves to
//! compile the plan, to tell a person what is in the image, and to move images between pools.
//! Addresses are the parent's, lengths are bytes, times nanoseconds unless a name says otherwise.

mod filter;
mod identity;
mod locks;
mod shared;
mod socket;
mod terminal;
mod unnamed;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use filter::SeccompFilter;
pub use identity::{Credentials, Scheduling};
pub use locks::{Lock, LockKind, Notice};
pub use shared::{ObjectExtent, ObjectKind, SharedObject};
pub use socket::{Message, Socket, SocketOption, SocketRole};
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
    /// Identity and attributes of the process.
    pub process: Process,
    /// The address space.
    pub memory: Memory,
    /// Memory without a name that mappings and descriptors share, referred to by index.
    pub objects: Vec<SharedObject>,
    /// Threads, the leader first.
    pub threads: Vec<Thread>,
    /// Signal actions and pending signals.
    pub signals: Signals,
    /// Interval and POSIX timers.
    pub timers: Timers,
    /// Open descriptors, by number.
    pub descriptors: Vec<Descriptor>,
    /// Open file descriptions that `descriptors` refer to, then those that only messages do.
    pub files: Vec<OpenFile>,
    /// Files without a name that some of `files` have open.
    pub unnamed: Vec<UnnamedFile>,
    /// Terminals whose masters are among `files`.
    pub terminals: Vec<Terminal>,
    /// Locks and leases on `files`.
    pub locks: Vec<Lock>,
    /// Those of `files` that signal the process.
    pub notices: Vec<Notice>,
    /// Mounts that files lie on, in the order in which they were made.
    pub mounts: Vec<Mount>,
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
}

/// Identity and attributes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Pid in its own (innermost) PID namespace.
    pub pid: u32,
    /// Its executable.
    pub exe: PathBuf,
    /// Command line, for people.
    pub command_line: Vec<String>,
    /// Working directory.
    pub cwd: PathBuf,
    /// File creation mask.
    pub umask: u32,
    /// `personality(2)`.
    pub personality: u32,
    /// `PR_GET_DUMPABLE`.
    pub dumpable: u32,
    /// Whether it reaps its descendants' orphans.
    pub is_child_subreaper: bool,
    /// Whether a signal had stopped it.
    pub is_stopped: bool,
    /// Session and group leadership.
    pub leads: Leads,
    /// Registrations of `membarrier`, as MEMBARRIER_CMD_GET_REGISTRATIONS tells them.
    pub membarrier: u32,
    /// `PR_GET_THP_DISABLE`: bit 0 disabled, bit 1 except where advised.
    pub thp_disable: u32,
    /// `PR_SET_MEMORY_MERGE`.
    pub merges_memory: bool,
    /// Flags of `mlockall` for future mappings, 0 for none.
    pub locks_future: u32,
    /// `/proc/PID/oom_score_adj`.
    pub oom_score_adj: i32,
    /// `/proc/PID/coredump_filter`.
    pub coredump_filter: u32,
    /// Soft and hard limit of every resource, in the kernel's order.
    pub limits: Vec<(u64, u64)>,
}

/// What the process leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leads {
    /// Nothing.
    #[default]
    Nothing,
    /// Its process group.
    Group,
    /// Its session.
    Session,
}

/// The address space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Mappings in address order, without the kernel's own.
    pub regions: Vec<Region>,
    /// 2 MiB windows with at least one stored page, in address order.
    pub windows: Vec<StoredWindow>,
    /// Where they lie in the image, in address order.
    pub segments: Vec<Segment>,
    /// Guard regions (`MADV_GUARD_INSTALL`): first address and address after the last.
    pub guards: Vec<(u64, u64)>,
    /// Protection keys that are allocated, one bit each.
    pub protection_keys: u32,
    /// First address and length of vvar and vdso together.
    pub vdso: (u64, u64),
    /// What `PR_SET_MM_MAP` takes, in its order: start_code, end_code, start_data, end_data,
    /// start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end.
    pub layout: [u64; 11],
    /// The auxiliary vector.
    pub auxv: Vec<u64>,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// `PROT_*` bits.
    pub prot: u32,
    /// What lies under it.
    pub backing: Backing,
    /// Attributes.
    pub traits: RegionTraits,
}

/// What lies under a mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Backing {
    /// Anonymous private memory.
    Anonymous,
    /// A private mapping of a file from an offset.
    PrivateFile(FileStamp, u64),
    /// A shared mapping of a file: parent and clones see the same file, as after a fork.
    SharedFile {
        /// The file.
        file: FileStamp,
        /// Offset in it.
        offset: u64,
        /// Whether it was opened for writing, so that it may change at any time.
        is_writable: bool,
    },
    /// A mapping of a shared object, which every clone has for itself.
    Object {
        /// Index in [`Model::objects`].
        object: u32,
        /// Offset in it.
        offset: u64,
        /// Whether writes reach the object; else its changed pages are in the stored windows.
        is_shared: bool,
        /// Whether `mprotect` may make a shared mapping writable.
        is_writable: bool,
    },
}

/// Attributes of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionTraits {
    /// `MAP_GROWSDOWN`.
    pub grows_down: bool,
    /// `MAP_NORESERVE`.
    pub no_reserve: bool,
    /// `MADV_WIPEONFORK`.
    pub wipe_on_fork: bool,
    /// `MAP_DROPPABLE`: contents may vanish, and are not carried.
    pub droppable: bool,
    /// Locked into memory.
    pub locked: bool,
    /// `MADV_DONTFORK`.
    pub dont_fork: bool,
    /// `MADV_DONTDUMP`.
    pub dont_dump: bool,
    /// `MADV_HUGEPAGE`.
    pub huge: bool,
    /// `MADV_NOHUGEPAGE`.
    pub no_huge: bool,
    /// `MADV_MERGEABLE`.
    pub mergeable: bool,
    /// `mseal`.
    pub sealed: bool,
    /// Protection key that the program gave it, 0 for the default.
    pub protection_key: u8,
}

/// A file that has to be the same on the other node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileStamp {
    /// Absolute path.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since the epoch.
    pub mtime_ns: i128,
    /// Build-id of an ELF file that was linked with one.
    pub build_id: Option<Vec<u8>>,
}

/// Pages that lie side by side in the process and in the image; see [`crate::layout`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// Offset in the image's chunks, the first of which begins at 0.
    pub place: u64,
}

/// A 2 MiB window of addresses of which the image holds something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredWindow {
    /// First address, a multiple of 2 MiB.
    pub address: u64,
    /// Bit per page that was copied.
    pub pages: [u64; WINDOW_WORDS],
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Id in the innermost PID namespace.
    pub tid: u32,
    /// Name.
    pub comm: Vec<u8>,
    /// `user_regs_struct` in its order, 27 words, with an interrupted system call set to restart.
    pub registers: Vec<u64>,
    /// XSAVE area in standard format.
    pub xstate: Vec<u8>,
    /// Blocked signals.
    pub signal_mask: u64,
    /// Alternate stack: address, flags, size.
    pub alternate_stack: (u64, u32, u64),
    /// Signals pending for this thread, as `siginfo_t`.
    pub pending: Vec<Vec<u8>>,
    /// Address that is cleared when the thread ends.
    pub clear_child_tid: u64,
    /// Robust futex list: head and length.
    pub robust_list: (u64, u64),
    /// Restartable sequence: address, length, signature, flags; address 0 for none.
    pub rseq: (u64, u32, u32, u32),
    /// Signal sent when the parent dies.
    pub parent_death_signal: u32,
    /// Timer slack in nanoseconds.
    pub timer_slack_ns: u64,
    /// Whether it can no longer gain privileges.
    pub no_new_privs: bool,
    /// Ids and capabilities.
    pub credentials: Credentials,
    /// Priorities.
    pub scheduling: Scheduling,
    /// Its own seccomp filters, the oldest first.
    pub filters: Vec<SeccompFilter>,
}

/// Signal state of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// Number and kernel `sigaction` (handler, flags, restorer, mask) where not the default.
    pub actions: Vec<(u32, [u64; 4])>,
    /// Signals pending for the process, as `siginfo_t`.
    pub pending: Vec<Vec<u8>>,
}

/// Timers of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timers {
    /// `ITIMER_REAL`, `_VIRTUAL`, `_PROF`: interval s, µs, value s, µs.
    pub interval: [[u64; 4]; 3],
    /// POSIX timers.
    pub posix: Vec<PosixTimer>,
}

/// A POSIX timer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// Kernel's number.
    pub id: u32,
    /// Clock.
    pub clock: i32,
    /// `sigev_notify`.
    pub notify: u32,
    /// `sigev_signo`.
    pub signal: u32,
    /// `sigev_value`.
    pub value: u64,
    /// Thread of SIGEV_THREAD_ID.
    pub tid: u32,
    /// Interval and time to expiry: s, ns, s, ns.
    pub setting: [u64; 4],
}

/// One descriptor number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Number.
    pub fd: u32,
    /// Index in [`Model::files`]; several descriptors share one after `dup`.
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
    },
    /// A regular file without a name, in [`Model::unnamed`].
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
    /// A pidfd of the process itself.
    ProcessHandle {
        /// Status flags, with `PIDFD_THREAD`.
        flags: u32,
    },
    /// Master of a pseudo-terminal.
    TerminalMaster {
        /// Index in [`Model::terminals`].
        terminal: u32,
        /// Where terminals are made.
        path: PathBuf,
        /// `open` flags.
        flags: u32,
    },
    /// Slave of a pseudo-terminal whose master the process has too.
    TerminalSlave {
        /// Index in [`Model::terminals`].
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
        /// Index in [`Model::objects`].
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
}

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
            | OpenFile::ProcessHandle { flags }
            | OpenFile::TerminalMaster { flags, .. }
            | OpenFile::TerminalSlave { flags, .. }
            | OpenFile::SocketPair { flags, .. } => Some(*flags),
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
}

/// A descriptor watched by an epoll instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpollWatch {
    /// Descriptor number at the time it was added.
    pub fd: u32,
    /// `EPOLL*` bits.
    pub events: u32,
    /// User data.
    pub data: u64,
}
