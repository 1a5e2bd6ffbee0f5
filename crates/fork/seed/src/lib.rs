//! Forks from a live process, on this node or another: MITOSIS's prepare, resume and reclaim (OSDI '23).
//!
//! ```text
//!  prepare ─► keeper ─┬─ traces ─► shadow: the frozen copy of the process
//!                     ├─ serves ─► region: descriptor and pages, as the file of an image
//!                     └─ ends the seed: reclaimed, expired, or its shadow was killed
//!  resume  ─► one call to the keeper ─► the far file system shows the region ─► restore, as of any image
//! ```
//! Invariants: the shadow never outlives its keeper; a seed that ends first refuses new clones, then
//! waits for those that may still fetch pages, up to a limit, and only then lets go of its pages; what a
//! clone reads is what the process had when it was prepared, or an error that names the seed; what a process
//! has never written stays with the seed that it has it from.

mod address;
mod ancestry;
mod answers;
mod census;
mod client;
mod error;
mod keeper;
mod learned;
pub mod protocol;
pub mod region;
mod seed;
mod served;
pub mod status;

pub use ancestry::{Ancestry, OwnerShare};
pub use client::{connect, reclaim, renew, shared_key};
pub use error::SeedError;
pub use farfork_handle as handle;
pub use keeper::{Report, Settings, keep};
