//! The simulator: what a policy would do with a trace of calls.
//!
//! ```text
//!  trace    files of calls ─► requests in the order of their arrival; malformed rows are counted
//!  profile  what functions take: starts, runs, memory; shares: the same with a part of it near
//!  fast     the platform's scheduler and policies, driven by an agenda of events
//!           or, in its place, the policy of the paper of shares
//!  serve    a trace, read while it is simulated by fast ─► summary: distributions, timeline
//!  run      the platform's own tasks and store under a paused clock ─► records; model: its instances
//!  report   summary ─► figures as JSON; html, csv: the same as one page and as tables
//!  many     runs side by side
//!  generate synthetic traces; sample: parts of traces, and how far they are from the whole
//! ```
//! The platform's scheduler decides everything. Simulated are only the nodes: instances, images, memory, and the
//! time that each step takes.
//!
//! Invariants:
//! - Every request of a trace ends exactly once: completed or failed.
//! - No row of a trace is left out in silence.
//! - Equal traces, settings and seeds give equal reports, but for the time that the run took.
#![forbid(unsafe_code)]

pub mod csv;
pub mod distribution;
mod error;
pub mod fast;
pub mod generate;
mod html;
mod malformed;
pub mod many;
mod model;
pub mod profile;
mod random;
pub mod report;
mod run;
pub mod sample;
pub mod series;
mod serve;
mod settings;
pub mod shares;
pub mod summary;
pub mod timeline;
pub mod trace;

pub use error::SimError;
pub use farfork_platform::scheduler::JournalFile;
pub use html::{Shown, page};
pub use malformed::Malformed;
pub use run::{Ended, Record, run, run_journalled};
pub use serve::{Outcome, serve};
pub use settings::{Scheduling, Settings};
