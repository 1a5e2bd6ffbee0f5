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
mod pages;

pub use cache::{Cache, Geometry, LINE_BYTES};
pub use farfork_types::misses::{Answer, ByKind, Misses, Order, PageMisses, Phase, Seen};
pub use observer::Observer;
pub use pages::{Kind, PAGE_BYTES};
