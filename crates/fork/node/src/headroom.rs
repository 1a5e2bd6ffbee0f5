//! How much memory may be charged to a clone before it asks for it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use farfork_sys::cgroup::MemoryGroup;
use farfork_sys::proc::available_bytes;

use farfork_sys::sync::locked;

/// Up to the limits of one cgroup, and of those that it is in.
#[derive(Debug)]
pub struct MemoryHeadroom {
    groups: Vec<MemoryGroup>,
    /// Those of them that have limits, and when that was seen.
    limited: Mutex<Option<(Instant, Vec<MemoryGroup>)>>,
}

/// For so long groups without limits are taken to have none: each is a file to be opened and read,
/// which a clone that starts waits for.
const LIMITS_FRESH: Duration = Duration::from_secs(1);

/// What is left free below a limit, so that the clone itself has something to go on with.
const SPARED_BYTES: u64 = 4 << 20;

impl MemoryHeadroom {
    /// That of the cgroup of process `pid`.
    pub fn of_process(pid: i32) -> MemoryHeadroom {
        MemoryHeadroom::of_group(MemoryGroup::of_process(pid))
    }

    /// That of this cgroup, if it is known.
    pub fn of_group(group: Option<MemoryGroup>) -> MemoryHeadroom {
        let groups = group.map(|group| group.and_above()).unwrap_or_default();
        MemoryHeadroom { groups, limited: Mutex::default() }
    }

    /// Whether `bytes` more may be charged.
    pub fn has(&self, bytes: u64) -> bool {
        let bytes = bytes.saturating_add(SPARED_BYTES);
        let mut seen = locked(&self.limited);
        let fresh = seen.take().filter(|(at, _)| at.elapsed() < LIMITS_FRESH);
        let (_, limited) = seen.insert(fresh.unwrap_or_else(|| (Instant::now(), self.limited())));
        limited.iter().all(|group| group.has_room(bytes))
    }

    fn limited(&self) -> Vec<MemoryGroup> {
        self.groups.iter().filter(|group| group.limit_bytes().is_some()).cloned().collect()
    }
}

/// Whether `bytes` of this machine's memory can be taken, and some be left for others. What cannot be
/// learnt is taken for a yes.
pub fn machine_has(bytes: u64) -> bool {
    available_bytes().is_none_or(|free| free >= bytes + SPARED_OF_MACHINE)
}

/// What is left free of the machine's memory.
const SPARED_OF_MACHINE: u64 = 256 << 20;
