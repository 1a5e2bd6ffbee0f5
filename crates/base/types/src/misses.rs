//! The protocol between a program that measures and the plugin that models a processor's caches: one JSON document a
//! line. Programs that ask for its counts do not link the model itself.

use serde::{Deserialize, Serialize};

/// What accesses are used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Accesses are ignored.
    #[default]
    Ignored,
    /// Accesses mark the pages that are accessed before the checkpoint.
    Learning,
    /// Accesses go through the caches.
    Measured,
}

/// Counts by kind of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByKind {
    /// Pages that are not in the image: the process created them.
    pub own: u64,
    /// Pages of the image that were written since the checkpoint.
    pub written: u64,
    /// Other pages of the image that were accessed before the checkpoint.
    pub accessed: u64,
    /// Other pages of the image.
    pub unaccessed: u64,
}

/// Misses of a last-level cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misses {
    /// Its size.
    pub bytes: u64,
    /// By the kind of page at the miss. The write that copies a page goes to the copy.
    pub misses: ByKind,
}

/// Counts since the last query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Reads and writes.
    pub accesses: u64,
    /// Lines of instructions that were fetched.
    pub fetches: u64,
    /// Misses by size of the last-level cache.
    pub levels: Vec<Misses>,
    /// Pages touched for the first time since the checkpoint, by their kind before that.
    pub touched: ByKind,
    /// Pages written for the first time since the checkpoint, by their kind before that.
    pub first_written: ByKind,
    /// Pages that were accessed in [`Phase::Learning`].
    pub learned_pages: u64,
    /// Those of them that are in the image. The others were unmapped before the checkpoint.
    pub learned_in_image: u64,
    /// Misses of the last of the last-level caches by page, in the order of pages, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageMisses>,
}

/// The misses of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMisses {
    /// Its number: its address, divided by [`PAGE_BYTES`](crate::PAGE_BYTES).
    pub page: u64,
    /// How many of its lines missed.
    pub misses: u64,
}

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
