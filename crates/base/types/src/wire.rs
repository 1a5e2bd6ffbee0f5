//! The protocol between the node agent and its clients: one JSON document per packet on a Unix
//! socket of type `SOCK_SEQPACKET`, descriptors beside it.
//!
//! A client sends one [`Call`] and receives [`Reply`]s until the one that ends the call, or closes
//! the socket first; an attached restore ends its clones with the connection.
//!
//! Agent and client may be in different PID namespaces. A packet about a living clone carries the
//! clone's pid in its credentials, where the kernel translates it. A clone that has ended has no
//! pid to translate: the agent remembers the pid as its starter saw it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::elastic::ShareSet;
use crate::{LocalShare, Tiering};
use serde::{Deserialize, Serialize};

/// Most bytes of one document.
pub const MAX_DOCUMENT_BYTES: usize = 64 << 10;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Start one clone. Carries descriptors: the caller's 0, 1, 2, then one per entry of
    /// `inherit`.
    Restore(RestoreCall),
    /// Follows [`Reply::Running`]: how the client sees the clone. [`Reply::Done`] follows that, once the clone
    /// lives on without the agent.
    Seen {
        /// Its pid, as the client sees it.
        pid: i32,
    },
    /// Try whether clones of an image can start here.
    Verify(VerifyCall),
    /// Wait for the end of a clone.
    Wait {
        /// Its pid, as the client sees it.
        pid: i32,
    },
    /// Send a signal to a clone.
    Kill {
        /// Its pid, as the client sees it.
        pid: i32,
        /// Signal number.
        signal: i32,
    },
    /// Have a clone that was started in a ghost stand still, or go on.
    Pause {
        /// Its pid, as the client sees it.
        pid: i32,
        /// Whether it is to stand still.
        paused: bool,
    },
    /// List clones.
    List,
    /// Count the clones of each image.
    Count,
    /// Make pages of a clone local that it maps from the pool.
    Promote {
        /// Its pid, as the client sees it.
        pid: i32,
        /// Which pages.
        pages: Promotion,
    },
    /// Have a share of a clone's memory near while it runs.
    SetShare {
        /// Its pid, as the client sees it.
        pid: i32,
        /// The share.
        local: LocalShare,
    },
    /// Read a bit of a pool, to see how fast that is just now.
    ReadRate {
        /// Path of the pool.
        pool: PathBuf,
    },
    /// Make a ghost.
    GhostStart(GhostCall),
    /// List ghosts.
    GhostList,
    /// End ghosts, with the clones in them.
    GhostStop {
        /// Which; all without it.
        id: Option<String>,
    },
}

/// Which pages of a clone are to become local.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// Those that the user has declared hot.
    #[serde(default)]
    pub hot: bool,
    /// Those that clones were seen to access.
    #[serde(default)]
    pub accessed: bool,
    /// Those at these addresses.
    #[serde(default)]
    pub ranges: Vec<AddressRange>,
}

/// Addresses of one of the processes of an image; shown as `START-END` or `PID:START-END`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRange {
    /// The parents' pid of the process; the image's first without it.
    pub process: Option<u32>,
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressRange { process, start, end } = self;
        match process {
            Some(pid) => write!(f, "{pid}:{start:x}-{end:x}"),
            None => write!(f, "{start:x}-{end:x}"),
        }
    }
}

/// The text is not an [`AddressRange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseRangeError {
    /// It has another form.
    Malformed {
        /// It.
        text: String,
    },
    /// It ends where it starts, or before.
    Empty {
        /// It.
        text: String,
    },
}

impl fmt::Display for ParseRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseRangeError::Malformed { text } => {
                write!(f, "invalid range {text}: expected [PID:]START-END in hexadecimal")
            }
            ParseRangeError::Empty { text } => {
                write!(f, "empty range {text}: START must be below END")
            }
        }
    }
}

impl std::error::Error for ParseRangeError {}

impl FromStr for AddressRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<AddressRange, ParseRangeError> {
        let malformed = || ParseRangeError::Malformed { text: text.to_owned() };
        let (process, range) = match text.split_once(':') {
            Some((pid, range)) => (Some(number(pid, 10).ok_or_else(malformed)?), range),
            None => (None, text),
        };
        let process = process.map(u32::try_from).transpose().map_err(|_| malformed())?;
        let (start, end) = range.split_once('-').ok_or_else(malformed)?;
        let address =
            |text: &str| number(text.strip_prefix("0x").unwrap_or(text), 16).ok_or_else(malformed);
        let (start, end) = (address(start)?, address(end)?);
        if start >= end {
            return Err(ParseRangeError::Empty { text: text.to_owned() });
        }
        Ok(AddressRange { process, start, end })
    }
}

/// Digits only: the parser would take a sign, too.
fn number(text: &str, radix: u32) -> Option<u64> {
    let is_number = text.chars().all(|digit| digit.is_digit(radix));
    u64::from_str_radix(text, radix).ok().filter(|_| is_number)
}

/// What became of the pages that were to become local, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promoted {
    /// Became local.
    pub promoted_pages: u64,
    /// Were local already.
    pub local_pages: u64,
    /// The clone has not touched, or does not have any more.
    pub untouched_pages: u64,
    /// Stay where they are: the clone may not write to them, or maps something else there.
    pub kept_pages: u64,
    /// Stay in the pool because the clone's cgroup is out of memory.
    pub refused_pages: u64,
}

/// Make a ghost: a container that waits for its clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GhostCall {
    /// Whose images it takes, as in `USER/FUNCTION`; any one's without it.
    pub user: Option<String>,
    /// Directory of an OCI bundle to make the container from; the agent's own without it.
    pub bundle: Option<PathBuf>,
    /// Limit of the container's memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Limit of the container's processes and threads; the agent's own without it.
    #[serde(default)]
    pub pids_limit: Option<u64>,
    /// The cgroup in which those of the container are made, below the agent's.
    #[serde(default)]
    pub group: Option<String>,
    /// Directories of the node in whose places the agent's own container has empty ones in memory.
    #[serde(default)]
    pub tmpfs: Vec<PathBuf>,
    /// Directories of the node that are empty and read-only in the agent's own container.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// Files and directories of the node that are there all the same.
    #[serde(default)]
    pub shown: Vec<PathBuf>,
    /// Directories of the node to which processes in the agent's own container can write: it keeps what they
    /// write in memory, for itself.
    #[serde(default)]
    pub layered: Vec<PathBuf>,
    /// Whether all other files of the node are read-only in the agent's own container, which then has
    /// terminals of its own.
    #[serde(default)]
    pub read_only: bool,
    /// The image that it shall have already.
    #[serde(default)]
    pub image: Option<GhostImage>,
    /// `CLOCK_MONOTONIC` in ns when the user asked.
    pub requested_ns: u64,
}

/// An image that a ghost has before its clone is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GhostImage {
    /// Path of the pool.
    pub pool: PathBuf,
    /// Id of the image, 32 hexadecimal digits.
    pub cid: String,
    /// Name it was asked for by.
    pub name: String,
    /// When its pages become local.
    #[serde(default)]
    pub tiering: Tiering,
}

/// Start one clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreCall {
    /// Path of the pool.
    pub pool: PathBuf,
    /// Id of the image, 32 hexadecimal digits.
    pub cid: String,
    /// Name it was asked for by, for lists.
    pub name: String,
    /// Whether the clone outlives this connection.
    pub detach: bool,
    /// Whether it keeps the parent's pids in the agent's PID namespace.
    pub same_pid: bool,
    /// Where the descriptors after the first three go.
    pub inherit: Vec<InheritedFd>,
    /// `CLOCK_MONOTONIC` in ns when the user asked.
    pub requested_ns: u64,
    /// The ghost to start it in.
    #[serde(default)]
    pub ghost: Option<String>,
    /// When pages become local.
    #[serde(default)]
    pub tiering: Tiering,
    /// How much of the image becomes local before the clone runs, if that is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_share: Option<LocalShare>,
    /// Whether this is a profiling clone.
    #[serde(default)]
    pub profile: bool,
    /// Seconds that the clone may take to start; then it is ended.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u64,
}

/// Seconds that a clone may take to start if its caller does not say. Much shared memory takes
/// about a third of a second for each GB.
pub const DEFAULT_TIMEOUT_S: u64 = 60;

fn default_timeout_s() -> u64 {
    DEFAULT_TIMEOUT_S
}

/// Try whether clones of an image can start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyCall {
    /// Path of the pool.
    pub pool: PathBuf,
    /// Id of the image, 32 hexadecimal digits.
    pub cid: String,
    /// Seconds that this may take.
    pub timeout_s: u64,
}

/// A trial that a clone has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Operations that were executed.
    pub ran: u64,
    /// Those that were not.
    pub skipped: Vec<SkippedOp>,
    /// Microseconds that it took.
    pub us: u64,
}

/// An operation that a trial does not execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedOp {
    /// What it does.
    pub op: String,
    /// Why it is not executed.
    pub why: String,
}

/// A descriptor of one of the processes of an image; shown as `FD` or `PID:FD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedFd {
    /// The parents' pid of the process; without, it is the image's first, or the only one that has
    /// such a descriptor from outside.
    pub process: Option<u32>,
    /// Its number there.
    pub fd: u32,
}

impl fmt::Display for InheritedFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(pid) => write!(f, "{pid}:{}", self.fd),
            None => write!(f, "{}", self.fd),
        }
    }
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// A clone waits in its ghost for a wake-up from the client itself, by the descriptor beside this;
    /// [`Reply::Running`] follows that.
    Ready,
    /// A clone runs. The sender's pid in the packet's credentials is the clone's.
    Running(Running),
    /// Clones can start; ends the call.
    Verified(Verified),
    /// A clone has ended with this wait status; ends the call.
    Exited {
        /// As `waitpid` gives it.
        wait_status: i32,
        /// What the agent knows about it besides, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The page whose absence ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing: Option<MissingPage>,
    },
    /// A ghost that was made, or one of the list; [`Reply::Done`] follows the last. The sender's pid in the
    /// packet's credentials is that of its container's first process. [`Reply::InGhost`] follows each.
    Ghost(GhostState),
    /// The sender's pid in the packet's credentials is that of the ghost's clone, if it has one.
    InGhost,
    /// One of the list; [`Reply::Done`] follows the last.
    Clone(CloneState),
    /// One of those that [`Call::Count`] asks for; [`Reply::Done`] follows the last.
    Clones {
        /// The image: 32 hexadecimal digits.
        cid: String,
        /// How many live.
        count: u32,
    },
    /// Pages have become local; ends the call.
    Promoted(Promoted),
    /// A share is near, as far as that was possible; ends the call.
    ShareSet(ShareSet),
    /// What one processor reads from the pool in a second; ends the call.
    ReadRate {
        /// So much.
        bytes_per_s: u64,
    },
    /// Done; ends the call.
    Done,
    /// The call failed; ends it.
    Failed {
        /// The message for the user.
        message: String,
    },
}

/// A page of an image that could not be read when a clone touched it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingPage {
    /// Its number in the image's file.
    pub page: u64,
    /// Where it should have come from.
    pub source: String,
    /// Why it did not.
    pub cause: String,
}

/// A clone that runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Its pid, as the agent sees it.
    pub pid: i32,
    /// Microseconds from the request to its first instruction.
    pub restore_us: f64,
    /// How they were spent, by phase.
    pub phases_us: BTreeMap<String, f64>,
    /// When its pages become local: one that is watched in its turn starts as `mow` would have it.
    #[serde(default)]
    pub tiering: Tiering,
    /// What of the parent the node did not permit, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A ghost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GhostState {
    /// Its name, which is its container's too.
    pub id: String,
    /// Node it is on.
    pub node: String,
    /// Whose images it takes; any one's without it.
    pub user: Option<String>,
    /// What it is doing.
    pub state: GhostPhase,
    /// Pid of its container's first process, as the client sees it; 0 if that has just ended.
    pub init_pid: i32,
    /// Pid of its clone, as the client sees it; if it has just ended, as its starter saw it.
    pub pid: Option<i32>,
    /// The image that it has.
    pub cid: Option<String>,
    /// The name by which that was asked for.
    pub image: Option<String>,
    /// Anonymous memory and page tables of all its processes, in bytes.
    pub local_bytes: u64,
    /// Kernel memory charged to its cgroup, in bytes, where that is counted.
    pub kernel_bytes: Option<u64>,
    /// How the time to make it was spent, by phase; when it has just been made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phases_us: BTreeMap<String, f64>,
}

/// What a ghost is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GhostPhase {
    /// It waits for an image.
    #[default]
    Empty,
    /// It has an image, whose clone waits before its last steps.
    Attached,
    /// A clone runs in it.
    Running,
}

/// A clone in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CloneState {
    /// Its pid.
    pub pid: i32,
    /// Node it runs on.
    pub node: String,
    /// Its image.
    pub cid: String,
    /// Name it was started by.
    pub image: String,
    /// Tiering policy.
    pub tiering: String,
    /// Whether it is a profiling clone.
    #[serde(default)]
    pub is_profiled: bool,
    /// Anonymous memory and page tables, in bytes.
    pub local_bytes: u64,
    /// Anonymous memory in near memory, in bytes.
    #[serde(default)]
    pub near_bytes: u64,
    /// Anonymous memory on memory nodes without processors, in bytes.
    #[serde(default)]
    pub far_bytes: u64,
    /// The share of near memory that was asked for last, if any was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_permille: Option<LocalShare>,
    /// Bytes that were made local while it ran (`farfork promote`).
    #[serde(default)]
    pub promoted_bytes: u64,
    /// Bytes mapped from the pool and present.
    pub pool_bytes: u64,
    /// Mappings.
    pub vmas: u64,
    /// Page faults without (`minor`) and with (`major`) I/O.
    pub faults: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_shown_and_as_maps_writes_them() {
        let range = |process, start, end| AddressRange { process, start, end };
        for (text, meant) in [
            ("1000-2000", range(None, 0x1000, 0x2000)),
            ("0x1f-0x20", range(None, 0x1f, 0x20)),
            ("77:a-B", range(Some(77), 10, 11)),
        ] {
            assert_eq!(text.parse(), Ok(meant));
            assert_eq!(meant.to_string().parse(), Ok(meant));
        }
        for wrong in [
            "",
            "1000",
            "-",
            "x:1-2",
            "1-2-3",
            "g-h",
            "+1-2",
            "1-+2",
            "--1-2",
            "-1:1-2",
            "1- 2",
            "0x-1",
            "4294967296:1-2",
            "10000000000000000-20000000000000000",
            "--kill",
            "1-2\n",
            "\u{661}-9",
        ] {
            let malformed = ParseRangeError::Malformed { text: wrong.to_owned() };
            assert_eq!(wrong.parse::<AddressRange>(), Err(malformed), "{wrong}");
        }
        for empty in ["2000-1000", "1-1"] {
            let message = empty.parse::<AddressRange>().unwrap_err().to_string();
            assert!(message.contains("empty range"), "{message}");
        }
    }
}
