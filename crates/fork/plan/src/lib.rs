//! The plan: the flat list of system calls that makes a clone.
//!
//! A plan is compiled once, at checkpoint, and executed in place by every node: no parsing, no
//! relocation, no work per page. It stands in the image's metadata, which the restorer maps at
//! [`window::PLAN`], so every pointer in it is an absolute address and already right.
//!
//! ```text
//!  window::PLAN ─► PlanHeader ─┬─ members ─► MemberPlan ─┬─ memory_ops   its address space
//!                              │                         ├─ task_ops     files, signals
//!                              │                         ├─ late_ops     sockets, timers, limits
//!                              │                         ├─ joined_ops   what threads would undo
//!                              │                         └─ threads ─► ThreadPlan ─┬─ ops
//!                              │                                                   └─ frame for
//!                              │                                                      rt_sigreturn
//!                              ├─ windows    pool offset → address, for the supervisor
//!                              ├─ files      private file mappings, for the supervisor
//!                              └─ traits     attributes of memory, for the supervisor
//!
//!  window::OVERLAY ─► OverlayHeader ─ members ─► MemberOverlay     see [`overlay`]
//!
//!  A member's first thread runs the ops of the member; each thread runs its own.
//! ```
//!
//! Invariants: everything is `repr(C)`, little-endian, without pointers out of the image; an op
//! that fails names itself by [`Op::what`] and [`Op::detail`].
#![no_std]
#![forbid(unsafe_code)]

pub mod filter;
pub mod op;
pub mod overlay;
pub mod place;
pub mod protocol;
pub mod register;
pub mod sources;
pub mod trial;
pub mod window;

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use op::{Op, SLOT_NONE, What, ipc, nr, stage};

/// First word of a plan.
pub const PLAN_MAGIC: u64 = u64::from_le_bytes(*b"ffplan01");

/// Where a table stands: an absolute address in the plan's mapping and a count of elements.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Table {
    /// Address of the first element.
    pub address: u64,
    /// Number of elements.
    pub count: u64,
}

/// Start of a plan, at [`window::PLAN`] in every clone.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PlanHeader {
    /// [`PLAN_MAGIC`].
    pub magic: u64,
    /// Bytes of the plan's mapping, a multiple of the page size.
    pub bytes: u64,
    /// Processes ([`MemberPlan`]), the ancestor of the others first.
    pub members: Table,
    /// How they come into being ([`Birth`]): those of `members`, in that order, then those that
    /// end on the way. Empty for a single process, which is just forked.
    pub births: Table,
    /// Where the stored parts of the parents' address spaces lie in the pool ([`Window`]).
    pub windows: Table,
    /// Private file mappings carried in the image ([`FileRange`]), sorted by address.
    pub files: Table,
    /// Memory that is not as `mmap` makes it ([`TraitRange`]), sorted by address.
    pub traits: Table,
    /// First of a run of numbers that no descriptor of the parents has, for the restorer's own.
    pub spare_fd: u32,
    /// Length of that run.
    pub spare_count: u32,
    /// 1 if the first parent was pid 1 of its namespace.
    pub is_pid_one: u32,
    /// 1 if the clone gets an IPC namespace.
    pub has_own_ipc: u32,
    /// 1 if some process of the clone must not map the image: the init then maps a copy of the plan.
    pub is_copied: u32,
    /// Keeps the struct free of padding.
    pub reserved: u32,
}

/// One process.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemberPlan {
    /// Ops that build the address space.
    pub memory_ops: Table,
    /// Ops that build what the threads of the process share besides memory.
    pub task_ops: Table,
    /// Ops that come after those, and have to wait until the clone starts where it is made before:
    /// what its caller supplies, what others can see, and what may run out.
    pub late_ops: Table,
    /// Ops of the first thread when all else of the process is made: what waits for other processes, or
    /// they for it.
    pub settle_ops: Table,
    /// Ops of the first thread when every thread has run its own.
    pub joined_ops: Table,
    /// Ops of the first thread after the clone was reported to run, before any thread leaves.
    pub stop_ops: Table,
    /// Threads ([`ThreadPlan`]), the first being the thread group's leader.
    pub threads: Table,
    /// Bytes of the plan, whole pages, that the process may keep when it leaves for its parent's code. None for
    /// all of it: the rest is unmapped, since it has memory of other users' processes.
    pub kept: Table,
}

/// A process from its fork to the point from which it is like a single one. Until then it runs in
/// the restorer's own address space.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Birth {
    /// Its id.
    pub pid: u32,
    /// Signal that its parent gets at its end.
    pub exit_signal: u32,
    /// 1 if any other id does as well, where `pid` may be taken: it ends on the way.
    pub is_any_pid: u32,
    /// Keeps the struct free of padding.
    pub reserved: u32,
    /// What it does first. One that ends on the way does so in the last of these.
    pub ops: Table,
}

/// One thread of the parent.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ThreadPlan {
    /// Thread id inside the parent's PID namespace.
    pub tid: u32,
    /// 1 if `last_ops` of this thread, the first, are for all threads, which have none then.
    pub confines_all: u32,
    /// Thread-local storage: the FS base.
    pub fs_base: u64,
    /// Address of the `ucontext` of a signal frame, ready for `rt_sigreturn`.
    pub frame: u64,
    /// Ops that this thread runs on itself.
    pub ops: Table,
    /// Ops after which this thread makes no call but `rt_sigreturn`.
    pub last_ops: Table,
}

/// The bits from this one up of an address in [`Window`], [`FileRange`] or [`TraitRange`] are the
/// index of its process in [`PlanHeader::members`].
pub const MEMBER_SHIFT: u32 = 57;

/// Part of a parent's address space, and where it lies in the image.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Window {
    /// Place in the image; the table is sorted by it.
    pub place: u64,
    /// Length.
    pub bytes: u64,
    /// Address in the parent, with [its index](MEMBER_SHIFT).
    pub address: u64,
}

/// Part of the address space that was a private mapping of a file: discarded pages come back from the
/// file, not as zeros.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FileRange {
    /// First address, with [the process's index](MEMBER_SHIFT).
    pub start: u64,
    /// Address after the last, likewise.
    pub end: u64,
    /// Offset of `start` in the file, in bytes.
    pub file_offset: u64,
    /// Address of the file's path on the node, NUL-terminated.
    pub path: u64,
}

/// Part of the address space whose mapping has attributes that a replacement must have too.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TraitRange {
    /// First address, with [the process's index](MEMBER_SHIFT).
    pub start: u64,
    /// Address after the last, likewise.
    pub end: u64,
    /// Bits of [`traits`].
    pub traits: u64,
}

/// Attributes of a mapping.
pub mod traits {
    /// `MADV_DONTFORK`.
    pub const DONT_FORK: u64 = 1;
    /// `MADV_DONTDUMP`.
    pub const DONT_DUMP: u64 = 2;
    /// `MADV_HUGEPAGE`.
    pub const HUGE: u64 = 4;
    /// `MADV_NOHUGEPAGE`.
    pub const NO_HUGE: u64 = 8;
    /// `MADV_MERGEABLE`.
    pub const MERGEABLE: u64 = 16;
    /// `MAP_NORESERVE`.
    pub const NO_RESERVE: u64 = 32;
    /// Locked into memory when the clone starts; processes that it forks do not have that.
    pub const LOCKED: u64 = 64;
    /// What is mapped in its place would be locked (`mlockall` for future mappings).
    pub const LOCKS_FUTURE: u64 = 128;
}

const _: () = {
    assert!(size_of::<PlanHeader>() == 8 * 2 + 16 * 5 + 24);
    assert!(size_of::<TraitRange>() == 24);
    assert!(size_of::<MemberPlan>() == 16 * 8);
    assert!(size_of::<Birth>() == 32);
    assert!(size_of::<ThreadPlan>() == 56);
    assert!(size_of::<Window>() == 24);
    assert!(size_of::<FileRange>() == 32);
    assert!(size_of::<Op>() == 64);
};
