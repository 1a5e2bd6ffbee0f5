//! What belongs to a process or one of its threads, besides memory and descriptors.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Credentials, FileIdentity, Hardening, Scheduling, SeccompFilter};

/// Identity and attributes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Pid in its own (innermost) PID namespace.
    pub pid: u32,
    /// Its executable.
    pub exe: PathBuf,
    /// What is there.
    pub exe_identity: FileIdentity,
    /// Command line, for people.
    pub command_line: Vec<String>,
    /// Working directory.
    pub cwd: PathBuf,
    /// What is there.
    pub cwd_identity: FileIdentity,
    /// File creation mask.
    pub umask: u32,
    /// `personality(2)`.
    pub personality: u32,
    /// `PR_GET_DUMPABLE`.
    pub dumpable: u32,
    /// `PR_GET_MDWE`: whether memory may become executable later.
    pub refuses_exec_gain: u32,
    /// Whether it reaps its descendants' orphans.
    pub is_child_subreaper: bool,
    /// Whether a signal had stopped it.
    pub is_stopped: bool,
    /// Whether its parent has yet to wait for that stop.
    pub stop_is_unreported: bool,
    /// Registrations of `membarrier`, as MEMBARRIER_CMD_GET_REGISTRATIONS returns them.
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

/// Place of a process among those of an image, and in sessions and groups. Ids are those of the
/// innermost PID namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinship {
    /// Index of its parent in [`Model::members`](super::Model::members), where it comes before
    /// its children; the first process has none.
    pub parent: Option<u32>,
    /// Signal that the parent gets at its end; that of the first process is `SIGCHLD`.
    pub exit_signal: u32,
    /// Its session, 0 for the one session from outside that the image knows. Where no process of
    /// the image has this pid, the leader has ended, and no process outside is in the session.
    pub session: u32,
    /// Its process group, 0 for the one group from outside, in the session from outside. Where no
    /// process of the image has this pid, the same holds.
    pub group: u32,
    /// Present if it has ended and was not waited for: its wait status. It then has no memory,
    /// threads or descriptors.
    pub ended: Option<i32>,
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
    /// What it has made harder.
    pub hardening: Hardening,
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
