//! Shares of near memory: what they change, and the pitfall of slower calls.

use std::path::PathBuf;
use std::time::Duration;

use farfork_policy::adaptive::Adaptive;
use farfork_policy::checkpoint::AfterCalls;
use farfork_policy::journal::replay;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{Checkpoint, KeepAlive, Share};
use farfork_policy::share::{Dynamic, Fixed};
use farfork_sim::fast::{self, FINEST_US, StartKind};
use farfork_sim::profile::{Profiles, read};
use farfork_sim::report::Report;
use farfork_sim::summary::Summary;
use farfork_sim::trace::Trace;
use farfork_sim::{Ended, Settings, run};
use farfork_types::LocalShare;
use serde_json::json;

use crate::{settings, trace};

const RUN_US: u64 = 400_000;
const COLD_US: u64 = 500_000;

/// A profile of `function-0`: slower by `slow_permille` with no memory near, and less so with more, in proportion.
fn profile(slow_permille: u64, trace: &Trace) -> Profiles {
    let cell = |permille: u64| {
        let p50 = RUN_US + RUN_US * slow_permille * (1000 - permille) / 1_000_000;
        let (near, pool) = ((1 << 20) + (permille << 16), (1000 - permille) << 16);
        json!({"payload_bytes": 0, "local_permille": permille, "phase_us": {"cold": COLD_US, "clone": 2000},
               "latency_us": {"p50": p50, "p99": p50, "n": 30}, "near_bytes": near, "pool_bytes": pool})
    };
    let cells: Vec<_> = (0..=20).map(|step| cell(step * 50)).collect();
    let text = json!({"function": "function-0", "cells": cells}).to_string();
    read_text(&text, trace)
}

pub fn read_text(text: &str, trace: &Trace) -> Profiles {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("profile.json");
    std::fs::write(&path, text).unwrap();
    read(&[path], trace).unwrap()
}

fn fixed(permille: u16) -> Share {
    Share::Fixed(Fixed { local_permille: LocalShare::from_permille(permille).unwrap() })
}

/// Ample nodes, and instances that end after ten seconds without a call.
fn with(share: Option<Share>) -> Settings {
    let window = ByPressure { long_ms: 10_000, short_ms: 10_000, ..ByPressure::default() };
    let keep_alive = KeepAlive::ByPressure(window);
    let policies = farfork_policy::Settings { share, keep_alive, ..settings().policies };
    Settings { node_bytes: 1 << 40, policies, ..settings() }
}

/// Calls at random moments, so many per second.
pub fn arrivals(rate: f64, seconds: f64) -> Trace {
    let mut random = 7u64;
    let mut gap_s = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        -(1.0 - (random >> 11) as f64 / (1u64 << 53) as f64).ln() / rate
    };
    let mut at_s = 0.0;
    let times = std::iter::from_fn(|| {
        at_s += gap_s();
        (at_s < seconds).then_some((0, (at_s * 1e6) as u64, RUN_US))
    });
    trace(1, &times.collect::<Vec<_>>())
}

fn simulated(trace: &Trace, slow_permille: u64, share: Option<Share>) -> (Report, Vec<u8>) {
    let (profiles, settings, mut journal) =
        (profile(slow_permille, trace), with(share), Vec::new());
    let ended = fast::run(trace, &profiles, &settings, FINEST_US, Some(&mut journal)).unwrap();
    (Report::of(trace, &Summary::of(&ended), Duration::ZERO, 1), journal)
}

fn near(trace: &Trace, share: Share) -> u64 {
    // As slow as image recognition in the paper.
    simulated(trace, 3900, Some(share)).0.memory_bytes.near.mean
}

#[test]
fn an_instance_has_its_share_near_and_its_calls_take_as_long_as_that_takes() {
    let calls: Vec<(u32, u64, u64)> = (0..17)
        .map(|call| (0, call * 2_000_000, RUN_US / 2))
        .chain([(0, 32_000_001, RUN_US)])
        .collect();
    let trace = trace(1, &calls);
    let profiles = profile(1000, &trace);
    let ended = fast::run(&trace, &profiles, &with(Some(fixed(250))), FINEST_US, None).unwrap();
    let find = |request| ended.records.iter().find(|record| record.request == request).unwrap();
    // 75 % slower: half a duration of the trace is half as much longer, too.
    let (first, warm, clone) = (find(0), find(1), find(17));
    assert_eq!((first.start, first.run_us), (Some(StartKind::Cold), RUN_US / 2 * 7 / 4));
    assert_eq!(first.latency_us, COLD_US + first.run_us);
    assert_eq!((warm.start, warm.latency_us), (Some(StartKind::Warm), RUN_US / 2 * 7 / 4));
    assert_eq!((clone.start, clone.run_us), (Some(StartKind::Clone), RUN_US * 7 / 4));
    let near_bytes = (1 << 20) + (250 << 16);
    let held = |from: usize| ended.series.steps[from].totals;
    let cold = ended.series.steps.iter().position(|step| step.totals.near_bytes > 0).unwrap();
    assert_eq!((held(cold).near_bytes, held(cold).far_bytes), (near_bytes, 750 << 16));
    let two = ended.series.steps.iter().find(|step| step.totals.instances == 2).unwrap().totals;
    assert_eq!(
        (two.near_bytes, two.far_bytes),
        (2 * near_bytes, 750 << 16),
        "a clone's rest is in the pool"
    );
    assert_eq!(ended.series.steps.last().unwrap().totals.instances, 2);
    let report = Report::of(&trace, &Summary::of(&ended), Duration::ZERO, 1);
    assert_eq!(report.slower_runs.over_20_percent, 18);
}

/// Where far memory is full, instances have all memory near, and their calls are as fast as with that.
#[test]
fn far_memory_has_a_size() {
    let trace = arrivals(5.0, 60.0);
    let profiles = profile(1000, &trace);
    let ran = |far_bytes: Option<u64>| {
        let policies = farfork_policy::Settings {
            checkpoint: Checkpoint::AfterCalls(AfterCalls { calls: u64::MAX }),
            ..with(Some(fixed(0))).policies
        };
        let settings = Settings { far_bytes, policies, ..with(None) };
        let ended = fast::run(&trace, &profiles, &settings, FINEST_US, None).unwrap();
        assert_eq!(ended.records.len(), trace.requests.len());
        let slow = ended.records.iter().filter(|record| record.run_us > RUN_US).count();
        (ended.series.max(|totals| totals.far_bytes), slow)
    };
    let (all, slow) = ran(None);
    assert_eq!(slow, trace.requests.len());
    // Room for the far memory of two instances.
    let (two, fewer) = ran(Some(2 * (1000 << 16)));
    assert!(all > 3 * (1000 << 16) && two == 2 * (1000 << 16), "{all}, {two}");
    assert!(fewer > 0 && fewer < slow, "{fewer} of {slow}");
    assert_eq!(ran(Some(0)), (0, 0));
}

#[test]
fn with_all_near_nothing_is_slower() {
    let trace = arrivals(5.0, 60.0);
    let (near, _) = simulated(&trace, 3900, Some(fixed(1000)));
    assert_eq!((near.slower_runs.over_1_percent, near.memory_bytes.far), (0, 0));
    let (little, _) = simulated(&trace, 3900, Some(fixed(300)));
    assert_eq!(little.slower_runs.over_20_percent, little.completed);
    assert!(little.instances.mean > 1.5 * near.instances.mean, "slower calls need more instances");
}

/// §3.3 of the paper: a share that saves memory of one instance can take more in all.
#[test]
fn dynamic_falls_into_the_pitfall_at_high_load_and_adaptive_does_not() {
    let dynamic = Share::Dynamic(Dynamic { tolerance_permille: 200 });
    let adaptive = Share::Adaptive(Adaptive { tolerance_permille: 200, ..Adaptive::default() });
    let high = arrivals(40.0, 300.0);
    let [all, by_profile, learned] =
        [fixed(1000), dynamic, adaptive].map(|share| near(&high, share));
    assert!(by_profile * 100 > all * 107, "dynamic {by_profile}, all near {all}");
    assert!(learned * 100 < all * 102, "adaptive {learned}, all near {all}");
    // One instance is enough: then a smaller one is better.
    let low = arrivals(0.04, 3_000.0);
    let [all, by_profile] = [fixed(1000), dynamic].map(|share| near(&low, share));
    assert!(by_profile * 100 < all * 98, "dynamic {by_profile}, all near {all}");
}

/// Of a function that hardly notices far memory, adaptive saves without a profile's help.
#[test]
fn adaptive_learns_shares_as_instances_start() {
    // Bursts of eight calls, between which all instances end.
    let calls: Vec<(u32, u64, u64)> =
        (0..1200).map(|call| (0, call / 8 * 12_000_000, RUN_US)).collect();
    let trace = trace(1, &calls);
    let adaptive = Share::Adaptive(Adaptive { tolerance_permille: 50, ..Adaptive::default() });
    let [all, learned] = [fixed(1000), adaptive].map(|share| simulated(&trace, 40, Some(share)).0);
    let near = |report: &Report| report.memory_bytes.near.mean;
    assert!(near(&learned) * 10 < near(&all) * 7, "{} of {}", near(&learned), near(&all));
    assert_eq!(learned.slower_runs.over_5_percent, 0);
}

#[test]
fn decisions_about_shares_are_in_the_journal_and_replayed() {
    let trace = arrivals(5.0, 60.0);
    let lines = |journal: &[u8]| {
        let text = std::str::from_utf8(journal).unwrap();
        text.lines().filter(|line| line.contains(r#""question":"share""#)).count()
    };
    let (_, without) = simulated(&trace, 40, None);
    assert_eq!(lines(&without), 0);
    assert!(
        !std::str::from_utf8(&without).unwrap().contains("share"),
        "journals stay as they were"
    );
    let (report, journal) = simulated(&trace, 40, Some(Share::Adaptive(Adaptive::default())));
    // And those that changed a share.
    assert!(lines(&journal) as u64 > report.starts.cold + report.starts.clone);
    let replayed = replay(&*journal, None).unwrap();
    assert!(replayed.differences.is_empty(), "{:#?}", replayed.differences);
}

#[test]
fn shares_without_what_they_need_are_refused() {
    let trace = arrivals(1.0, 10.0);
    let error = |result: Result<Ended, farfork_sim::SimError>| result.unwrap_err().to_string();
    let none = Settings { pool_bandwidth: Some(0), ..with(None) };
    let words = error(fast::run(&trace, &Profiles::new(), &none, FINEST_US, None));
    assert!(words.contains("bandwidth of 0") && words.contains("at least one byte"), "{words}");
    let settings = with(Some(fixed(800)));
    let without = fast::run(&trace, &Profiles::new(), &settings, FINEST_US, None);
    let words = error(without);
    assert!(words.contains("function function-0") && words.contains("no profile"), "{words}");
    let words = error(run(&trace, &profile(40, &trace), &settings));
    assert!(words.contains("--oracle") && words.contains("share"), "{words}");
    let far = json!({"function": "function-0", "cells": [
        {"payload_bytes": 0, "local_permille": 0, "latency_us": {"p50": 2}, "near_bytes": 1, "far_bytes": 9},
        {"payload_bytes": 0, "local_permille": 1000, "latency_us": {"p50": 1}, "near_bytes": 10}]});
    let far = read_text(&far.to_string(), &trace);
    assert!(fast::run(&trace, &far, &settings, FINEST_US, None).is_ok());
    let words = error(fast::run(&trace, &far, &with(None), FINEST_US, None));
    assert!(words.contains("far memory") && words.contains("'share'"), "{words}");
}
