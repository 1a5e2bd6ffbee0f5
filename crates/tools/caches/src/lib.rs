//! Which accesses of a process miss a processor's caches, and which pages they go to: what the cost of
//! slow memory is modelled with, where there is none and no counters either.
//!
//! ```text
//!  access ─► L1 ─► L2 ─► last level, of several sizes at once ─► miss: counted by the kind of its page
//!    └────► page: of the image? accessed before the checkpoint? written since?
//! ```
//! Nothing is fetched ahead and nothing overlaps: what of that hides latency is for whoever turns
//! misses into time. Caches are told lines by virtual addresses, so that a page keeps its lines
//! when it is copied.

mod cache;
mod observer;
mod orders;
mod pages;

pub use cache::{Cache, Geometry, LINE_BYTES};
pub use observer::{Observer, Phase};
pub use orders::{Answer, Order};
pub use pages::{Kind, PAGE_BYTES};
use serde::{Deserialize, Serialize};

/// A thing counted by the kind of page that it happens to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByKind {
    /// Pages that no image has: the process made them itself.
    pub own: u64,
    /// Pages of the image, written since the checkpoint.
    pub written: u64,
    /// Other pages of the image that were accessed before the checkpoint.
    pub accessed: u64,
    /// The rest of the image.
    pub unaccessed: u64,
}

/// Misses of a last-level cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misses {
    /// Its size.
    pub bytes: u64,
    /// By the kind of page at that moment: the write that has a page copied goes to the copy.
    pub misses: ByKind,
}

/// What was seen since it was asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Reads and writes.
    pub accesses: u64,
    /// Lines of instructions that were fetched.
    pub fetches: u64,
    /// For each size.
    pub levels: Vec<Misses>,
    /// Pages of the image by their kind before they were first touched since the checkpoint.
    pub touched: ByKind,
    /// Those before they were first written.
    pub first_written: ByKind,
    /// Pages that were accessed before the checkpoint, while that was looked at.
    pub learned_pages: u64,
    /// Those of them that are in the image: all but the ones that were given back.
    pub learned_in_image: u64,
}
