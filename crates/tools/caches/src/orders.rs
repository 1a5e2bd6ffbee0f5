//! What whoever measures says to whoever follows a process, one JSON text a line.

use serde::{Deserialize, Serialize};

use crate::{Phase, Seen};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Last-level caches of these sizes are modelled. The first order.
    Begin(Vec<u64>),
    /// Accesses mean this from now on.
    Enter(Phase),
    /// What the process has in memory now is its image.
    Checkpoint,
    /// The caches hold nothing.
    ClearCaches,
    /// What was seen since the last time is told.
    Take,
}

/// What came of an order, or why it failed.
pub type Answer = Result<Option<Seen>, String>;
