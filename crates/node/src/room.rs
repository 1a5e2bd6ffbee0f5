//! How much memory may be charged to a clone before it asks for it.

use farfork_sys::cgroup::MemoryGroup;
use farfork_sys::proc::available_bytes;

/// Up to the limits of one cgroup, and of those that it is in.
#[derive(Clone, Debug)]
pub struct Room(Vec<MemoryGroup>);

/// What is left free below a limit, so that the clone itself has something to go on with.
const SPARED_BYTES: u64 = 4 << 20;

impl Room {
    /// That of the cgroup of process `pid`.
    pub fn of(pid: i32) -> Room {
        Room::within(MemoryGroup::of(pid))
    }

    /// That of this cgroup, if it is known.
    pub fn within(group: Option<MemoryGroup>) -> Room {
        Room(group.map(|group| group.and_above()).unwrap_or_default())
    }

    /// Whether `bytes` more may be charged.
    pub fn has(&self, bytes: u64) -> bool {
        self.0.iter().all(|group| group.has_room(bytes.saturating_add(SPARED_BYTES)))
    }
}

/// Whether `bytes` of this machine's memory can be taken, and some be left for others. What cannot be
/// learnt is taken for a yes.
pub fn machine_has(bytes: u64) -> bool {
    available_bytes().is_none_or(|free| free >= bytes + SPARED_OF_MACHINE)
}

/// What is left free of the machine's memory.
const SPARED_OF_MACHINE: u64 = 256 << 20;
