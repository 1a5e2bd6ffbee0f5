//! The protocol of the node agent and the restorer: fixed structs over Unix sockets of
//! type `SOCK_SEQPACKET`, one per message.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Slot of the descriptor of the image's file in every plan.
pub const SLOT_IMAGE: u8 = 0;
/// Slot of the first external descriptor; the others follow, then the plan's own.
pub const SLOT_EXTERNAL: u8 = 1;
/// Slot of the first [other file](crate::sources) that has bytes of the image.
pub const SLOT_SOURCE: u8 = 250;
/// Numbers of descriptors that the restorer needs for itself, at the start of its run.
pub const OWN_FDS: u32 = 24;
/// Number of slots.
pub const SLOTS: usize = SLOT_SOURCE as usize + crate::sources::MAX_SOURCES;
/// Most descriptors that one request carries (the kernel's `SCM_MAX_FD` is 253).
pub const MAX_REQUEST_FDS: usize = 200;

/// Start one clone. Carries descriptors: image, status socket, pin, the overlay if there is one, the table
/// of [sources](crate::sources) and their files if there is one, the
/// socket of a clone that [waits](Request::waits), or else the external ones in the plan's order. A
/// directory opened with `O_PATH` stands for an optional one that was not given: no descriptor that is
/// supplied can be that.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Request {
    /// Offset of the plan in the image's file.
    pub plan_offset: u64,
    /// Bytes of the plan's mapping.
    pub plan_bytes: u64,
    /// Bytes of the [overlay](crate::overlay), 0 if there is none.
    pub overlay_bytes: u64,
    /// Bytes of the table of [sources](crate::sources), 0 if there is none.
    pub sources_bytes: u64,
    /// A [`PidMode`] as a number.
    pub pid_mode: u32,
    /// Number of external descriptors, which come last.
    pub external_count: u32,
    /// Device (major, minor as `makedev`) and inode of the image, as `/proc/PID/maps` shows them.
    pub image_device: u64,
    /// See `image_device`.
    pub image_inode: u64,
    /// 1 if the clone has the right groups already and may not set any: its agent is not root.
    pub keeps_groups: u32,
    /// 1 if the clone gets a time namespace, whose offsets are `clocks_ns`.
    pub sets_clocks: u32,
    /// How far ahead of the boot: `CLOCK_MONOTONIC`, `CLOCK_BOOTTIME`, in ns.
    pub clocks_ns: [i64; 2],
    /// How far the clone's `CLOCK_MONOTONIC` is ahead of its agent's, in ns.
    pub ahead_ns: i64,
    /// 1 if the clone waits before its last steps: for a [`Wake`] with the external descriptors, and
    /// one without.
    pub waits: u32,
    /// 1 to fork an init without a clone. It waits for its request in a container of its own, on the one
    /// descriptor that comes with this. All other fields are 0.
    pub prepares: u32,
    /// 1 if the clone is made to [try](crate::trial) its image, and ends where others leave for their code.
    pub is_trial: u32,
    /// Files that the table of sources names.
    pub source_count: u32,
}

/// A message to a clone that waits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Wake {
    /// A [`WakeKind`] as a number.
    pub kind: u32,
    /// [`VERSION`].
    pub version: u32,
    /// [`WakeKind::Start`]: the agent's `CLOCK_MONOTONIC` in ns when the start was asked for.
    pub requested_ns: u64,
}

/// Kinds of [`Wake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WakeKind {
    /// Brings the external descriptors, in the plan's order.
    Supply = 1,
    /// The clone is to leave for its code.
    Start = 2,
}

/// Version of all these messages. Agent and restorer are one program and always agree. A ghost sends it,
/// since it may have been started by another version.
pub const VERSION: u32 = 3;

/// First message of a ghost on its control socket: it waits for a [`Request`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Keeps the struct free of padding.
    pub reserved: u32,
}

/// How the clone's pid relates to the parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PidMode {
    /// A PID namespace of its own, with an init.
    New = 0,
    /// The parent's pids in this namespace.
    Same = 1,
}

/// Answer of the template to a [`Request`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Spawned {
    /// Pid of the init (in the agent's namespace), or a negated errno.
    pub init_pid: i64,
}

/// A message of the init, or of its clone, on the status socket.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Status {
    /// A [`StatusKind`] as a number.
    pub kind: u32,
    /// [`StatusKind::Failed`], [`StatusKind::Warned`]: a `What`.
    pub what: u32,
    /// [`StatusKind::Failed`], [`StatusKind::Warned`]: errno. [`StatusKind::Exited`]: the wait status.
    pub value: i64,
    /// [`StatusKind::Failed`], [`StatusKind::Warned`]: the op's `detail`.
    pub detail: u64,
    /// [`StatusKind::Running`]: the agent's `CLOCK_MONOTONIC` in ns at: init running, container made,
    /// process forked, memory mapped, descriptors made, last step before user code. Of a clone
    /// that has waited: asked for, awake (three times), descriptors made, last step.
    pub at_ns: [u64; 6],
}

/// The one byte that the agent sends on the status socket, once the caller knows of the clone. Before
/// that the clone ends with the agent.
pub const KNOWN: u8 = 1;

/// Kinds of [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StatusKind {
    /// The clone is about to run its first instruction.
    Running = 1,
    /// The clone could not be made.
    Failed = 2,
    /// The clone's process has ended.
    Exited = 3,
    /// Something of the parent could not be set, and the clone starts without.
    Warned = 4,
    /// The clone waits for a [`Wake`].
    Waits = 5,
}

const _: () = {
    assert!(size_of::<Request>() == 104);
    assert!(size_of::<Spawned>() == 8);
    assert!(size_of::<Hello>() == 8);
    assert!(size_of::<Wake>() == 16);
    assert!(size_of::<Status>() == 72);
};
