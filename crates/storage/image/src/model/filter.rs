//! The program's own seccomp filters.

use serde::{Deserialize, Serialize};

/// A filter of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompFilter {
    /// Instructions of classic BPF, as `struct sock_filter` in memory.
    pub instructions: Vec<u64>,
    /// Whether what it refuses is logged.
    pub logs: bool,
    /// Whether it is installed by `prctl`, since an earlier one forbids `seccomp`.
    pub by_prctl: bool,
}

impl SeccompFilter {
    /// Most instructions of a filter (`BPF_MAXINSNS`).
    pub const MOST_INSTRUCTIONS: usize = 4096;
    /// Most instructions of all filters of a thread, with four more for each but the youngest
    /// (`MAX_INSNS_PER_PATH`), and four for that, too.
    pub const MOST_OF_A_THREAD: usize = (1 << 15) + 4;
}
