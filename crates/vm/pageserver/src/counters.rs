//! What was done for a machine.

use serde::{Deserialize, Serialize};

/// Counts since a server took the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Faults that were answered.
    pub faults: u64,
    /// Pages that were copied from the image.
    pub copied_pages: u64,
    /// Pages of zeros.
    pub zero_pages: u64,
    /// Pages, of both kinds, that were there before a fault asked for them.
    pub ahead_pages: u64,
    /// Pages, of both kinds, that were replayed because machines before had needed them.
    pub hot_pages: u64,
    /// Pages that the monitor has discarded.
    pub removed_pages: u64,
    /// Pages that could not be read, or that lie in no region.
    pub poisoned_pages: u64,
    /// Answers that had to wait because the monitor was changing its mappings.
    pub deferred: u64,
}

impl std::fmt::Display for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counters { faults, copied_pages, zero_pages, ahead_pages, hot_pages, .. } = self;
        write!(f, "{faults} faults, {copied_pages} pages copied, {zero_pages} of zeros")?;
        write!(
            f,
            ", {hot_pages} of them replayed, {ahead_pages} ahead; {} discarded",
            self.removed_pages
        )?;
        match self.poisoned_pages {
            0 => Ok(()),
            pages => write!(f, "; {pages} pages could not be read, and end in SIGBUS"),
        }
    }
}
