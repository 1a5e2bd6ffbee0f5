//! The figures of a run.

use farfork_platform::api::StartKind;
use serde::Serialize;

use crate::run::Ended;
use crate::trace::Trace;

/// How much longer than its run a call may take without counting as a violation, in thousandths.
pub const TOLERANCE_PERMILLE: u64 = 100;

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
    /// Memory further away: not simulated yet, so 0.
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
    /// The figures of a run of a trace.
    pub fn new(trace: &Trace, ended: &Ended, seed: u64) -> Report {
        let Ended { records, series, end_us, wall } = ended;
        let mut latencies = Vec::with_capacity(records.len());
        let (mut starts, mut violations) = (Starts::default(), 0);
        for record in records {
            match record.start {
                None => continue,
                Some(StartKind::Cold) => starts.cold += 1,
                Some(StartKind::Clone) => starts.clone += 1,
                Some(StartKind::Ghost) => starts.ghost += 1,
                Some(StartKind::Warm) => starts.warm += 1,
            }
            let most = u128::from(record.duration_us) * u128::from(1000 + TOLERANCE_PERMILLE);
            violations += u64::from(u128::from(record.latency_us) * 1000 > most);
            latencies.push(record.latency_us);
        }
        latencies.sort_unstable();
        let (requests, completed) = (records.len() as u64, latencies.len() as u64);
        let wall_s = wall.as_secs_f64();
        Report {
            requests,
            completed,
            failed: requests - completed,
            rows_malformed: trace.rows_malformed,
            latency_us: Latency::of(&latencies),
            starts,
            instances: Instances {
                mean: rounded(series.mean(*end_us, |totals| totals.instances)),
                max: series.max(|totals| totals.instances),
            },
            memory_bytes: MemoryBytes {
                near: Near {
                    mean: series.mean(*end_us, |totals| totals.near_bytes) as u64,
                    p50: series.median(*end_us, |totals| totals.near_bytes),
                    max: series.max(|totals| totals.near_bytes),
                },
                pool: series.max(|totals| totals.pool_bytes),
                far: 0,
            },
            violations,
            wall_s: rounded(wall_s),
            requests_per_s: rounded(requests as f64 / wall_s.max(1e-9)),
            seed,
            trace_sha256: trace.sha256.clone(),
            version: env!("CARGO_PKG_VERSION"),
            modelled: true,
        }
    }
}

impl Latency {
    /// Of sorted latencies; percentiles by nearest rank.
    fn of(sorted: &[u64]) -> Latency {
        let count = sorted.len();
        let rank = |percent: usize| {
            let index = (count * percent).div_ceil(100).saturating_sub(1);
            sorted.get(index).copied().unwrap_or(0)
        };
        let sum: u128 = sorted.iter().map(|us| u128::from(*us)).sum();
        let mean = u64::try_from(sum / count.max(1) as u128).unwrap_or(u64::MAX);
        Latency { mean, p50: rank(50), p99: rank(99), max: rank(100) }
    }
}

/// A figure with three decimals.
fn rounded(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let all: Vec<u64> = (1..=200).collect();
        assert_eq!(Latency::of(&all), Latency { mean: 100, p50: 100, p99: 198, max: 200 });
        assert_eq!(Latency::of(&[7]), Latency { mean: 7, p50: 7, p99: 7, max: 7 });
        assert_eq!(Latency::of(&[]), Latency::default());
    }
}
