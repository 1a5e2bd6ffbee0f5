//! The figures of a run.

use std::time::Duration;

use serde::Serialize;

use crate::distribution::Distribution;
use crate::run::Ended;
use crate::summary::Summary;
pub use crate::summary::TOLERANCE_PERMILLE;
use crate::timeline::{FAR, INSTANCES, NEAR, POOL};
use crate::trace::{Trace, Utilisation};

/// The figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Calls of the trace.
    pub requests: u64,
    /// Calls that succeeded.
    pub completed: u64,
    /// Calls that were refused, or failed.
    pub failed: u64,
    /// Rows that hold no call.
    pub rows_malformed: u64,
    /// From arrival to answer, of completed calls.
    pub latency_us: Latency,
    /// How completed calls got their instances.
    pub starts: Starts,
    /// Living instances over time.
    pub instances: Instances,
    /// Memory over time.
    pub memory_bytes: MemoryBytes,
    /// Completed calls that took longer than [`TOLERANCE_PERMILLE`] beyond their run.
    pub violations: u64,
    /// Completed calls that ran longer than with all memory near, whatever they waited.
    pub slower_runs: SlowerRuns,
    /// How much of the memory that functions are given their calls use: read from a recorded trace, and not
    /// simulated.
    pub utilisation: Utilisation,
    /// How long the simulation took.
    pub wall_s: f64,
    /// Calls simulated in each second of that.
    pub requests_per_s: f64,
    /// The seed.
    pub seed: u64,
    /// SHA-256 of the trace's files, one after the other.
    pub trace_sha256: String,
    /// The version of farfork.
    pub version: &'static str,
    /// Always true: nothing here was measured.
    pub modelled: bool,
    /// Whether the trace was generated, and not recorded.
    pub synthetic: bool,
}

/// Numbers of calls that ran longer than with all memory near, by more than a tolerance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlowerRuns {
    /// By more than 1 %.
    pub over_1_percent: u64,
    /// By more than 5 %.
    pub over_5_percent: u64,
    /// By more than 10 %.
    pub over_10_percent: u64,
    /// By more than 20 %.
    pub over_20_percent: u64,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: u64,
    /// The median.
    pub p50: u64,
    /// 99 of 100 are at most this.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Numbers of calls by start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Starts {
    /// In an instance that was started and loaded the code.
    pub cold: u64,
    /// In a clone of the function's image.
    pub clone: u64,
    /// In a ghost with the image attached.
    pub ghost: u64,
    /// In an instance that existed.
    pub warm: u64,
}

/// Numbers of instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Instances {
    /// The mean over time.
    pub mean: f64,
    /// The most at one moment.
    pub max: u64,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryBytes {
    /// Near memory of all nodes.
    pub near: Near,
    /// The most that images took of the pool.
    pub pool: u64,
    /// The most that instances had further away: the rest of those that have a share near and no image.
    pub far: u64,
}

/// Bytes of near memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Near {
    /// The mean over time.
    pub mean: u64,
    /// The median over time.
    pub p50: u64,
    /// The most at one moment.
    pub max: u64,
}

impl Report {
    /// The figures of a run whose records were kept.
    pub fn new(trace: &Trace, ended: &Ended, seed: u64) -> Report {
        Report::of(trace, &Summary::of(ended), ended.wall, seed)
    }

    /// The figures of a run of a trace.
    pub fn of(trace: &Trace, summary: &Summary, wall: Duration, seed: u64) -> Report {
        let (requests, completed) = (summary.requests, summary.completed());
        let [cold, clone, ghost, warm] = summary.starts;
        let [over_1_percent, over_5_percent, over_10_percent, over_20_percent] = summary.slower;
        let wall_s = wall.as_secs_f64();
        // The generator gives functions what they use.
        let is_known = !trace.is_synthetic();
        let utilisation = if is_known { trace.utilisation } else { Utilisation::default() };
        Report {
            requests,
            completed,
            failed: requests - completed,
            rows_malformed: trace.rows_malformed,
            latency_us: Latency::of(&summary.latencies),
            starts: Starts { cold, clone, ghost, warm },
            instances: Instances {
                mean: rounded(summary.mean(INSTANCES)),
                max: summary.peaks[INSTANCES],
            },
            memory_bytes: MemoryBytes {
                near: Near {
                    mean: summary.mean(NEAR) as u64,
                    p50: summary.near.at(500),
                    max: summary.peaks[NEAR],
                },
                pool: summary.peaks[POOL],
                far: summary.peaks[FAR],
            },
            violations: summary.violations,
            slower_runs: SlowerRuns {
                over_1_percent,
                over_5_percent,
                over_10_percent,
                over_20_percent,
            },
            utilisation,
            wall_s: rounded(wall_s),
            requests_per_s: rounded(requests as f64 / wall_s.max(1e-9)),
            seed,
            trace_sha256: trace.sha256.clone(),
            version: env!("CARGO_PKG_VERSION"),
            modelled: true,
            synthetic: trace.is_synthetic(),
        }
    }
}

impl Latency {
    /// Percentiles by nearest rank.
    fn of(latencies: &Distribution) -> Latency {
        Latency {
            mean: latencies.mean() as u64,
            p50: latencies.at(500),
            p99: latencies.at(990),
            max: latencies.max(),
        }
    }
}

/// A figure with three decimals.
fn rounded(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}
