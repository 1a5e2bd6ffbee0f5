//! One step of a plan.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Value of [`Op::store`] when the result is not kept.
pub const SLOT_NONE: u8 = 0xff;

/// Steps that are not one system call. Values are above every system call number of x86-64.
pub mod nr {
    /// Moves vvar and vdso to `args[0]`; together they must have `args[1]` bytes.
    pub const MOVE_VDSO: u32 = 0x8000;
    /// Makes descriptor `args[0]` (usually a slot) number `args[1]`; `args[2]` is `O_CLOEXEC` or 0.
    pub const MOVE_FD: u32 = 0x8001;
    /// `pipe2` with flags `args[0]`; the read end goes to slot `args[1]`, the write end to slot
    /// `args[2]`.
    pub const PIPE: u32 = 0x8002;
    /// `socketpair` of family `args[0]`, type `args[1]`; ends go to slots `args[2]`, `args[3]`.
    pub const SOCKETPAIR: u32 = 0x8003;
    /// Creates POSIX timer number `args[0]` on clock `args[1]` with the `sigevent` at `args[2]`.
    pub const TIMER_CREATE: u32 = 0x8004;
    /// `PR_SET_MM_MAP` with the 13 words at `args[0]` and the executable's descriptor `args[1]`.
    pub const SET_MM_MAP: u32 = 0x8005;
    /// Writes the `args[2]` bytes at `args[1]` to descriptor `args[0]` at offset `args[3]`, all of
    /// them or failing.
    pub const WRITE_ALL: u32 = 0x8006;
    /// Reads from descriptor `args[0]` at offset `args[3]` to the `args[2]` bytes at `args[1]`, all
    /// of them or failing.
    pub const READ_ALL: u32 = 0x801a;
    /// Gives the external descriptor `args[0]` (a slot) if the caller has supplied it, and then
    /// leaves out the next `args[1]` ops, which make the parent's.
    pub const TAKE_SUPPLIED: u32 = 0x8007;
    /// Gives the ring of io_uring that the agent has made, and whose number there it has written to the socket
    /// pair with end `args[0]`. Clones may not make rings.
    pub const TAKE_RING: u32 = 0x801c;
    /// Maps a queue of the ring of io_uring `args[0]` at `args[1]`: `args[2]` bytes with rights `args[3]` at
    /// offset `args[4]`.
    pub const MAP_RING: u32 = 0x801d;
    /// Gives the file that the Unix socket `args[0]` is bound to the mode `args[1]`, the user
    /// `args[2]` and the group `args[3]`. Fails with ESTALE if it is not at the path `args[4]`.
    pub const SOCKET_FILE: u32 = 0x8010;
    /// Takes the rights over files at `args[0]` (a [`Rights`](crate::place::Rights)).
    pub const ASSUME: u32 = 0x8011;
    /// Takes the restorer's own rights over files again.
    pub const RESUME: u32 = 0x8012;
    /// Opens the path `args[0]`, which no symbolic link is part of, with flags `args[1]`. What is
    /// there has to be what is at `args[2]` (an [`Identity`](crate::place::Identity), or 0 for
    /// anything), or this fails with ESTALE. What the assumed rights do not suffice for is opened
    /// with the restorer's own, and then has to be the very same.
    pub const OPEN: u32 = 0x8013;
    /// Opens what is open as `args[0]` once more, with flags `args[1]`. The link in `/proc` that leads
    /// to it is followed whatever they say.
    pub const REOPEN: u32 = 0x801b;
    /// Fails with ESTALE unless what is open as `args[0]` still is what is at `args[1]` (an
    /// [`Identity`](crate::place::Identity)).
    pub const UNCHANGED: u32 = 0x8019;
    /// Binds the socket `args[0]` to the `args[2]` bytes of address at `args[1]`, with the assumed
    /// rights if they suffice.
    pub const BIND: u32 = 0x8014;
    /// Adds to the inotify instance `args[0]` a watch of the path `args[1]` with mask `args[2]`.
    /// What is there is opened as by [`OPEN`] first, with the identity at `args[3]`.
    pub const WATCH: u32 = 0x8015;
    /// Adds to the fanotify group `args[0]` what is at the path `args[1]`, with mask `args[2]` and,
    /// as `fanotify_mark` has them, flags `args[4]`. Opened first as by [`WATCH`].
    pub const MARK: u32 = 0x8017;
    /// Sends the `args[2]` bytes at `args[1]` on socket `args[0]` with flags `args[3]`, all of them
    /// or failing.
    pub const SEND_ALL: u32 = 0x8008;
    /// Puts the TCP socket `args[0]` into repair mode. Without the right to, leaves out the next
    /// `args[1]` ops, which would really connect, and warns.
    pub const REPAIR: u32 = 0x8009;
    /// Makes an object of System V: a [`ipc`](super::ipc) of kind `args[0]` with id `args[1]`, key
    /// `args[2]`, size `args[3]`, and the user `args[4]` and the group `args[5]` as its creator.
    pub const MAKE_IPC: u32 = 0x8016;
    /// Makes a context of Linux AIO whose ring lies at `args[0]` and has `args[1]` bytes.
    pub const MAKE_AIO: u32 = 0x8018;
    /// Forks the process of [`Birth`](crate::Birth) `args[0]`.
    pub const FORK: u32 = 0x800a;
    /// Has this process die when its parent does, which must be `args[0]` (0 for any).
    pub const FOLLOW_PARENT: u32 = 0x800b;
    /// Arrives at [`stage`](super::stage) `args[0]` and waits until `args[1]` processes have; does
    /// not wait if that is 0.
    pub const MEET: u32 = 0x800c;
    /// Ends this process with wait status `args[0]`.
    pub const END: u32 = 0x800d;
}

/// Kinds of objects of System V.
pub mod ipc {
    /// Shared memory; its size is in bytes.
    pub const SEGMENT: u64 = 0;
    /// A set of semaphores; its size is how many there are.
    pub const SEMAPHORES: u64 = 1;
    /// A message queue; it has no size.
    pub const QUEUE: u64 = 2;
}

/// Where the processes of a clone wait for each other.
pub mod stage {
    /// Every process exists, and every session and group.
    pub const BORN: u64 = 0;
    /// Every process has opened its files.
    pub const OPENED: u64 = 1;
    /// Every process is complete.
    pub const READY: u64 = 2;
    /// Only the jump to the parents' code is left.
    pub const SETTLED: u64 = 3;
    /// The clone was reported to run.
    pub const RUNNING: u64 = 4;
    /// How many there are.
    pub const COUNT: usize = 5;
}

/// What an op is about, for messages about its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum What {
    /// Mapping memory.
    Map = 1,
    /// Filling memory that cannot be shared.
    Fill = 2,
    /// Describing the address space to the kernel (`PR_SET_MM_MAP`).
    MemoryLayout = 3,
    /// Placing vdso and vvar.
    Vdso = 4,
    /// Opening a file.
    File = 5,
    /// Making a pipe, event, timer, epoll or socket descriptor.
    Descriptor = 6,
    /// Signal actions, masks, pending signals.
    Signal = 7,
    /// Timers.
    Timer = 8,
    /// Working directory and umask.
    Directory = 9,
    /// User and group ids, capabilities.
    Credentials = 10,
    /// Attributes of the process or one of its threads.
    Attribute = 11,
    /// Creating a thread with its id.
    Thread = 12,
    /// Creating the process with its id.
    Process = 13,
    /// Mounting `/proc` in the new container.
    Container = 14,
    /// Installing the supervisor of discarding calls.
    Supervisor = 15,
    /// Mounting what the parent had mounted for itself alone.
    Mount = 16,
    /// Making memory that is shared within the clone.
    SharedMemory = 17,
    /// Setting priorities.
    Scheduling = 18,
    /// Giving a socket its address.
    Address = 19,
    /// Taking a lock or lease again.
    Lock = 20,
    /// Resetting a connection.
    Reset = 21,
    /// Placing a process in its session and group.
    Kinship = 22,
    /// Making a time namespace.
    Clocks = 23,
    /// Making an object of System V.
    SystemV = 24,
    /// Supplying pages as the tiering policy wants it.
    Pages = 25,
    /// Watching which pages are touched.
    Watch = 26,
    /// Mapping huge pages that were set aside.
    HugePages = 27,
    /// Making a context of Linux AIO.
    AsyncIo = 28,
    /// Having memory taken from far nodes when it is touched.
    FarMemory = 29,
}

impl What {
    /// The value with this number.
    pub fn from_number(number: u16) -> Option<What> {
        use What::*;
        [
            Map,
            Fill,
            MemoryLayout,
            Vdso,
            File,
            Descriptor,
            Signal,
            Timer,
            Directory,
            Credentials,
            Attribute,
            Thread,
            Process,
            Container,
            Supervisor,
            Mount,
            SharedMemory,
            Scheduling,
            Address,
            Lock,
            Reset,
            Kinship,
            Clocks,
            SystemV,
            Pages,
            Watch,
            HugePages,
            AsyncIo,
            FarMemory,
        ]
        .into_iter()
        .find(|what| *what as u16 == number)
    }
}

/// One system call, or one of the composite steps of [`nr`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Op {
    /// System call number, or one of [`nr`].
    pub nr: u32,
    /// Slot that keeps the result, or [`SLOT_NONE`].
    pub store: u8,
    /// Bit i set: `args[i]` is the number of a slot, whose value is meant.
    pub slots: u8,
    /// A [`What`].
    pub what: u16,
    /// Offset of a text in the plan that names the object, 0 for none.
    pub detail: u32,
    /// 1 if a failure of this op is ignored, 2 if it is reported as a warning.
    pub may_fail: u32,
    /// Arguments.
    pub args: [u64; 6],
}

impl Op {
    /// An op for system call `nr` about `what`.
    pub fn new(what: What, nr: u32, args: &[u64]) -> Op {
        let mut op = Op { nr, store: SLOT_NONE, what: what as u16, ..Op::default() };
        op.args[..args.len()].copy_from_slice(args);
        op
    }

    /// The same op, keeping its result in `slot`.
    pub fn store(mut self, slot: u8) -> Op {
        self.store = slot;
        self
    }

    /// The same op with argument `index` read from the slot it names.
    pub fn slot_arg(mut self, index: u32) -> Op {
        self.slots |= 1 << index;
        self
    }

    /// The same op with a text for messages at `detail`.
    pub fn about(mut self, detail: u32) -> Op {
        self.detail = detail;
        self
    }

    /// The same op, whose failure does not stop the restore.
    pub fn may_fail(mut self) -> Op {
        self.may_fail = 1;
        self
    }

    /// The same op, whose failure does not stop the restore but is reported as a warning. Only for ops
    /// of the first thread: warnings of others may come too late.
    pub fn warns(mut self) -> Op {
        self.may_fail = 2;
        self
    }
}
