//! The profile, as its file has it.

use std::collections::BTreeMap;

use serde::Serialize;

/// A profile of a function.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// Its name.
    pub function: String,
    /// The machine that it ran on: processor, kernel and bytes of memory.
    pub machine: BTreeMap<&'static str, String>,
    /// Whether latencies of shares below 1000 are modelled.
    pub modelled: bool,
    /// How; absent where they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// The version that measured it.
    pub version: &'static str,
    /// The measurements, by payload and share.
    pub cells: Vec<Cell>,
}

/// Which pages are near.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Those with most misses.
    #[default]
    Hottest,
    /// Evenly spread ones, as by the paper's weighted interleave.
    Even,
}

/// From misses to time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Model {
    /// Size of the last-level cache, in bytes.
    pub cache_bytes: u64,
    /// Latency of near memory, in nanoseconds.
    pub near_ns: f64,
    /// Latency of the rest, in nanoseconds.
    pub far_ns: f64,
    /// Misses that overlap.
    pub overlap: f64,
    /// Which pages are near.
    pub placement: Placement,
}

/// Latency of warm calls, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Its median.
    pub p50: u64,
    /// Its 99th percentile.
    pub p99: u64,
    /// Number of calls.
    pub n: u64,
}

/// Memory that the process has resident in each phase, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PhaseBytes {
    /// Once the function is loaded.
    pub init: u64,
    /// At most, in a call.
    pub execution: u64,
    /// After the calls.
    pub keep_alive: u64,
}

/// Measurements with one payload and one share.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Size of the payload.
    pub payload_bytes: u64,
    /// The share of near memory, in thousandths.
    pub local_permille: u16,
    /// Whether its latencies are modelled.
    pub modelled: bool,
    /// Durations of phases, in microseconds: `init`, from the start of the process until the function is loaded, which is
    /// also its `cold` start for the simulator, and `execution`, the median call.
    pub phase_us: BTreeMap<&'static str, u64>,
    /// Memory by phase.
    pub phase_bytes: PhaseBytes,
    /// Median durations of the stages that the function reports, in microseconds.
    pub stage_us: BTreeMap<String, u64>,
    /// Latency of warm calls.
    pub latency_us: Latency,
    /// Near memory: the share of what a call has resident at most; measured, all of that but `far_bytes`.
    pub near_bytes: u64,
    /// Of the rest, what is there once the function is loaded: it stays in the pool. Measured, nothing does.
    pub pool_bytes: u64,
    /// The rest of the rest, which calls allocate: it lies on a far node. Measured, what was counted there as calls began.
    pub far_bytes: u64,
    /// Misses of a call in all, where it was emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Those of pages that are not near.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_misses: Option<u64>,
}
