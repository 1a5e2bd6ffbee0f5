//! Benchmarks of farfork against what one would do without it.
//!
//! ```text
//!  fork, tiering, porter, … ─► samples ── stats ──► rows ┐
//!    │   └─► cases                        goals ◄────────┴─► report
//!  testbed (pool, agent, cgroup)   subject (processes, their protocol)
//! ```
//! Invariants of every benchmark: what is compared runs interleaved in one run; every answer is
//! checked and a wrong one ends the run; what could not be measured has a row that says why; a
//! goal is judged by the whole interval of what was measured.

mod cases;
mod clones;
mod error;
mod exchange;
mod features;
mod fork;
mod goals;
mod latency;
mod machine;
mod porter;
mod program;
mod protocol;
mod report;
mod samples;
mod stats;
mod subject;
mod testbed;
mod tiering;
mod usage;

pub use error::BenchError;
pub use goals::{Goal, Verdict};
pub use report::Report;
pub use samples::Row;

/// How a benchmark is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few rounds: enough to see that everything works, and too few to decide much.
    pub quick: bool,
    /// Names of subjects, of which nothing else is measured; all of them without any.
    pub only: Vec<String>,
}

impl Options {
    /// Whether a subject is to be measured.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Refuses names of which there is no subject.
    fn check(&self, names: &[&str]) -> Result<(), BenchError> {
        let unknown = self.only.iter().find(|only| !names.contains(&only.as_str()));
        unknown.map_or(Ok(()), |unknown| {
            let (unknown, known) = (unknown.clone(), names.join(", "));
            Err(BenchError::Unknown { unknown, known })
        })
    }
}

/// What can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// Cold start, local fork and clone.
    Fork,
    /// What each kind of thing costs a restore.
    Features,
    /// Ghosts, and where pages lie, on the papers' functions.
    Tiering,
    /// The autoscaler under bursts of calls.
    Porter,
    /// The same, with what a slow pool would add to calls.
    PorterSlowPool,
    /// What the gateway adds to a call, and functions that nobody calls.
    Gateway,
    /// What a slow pool would cost.
    Latency,
}

/// Runs a benchmark.
pub fn run(benchmark: Benchmark, options: &Options) -> Result<Report, BenchError> {
    match benchmark {
        Benchmark::Fork => fork::run(options),
        Benchmark::Features => features::run(options),
        Benchmark::Tiering => tiering::run(options),
        Benchmark::Porter => porter::run(options, false),
        Benchmark::PorterSlowPool => porter::run(options, true),
        Benchmark::Gateway => porter::gateway::run(options),
        Benchmark::Latency => latency::run(options),
    }
}

/// Tells people how far it is.
fn progress(what: &str) {
    eprintln!("{what}");
}
