//! Benchmarks of farfork against the alternatives: cold starts, forks, CRIU, warm processes.
//!
//! ```text
//!  fork, tiering, porter, … ─► samples ── stats ──► rows ┐
//!    │   └─► cases                        goals ◄────────┴─► report
//!  testbed (pool, agent, cgroup)   subject (processes, their protocol)
//! ```
//! Invariants of every benchmark: compared cases run interleaved in one run. Every answer is checked,
//! and a wrong one ends the run. A case that could not be measured has a row with the reason. A goal is
//! judged by the whole interval of the measured value.

mod cases;
mod clones;
mod criu;
mod error;
mod exchange;
mod far;
mod features;
mod fork;
mod goals;
mod latency;
mod machine;
mod objects;
mod porter;
mod program;
mod protocol;
mod report;
mod samples;
mod seeds;
mod sim;
mod stats;
mod subject;
mod testbed;
mod tiering;
mod usage;
mod vm;

pub use error::BenchError;
pub use goals::{Goal, Verdict};
pub use report::Report;
pub use samples::Row;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few rounds: enough to show that everything works, too few to decide much.
    pub quick: bool,
    /// The only subjects to measure. Empty: all.
    pub only: Vec<String>,
}

impl Options {
    /// Whether a subject is to be measured.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Refuses unknown subjects.
    fn check(&self, names: &[&str]) -> Result<(), BenchError> {
        let unknown = self.only.iter().find(|only| !names.contains(&only.as_str()));
        unknown.map_or(Ok(()), |unknown| {
            let (unknown, known) = (unknown.clone(), names.join(", "));
            Err(BenchError::Unknown { unknown, known })
        })
    }
}

/// All benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// Cold start, local fork and clone.
    Fork,
    /// The cost of each kind of descriptor, thread and mapping in a restore.
    Features,
    /// Tiering policies and ghosts, on the papers' functions.
    Tiering,
    /// The autoscaler under bursts of calls.
    Porter,
    /// The same with a modelled slow pool.
    PorterSlowPool,
    /// The overhead of the gateway, and the memory of functions without calls.
    Gateway,
    /// The modelled cost of a slow pool.
    Latency,
    /// Objects in shared memory against mimalloc.
    Objects,
    /// Forks from a live process against checkpoints and local forks.
    Seeds,
    /// Images of another node.
    Far,
    /// Virtual machines from snapshots.
    Vm,
    /// The simulator's speed.
    Sim,
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
        Benchmark::Objects => objects::run(options),
        Benchmark::Seeds => seeds::run(options),
        Benchmark::Far => far::run(options),
        Benchmark::Vm => vm::run(options),
        Benchmark::Sim => sim::run(options),
    }
}

/// Prints the progress.
fn progress(what: &str) {
    eprintln!("{what}");
}
