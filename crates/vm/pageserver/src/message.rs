//! What holder and server send each other: JSON documents with descriptors beside them.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::handover::Region;
use crate::hotness::Withheld;

/// Version of the documents. Both ends are the same program; a server that was replaced meanwhile is not.
pub(crate) const VERSION: u32 = 4;

/// From the holder, or to a guard.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Command {
    /// What to serve; beside it, the open file of the image, its hot pages, and, for an image of which parts lie
    /// on another node, that node's file of it. `replays`: machines that are filled at once.
    Serve { version: u32, cid: String, replays: usize },
    /// A machine; beside it, its userfaultfd, its socket and its ledger. Without regions every access is to
    /// end in SIGBUS. `is_fresh`: no server had it before. `is_filled`: its hot pages are there. `withheld`: hot pages
    /// that it has to ask for.
    Adopt {
        machine: u64,
        memory_bytes: u64,
        regions: Vec<Region>,
        is_fresh: bool,
        is_filled: bool,
        withheld: Option<Withheld>,
    },
    /// Other hot pages from now on; beside it, their file.
    Hot,
    /// From a server without a holder to its guard: a machine; beside it, its socket.
    Guard { machine: u64 },
}

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Report {
    /// It serves.
    Ready,
    /// A machine's hot pages are there.
    Filled { machine: u64, counters: Counters },
    /// A machine has ended, or, with a reason, cannot be served.
    Ended { machine: u64, failed: Option<String>, counters: Counters },
}
