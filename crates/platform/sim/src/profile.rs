//! What functions take: starts, runs and memory, from profiles or by default.
//!
//! The defaults are medians over the twelve functions of `farfork bench tiering`
//! (docs/results/tiering.md). The cost of a start is how much longer the first call of such an instance
//! takes than a warm one, so page faults of that call are in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use farfork_platform::api::StartKind;
use farfork_platform::simulated::Footprint;
use farfork_policy::tiering::Objective;
use farfork_types::LocalShare;
use serde::Deserialize;

use crate::error::SimError;
use crate::shares::{Held, Measured, Shares};
use crate::trace::{Function, Trace};

/// Excess of the first call after a cold start.
pub const COLD_US: u64 = 92_700;
/// The same of a clone under the policy `mow`.
pub const CLONE_US: u64 = 3_455;
/// The same of a clone in a ghost with the image attached.
pub const GHOST_US: u64 = 1_023;
/// Of a cold start, the time until the instance accepts code: to the first instruction of a clone of the
/// base image in an empty ghost.
pub const BASE_US: u64 = 784;
/// A whole checkpoint: 27.4 MB at 476 MB/s (docs/results/fork-epyc.md, c-24M), which is the size of the
/// median function.
pub const CHECKPOINT_US: u64 = 58_000;
/// Local memory after one call of a cold started instance.
pub const COLD_BYTES: u64 = 28_850_000;
/// The same of a clone under the policy `mow`.
pub const CLONE_BYTES: u64 = 3_680_000;
/// Memory limit of a function whose memory is not known: OpenWhisk's default.
pub const LIMIT_MB: u64 = 256;
/// The smallest limit that the platform accepts.
const LEAST_MB: u64 = 32;

/// A profile of a function, as in its file.
#[derive(Clone, Debug, Deserialize)]
pub struct Profile {
    /// The function, named as in the trace.
    pub function: String,
    /// Where it was measured.
    #[serde(default)]
    pub machine: serde_json::Value,
    /// What of it is modelled.
    #[serde(default)]
    pub modelled: serde_json::Value,
    /// The version that measured it.
    #[serde(default)]
    pub version: serde_json::Value,
    /// Processors of a node of that machine, if calls are to share as many in simulations.
    #[serde(default)]
    pub cores: Option<u32>,
    /// Mean latency that its owner wants, in milliseconds, as the annotation `slo-mean-ms` of an action.
    #[serde(default)]
    pub slo_mean_ms: Option<u64>,
    /// The same of its P99, as `slo-p99-ms`.
    #[serde(default)]
    pub slo_p99_ms: Option<u64>,
    /// The measurements.
    pub cells: Vec<Cell>,
}

/// Measurements with one payload and one share of local memory.
#[derive(Clone, Debug, Deserialize)]
pub struct Cell {
    /// Bytes of the arguments.
    pub payload_bytes: u64,
    /// Share of memory that is local.
    pub local_permille: u64,
    /// Durations of phases. Used are `cold`, `clone`, `ghost` and `checkpoint`.
    #[serde(default)]
    pub phase_us: BTreeMap<String, u64>,
    /// For how long of the phases `cold`, `clone` and `ghost` a processor is needed; not at all in one that is not named.
    #[serde(default)]
    pub processor_us: BTreeMap<String, u64>,
    /// Latency of warm calls.
    pub latency_us: Latency,
    /// Near memory.
    pub near_bytes: u64,
    /// Memory in the pool.
    #[serde(default)]
    pub pool_bytes: u64,
    /// Memory further away.
    #[serde(default)]
    pub far_bytes: u64,
}

impl Cell {
    fn measured(&self) -> Measured {
        let Cell { payload_bytes, local_permille, near_bytes, pool_bytes, far_bytes, .. } = *self;
        let Latency { p50: latency_us, n: calls } = self.latency_us;
        let held = Held { near_bytes, pool_bytes, far_bytes };
        Measured { payload_bytes, local_permille, calls, latency_us, held }
    }
}

/// Latency of warm calls.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Latency {
    /// The median.
    pub p50: u64,
    /// Number of calls.
    #[serde(default)]
    pub n: u64,
}

/// What a function takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Excess of a first call after a cold start.
    pub cold_us: u64,
    /// The same of a clone.
    pub clone_us: u64,
    /// The same of a clone in an attached ghost.
    pub ghost_us: u64,
    /// For how long of `cold_us` a start needs a processor.
    pub cold_busy_us: u64,
    /// The same of `clone_us`.
    pub clone_busy_us: u64,
    /// The same of `ghost_us`.
    pub ghost_busy_us: u64,
    /// A whole checkpoint.
    pub checkpoint_us: u64,
    /// Its memory.
    pub footprint: Footprint,
    /// Its memory limit.
    pub limit_mb: u64,
    /// The latency that its owner wants, in milliseconds: the mean and the P99.
    pub slo_ms: (Option<u64>, Option<u64>),
    /// Durations of runs by the largest payload that takes so long.
    pub run_us: BTreeMap<u64, u64>,
    /// What it takes with a share of its memory near.
    pub shares: Shares,
    /// Processors of a node where it was measured, if calls share as many.
    pub cores: Option<u32>,
}

impl Behaviour {
    /// A function without a profile, with this memory if known.
    pub fn typical(memory_bytes: Option<u64>) -> Behaviour {
        let cold_bytes = memory_bytes.unwrap_or(COLD_BYTES);
        let clone_bytes = scaled(cold_bytes, CLONE_BYTES, COLD_BYTES);
        let footprint = Footprint {
            cold_bytes,
            clone_bytes,
            mapped_bytes: cold_bytes - clone_bytes,
            image_bytes: cold_bytes,
        };
        Behaviour {
            cold_us: COLD_US,
            clone_us: CLONE_US,
            ghost_us: GHOST_US,
            cold_busy_us: 0,
            clone_busy_us: 0,
            ghost_busy_us: 0,
            checkpoint_us: CHECKPOINT_US,
            footprint,
            limit_mb: memory_bytes.map_or(LIMIT_MB, limit_mb),
            slo_ms: (None, None),
            run_us: BTreeMap::new(),
            shares: Shares::default(),
            cores: None,
        }
    }

    /// What an instance holds, with a share of near memory if they are decided.
    pub fn held(&self, is_clone: bool, share: Option<LocalShare>) -> Held {
        let Footprint { cold_bytes, clone_bytes, mapped_bytes, .. } = self.footprint;
        match (share, is_clone) {
            (Some(share), _) => self.shares.held(is_clone, share),
            (None, true) => {
                Held { near_bytes: clone_bytes, pool_bytes: mapped_bytes, far_bytes: 0 }
            }
            (None, false) => Held { near_bytes: cold_bytes, ..Held::default() },
        }
    }

    /// For how long a start that takes so long until the instance accepts code, or runs, needs a processor. Never longer
    /// than it takes: a start has one processor at most.
    pub fn start_busy_us(&self, start: StartKind, us: u64) -> u64 {
        let busy_us = match start {
            // The clone of the base image is counted with the load of code.
            StartKind::Cold | StartKind::Warm => 0,
            StartKind::Clone => self.clone_busy_us,
            StartKind::Ghost => self.ghost_busy_us,
        };
        busy_us.min(us)
    }

    /// The same of loading its code, which takes so long.
    pub fn load_busy_us(&self, us: u64) -> u64 {
        self.cold_busy_us.min(us)
    }

    /// How much longer the timers of a start take than asked for, if `slack_us` says so of one timer.
    pub(crate) fn slack_us(&self, start: StartKind, slack_us: impl Fn(u64) -> u64) -> u64 {
        match start {
            StartKind::Cold => slack_us(BASE_US) + slack_us(self.cold_us.saturating_sub(BASE_US)),
            StartKind::Clone => slack_us(self.clone_us),
            StartKind::Ghost => slack_us(self.ghost_us),
            StartKind::Warm => 0,
        }
    }

    /// The latency that its owner wants.
    pub(crate) fn objective(&self) -> Objective {
        let us = |ms: Option<u64>| ms.filter(|ms| *ms > 0).map(|ms| ms.saturating_mul(1000));
        let (mean_ms, p99_ms) = self.slo_ms;
        Objective { mean_us: us(mean_ms), p99_us: us(p99_ms) }
    }

    /// How long a call with this payload runs, if the profile says so.
    pub fn run_us(&self, payload_bytes: u64) -> Option<u64> {
        let fitting = self.run_us.range(payload_bytes..).next();
        fitting.or(self.run_us.last_key_value()).map(|(_, us)| *us)
    }
}

fn scaled(bytes: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(bytes) * u128::from(part) / u128::from(whole);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn limit_mb(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20).max(LEAST_MB)
}

/// Profiles by function.
pub type Profiles = BTreeMap<String, Behaviour>;

/// Reads profiles. Each must be of a function of the trace.
pub fn read(paths: &[PathBuf], trace: &Trace) -> Result<Profiles, SimError> {
    let mut profiles = Profiles::new();
    for path in paths {
        let text =
            fs::read(path).map_err(|source| SimError::Read { path: path.clone(), source })?;
        let profile: Profile = serde_json::from_slice(&text)
            .map_err(|wrong| SimError::profile(path, format!("it is not a profile: {wrong}")))?;
        let behaviour = behaviour(path, &profile)?;
        let name = profile.function;
        if !trace.functions.iter().any(|function| function.name == name) {
            let reason = format!("its function '{name}' is not in the trace");
            return Err(SimError::profile(path, reason));
        }
        let cores = |known: &Behaviour| known.cores.is_some() && known.cores != behaviour.cores;
        if behaviour.cores.is_some() && profiles.values().any(cores) {
            let reason = "another profile has other cores: give profiles of one machine";
            return Err(SimError::profile(path, reason));
        }
        if profiles.insert(name.clone(), behaviour).is_some() {
            let reason = format!("there is another profile of function '{name}'");
            return Err(SimError::profile(path, reason));
        }
    }
    Ok(profiles)
}

/// The function of a profile, and its cells as the policies of shares take them.
///
/// # Errors
/// The file is not a profile, or no payload has the share 1000 and a smaller one.
pub fn facts(path: &Path) -> Result<(String, Vec<farfork_policy::share::Cell>), SimError> {
    let text = fs::read(path).map_err(|source| SimError::Read { path: path.to_owned(), source })?;
    let profile: Profile = serde_json::from_slice(&text)
        .map_err(|wrong| SimError::profile(path, format!("it is not a profile: {wrong}")))?;
    let Behaviour { shares, .. } = behaviour(path, &profile)?;
    shares.check(true).map_err(|reason| SimError::profile(path, reason))?;
    Ok((profile.function, shares.facts()))
}

/// What each function of a trace takes, in their order.
pub fn behaviours(functions: &[Function], profiles: &Profiles) -> Vec<Behaviour> {
    let one = |function: &Function| {
        let known = profiles.get(&function.name).cloned();
        known.unwrap_or_else(|| Behaviour::typical(function.memory_bytes))
    };
    functions.iter().map(one).collect()
}

/// Cold started instances have most of their memory near, clones least.
fn behaviour(path: &Path, profile: &Profile) -> Result<Behaviour, SimError> {
    let wrong = |reason: &str| SimError::profile(path, reason);
    if profile.cores == Some(0) {
        return Err(wrong(
            "its cores are 0: give how many processors a node has, or leave them out",
        ));
    }
    let cells = &profile.cells;
    let Ok(shares) = Shares::new(cells.iter().map(Cell::measured)) else {
        return Err(wrong("a share is above 1000 ‰"));
    };
    let most = cells.iter().map(|cell| cell.local_permille).max();
    let least = cells.iter().map(|cell| cell.local_permille).min();
    let (Some(most), Some(least)) = (most, least) else {
        return Err(wrong("it has no cells: measure at least one payload and share"));
    };
    let at = |share: u64| cells.iter().filter(move |cell| cell.local_permille == share);
    let (whole, clone) = (|| at(most), || at(least));
    let cold_bytes = whole().map(|cell| cell.near_bytes).max().unwrap_or(0);
    let clone_bytes = clone().map(|cell| cell.near_bytes).max().unwrap_or(0);
    let mapped_bytes = clone().map(|cell| cell.pool_bytes).max().unwrap_or(0);
    if clone_bytes > cold_bytes {
        return Err(wrong("it has more near memory with a smaller local share"));
    }
    let typical = Behaviour::typical(None);
    let phase = |name: &str, otherwise: u64| {
        let known = cells.iter().filter_map(|cell| cell.phase_us.get(name)).max();
        known.copied().unwrap_or(otherwise)
    };
    let busy = |name: &str| {
        let known = cells.iter().filter_map(|cell| cell.processor_us.get(name)).max();
        known.copied().unwrap_or(0)
    };
    Ok(Behaviour {
        cold_us: phase("cold", typical.cold_us),
        clone_us: phase("clone", typical.clone_us),
        ghost_us: phase("ghost", typical.ghost_us),
        cold_busy_us: busy("cold"),
        clone_busy_us: busy("clone"),
        ghost_busy_us: busy("ghost"),
        checkpoint_us: phase("checkpoint", typical.checkpoint_us),
        footprint: Footprint {
            cold_bytes,
            clone_bytes,
            mapped_bytes,
            image_bytes: cold_bytes.max(mapped_bytes),
        },
        limit_mb: limit_mb(cold_bytes),
        slo_ms: (profile.slo_mean_ms, profile.slo_p99_ms),
        run_us: whole().map(|cell| (cell.payload_bytes, cell.latency_us.p50)).collect(),
        shares,
        cores: profile.cores,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(text: &str) -> Result<Behaviour, String> {
        let profile: Profile = serde_json::from_str(text).unwrap();
        behaviour(Path::new("p.json"), &profile).map_err(|error| error.to_string())
    }

    fn cell(payload: u64, share: u64, near: u64, pool: u64, p50: u64) -> String {
        format!(
            r#"{{"payload_bytes": {payload}, "local_permille": {share}, "phase_us": {{"clone": 2000}},
                "processor_us": {{"cold": 30000}}, "latency_us": {{"p50": {p50}, "p99": 9, "n": 3}}, "near_bytes": {near},
                "pool_bytes": {pool}, "far_bytes": 0}}"#
        )
    }

    fn profile(cells: &[String]) -> String {
        format!(r#"{{"function": "f", "machine": "m", "cells": [{}]}}"#, cells.join(","))
    }

    #[test]
    fn cold_instances_are_near_and_clones_share() {
        let cells = [
            cell(0, 0, 5 << 20, 60 << 20, 900),
            cell(0, 1000, 64 << 20, 0, 700),
            cell(9, 1000, 1, 0, 800),
        ];
        let seen = read_one(&profile(&cells)).unwrap();
        let Footprint { cold_bytes, clone_bytes, mapped_bytes, image_bytes } = seen.footprint;
        assert_eq!((cold_bytes, image_bytes), (64 << 20, 64 << 20));
        assert_eq!((clone_bytes, mapped_bytes, seen.limit_mb), (5 << 20, 60 << 20, 64));
        assert_eq!((seen.clone_us, seen.cold_us), (2000, COLD_US));
        assert_eq!((seen.cold_busy_us, seen.clone_busy_us, seen.ghost_busy_us), (30_000, 0, 0));
        assert_eq!([20_000, 90_000].map(|us| seen.load_busy_us(us)), [20_000, 30_000]);
        let seen = Behaviour { clone_busy_us: 700, ghost_busy_us: 300, ..seen };
        let of = |kind| seen.start_busy_us(kind, 500);
        assert_eq!([StartKind::Cold, StartKind::Clone, StartKind::Ghost].map(of), [0, 500, 300]);
        assert_eq!([0, 1, 9, 10].map(|bytes| seen.run_us(bytes)), [700, 800, 800, 800].map(Some));
    }

    #[test]
    fn profiles_that_say_nothing_or_nonsense_are_refused() {
        for (cells, words) in [
            (vec![], "no cells"),
            (vec![cell(0, 1001, 1, 1, 1)], "above 1000"),
            (vec![cell(0, 0, 1, 1, 1) + "], \"cores\": 0, \"more\": ["], "its cores are 0"),
            (vec![cell(0, 0, 2, 1, 1), cell(0, 1000, 1, 1, 1)], "more near memory"),
        ] {
            let why = read_one(&profile(&cells)).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
