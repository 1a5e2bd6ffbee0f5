//! Profiles of functions: how latency and memory depend on payload and share of near memory ("Towards Elastic Memory
//! Allocation of Serverless Functions in Disaggregated Memory Systems", §3).
//!
//! ```text
//!  for each payload
//!    measured   a process of the function: init │ calls, with their stages │ idle        times, memory
//!    with one kind of memory
//!      emulated   the same under QEMU's user mode with a model of caches: one call       misses of each page
//!      modelled   for each share: time + misses of the pages that are not near × their added latency
//!    with a far memory node
//!      placed     for each share: evenly spread pages are moved there │ calls            times, memory by node
//! ```
//! The near pages are those with most misses, or evenly spread ones, as the paper's weighted interleave has them. What is
//! modelled is named so in the profile and in each of its cells.

mod emulator;
mod error;
mod format;
mod model;
mod placed;
mod process;
mod run;

pub use error::ProfileError;
pub use format::{Cell, Latency, Model, PhaseBytes, Placement, Profile};
pub use run::{Options, Payload, run};

/// Whether this machine has far memory, so that shares can be measured.
pub fn can_measure() -> bool {
    placed::Nodes::of_machine().is_some()
}
