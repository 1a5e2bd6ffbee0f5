//! The protocol between benchmark and plugin: one JSON document a line.

use serde::{Deserialize, Serialize};

use crate::{Phase, Seen};

/// An order to the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Model last-level caches of these sizes. The first order.
    Begin(Vec<u64>),
    /// Use accesses for this from now on.
    Enter(Phase),
    /// Declare the process's present memory the image.
    Checkpoint,
    /// Empty all caches.
    ClearCaches,
    /// Return the counts since the last query.
    Take,
    /// Return the counts since the last query, with the misses by page; these are counted from the first such order on.
    TakePages,
}

/// The answer to an order, or why it failed.
pub type Answer = Result<Option<Seen>, String>;
