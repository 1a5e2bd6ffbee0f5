//! The accesses of a process that miss a processor's caches, by the kind of their pages. They are the input
//! of models of slow memory, on machines that have neither slow memory nor hardware counters.
//!
//! ```text
//!  access ─► L1 ─► L2 ─► last level, of several sizes at once ─► miss: counted by the kind of its page
//!    └────► page: of the image? accessed before the checkpoint? written since?
//! ```
//! There is no prefetching and no overlap: the model that turns misses into time accounts for them. Caches
//! are indexed by virtual addresses, so that a page keeps its lines when it is copied.

mod cache;
mod observer;
mod orders;
mod pages;

pub use cache::{Cache, Geometry, LINE_BYTES};
pub use observer::{Observer, Phase};
pub use orders::{Answer, Order};
pub use pages::{Kind, PAGE_BYTES};
use serde::{Deserialize, Serialize};

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
    /// Its number: its address, divided by [`PAGE_BYTES`].
    pub page: u64,
    /// How many of its lines missed.
    pub misses: u64,
}
