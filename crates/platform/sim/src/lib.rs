//! The simulator: what a policy would do with a trace of calls.
//!
//! ```text
//!  trace    files of calls ─► requests in the order of their arrival; malformed rows are counted
//!  profile  what functions take: starts, runs, memory
//!  model    simulated instances of these functions
//!  run      the platform's own scheduler, policies and store under a paused clock ─► records
//!  report   records ─► figures as JSON; html: the same as one page
//! ```
//! The platform decides everything. Simulated are only the nodes: instances, images, memory, and the
//! time that each step takes. So a run is exact and slow: about as slow as the platform itself.
//!
//! Invariants:
//! - Every request of a trace ends exactly once: completed or failed.
//! - No row of a trace is left out in silence.
//! - Equal traces, settings and seeds give equal reports, but for the time that the run took.
#![forbid(unsafe_code)]

mod error;
pub mod fast;
mod html;
mod malformed;
mod model;
pub mod profile;
mod random;
pub mod report;
mod run;
pub mod series;
pub mod trace;

pub use error::SimError;
pub use farfork_platform::scheduler::JournalFile;
pub use html::page;
pub use malformed::Malformed;
pub use run::{Ended, Record, Settings, run, run_journalled};
