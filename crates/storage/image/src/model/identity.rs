//! The identity of a thread and how it is scheduled.

use serde::{Deserialize, Serialize};

/// User, groups and capabilities; each thread has its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved and file-system user id.
    pub uids: [u32; 4],
    /// Real, effective, saved and file-system group id.
    pub gids: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Inheritable, permitted, effective, bounding and ambient capabilities.
    pub capabilities: [u64; 5],
    /// `PR_GET_SECUREBITS`.
    pub securebits: u32,
}

/// What a thread has forbidden itself, where that is not the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardening {
    /// Speculation (`PR_SPEC_*`) and what is set for it.
    pub speculation: Vec<(u32, u32)>,
    /// `PR_SET_TSC`: reading the time stamp counter ends in SIGSEGV.
    pub hides_tsc: bool,
    /// `ARCH_SET_CPUID`: so does `cpuid`.
    pub hides_cpuid: bool,
    /// `PR_MCE_KILL`: when broken memory kills it.
    pub memory_failure: Option<u32>,
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Nice value.
    pub nice: i32,
    /// Priority of the real-time policies.
    pub priority: u32,
    /// Runtime, deadline and period of the deadline policy, in ns.
    pub deadline_ns: [u64; 3],
    /// As `ioprio_set` takes it, 0 where it follows the nice value.
    pub io_priority: u32,
}
