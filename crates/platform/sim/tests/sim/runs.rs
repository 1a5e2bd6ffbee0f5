//! What runs show.

use std::path::PathBuf;

use farfork_platform::api::StartKind;
use farfork_policy::journal::replay;
use farfork_sim::fast::{self, FINEST_US};
use farfork_sim::profile::{CLONE_US, COLD_BYTES, COLD_US, Profiles, read as profiles};
use farfork_sim::report::Report;
use farfork_sim::trace::{self, Trace};
use farfork_sim::{Ended, JournalFile, Settings, page, run, run_journalled};

use crate::{data, settings, trace};

/// What the fast simulator shows, and the platform.
fn both(trace: &Trace) -> [Ended; 2] {
    let fast = fast::run(trace, &Profiles::new(), &settings(), FINEST_US, None).unwrap();
    [fast, run(trace, &Profiles::new(), &settings()).unwrap()]
}

/// What both show.
fn ran(trace: &Trace) -> Ended {
    let [fast, oracle] = both(trace);
    let by_request = |ended: &Ended| {
        let mut records = ended.records.clone();
        records.sort_by_key(|record| record.request);
        records
    };
    assert_eq!(by_request(&fast), by_request(&oracle));
    fast
}

/// Start and latency of each call.
fn latencies(ended: &Ended) -> Vec<(Option<StartKind>, u64)> {
    ended.records.iter().map(|record| (record.start, record.latency_us)).collect()
}

#[test]
fn a_cold_call_takes_its_start_and_the_next_one_only_its_run() {
    let ended = ran(&trace(1, &[(0, 0, 10_300), (0, 1_000_000, 10_300), (0, 2_000_000, 700)]));
    let expected = [
        (Some(StartKind::Cold), COLD_US + 10_300),
        (Some(StartKind::Warm), 10_300),
        (Some(StartKind::Warm), 700),
    ];
    assert_eq!(latencies(&ended), expected);
    assert_eq!(ended.series.max(|totals| totals.near_bytes), COLD_BYTES);
    assert_eq!(ended.series.max(|totals| totals.instances), 1);
}

#[test]
fn after_sixteen_calls_a_burst_gets_clones_that_share_memory() {
    let mut calls: Vec<(u32, u64, u64)> =
        (0..16).map(|call| (0, call * 1_000_000, 5_000)).collect();
    calls.extend([(0, 20_000_000, 50_000); 10]);
    let ended = ran(&trace(1, &calls));
    let clones: Vec<u64> = ended
        .records
        .iter()
        .filter(|record| record.start == Some(StartKind::Clone))
        .map(|record| record.latency_us)
        .collect();
    assert_eq!(clones, [CLONE_US + 50_000; 9]);
    let near = ended.series.max(|totals| totals.near_bytes);
    assert!(near < 3 * COLD_BYTES, "{near}");
    assert_eq!(ended.series.max(|totals| totals.pool_bytes), COLD_BYTES, "one image");
}

#[test]
fn equal_seeds_give_equal_reports() {
    let files: [PathBuf; 2] = [data("azure2019_invocations.csv"), data("azure2019_durations.csv")];
    let report = |seed| {
        let mut trace = trace::read(&files, None, seed).unwrap();
        // The last call comes at the end of the day, which would take long to simulate.
        trace.requests.pop();
        let ended = ran(&trace);
        let report = Report::new(&trace, &ended, seed);
        let whole = Report { wall_s: 0.0, requests_per_s: 0.0, ..report };
        (serde_json::to_string(&whole).unwrap(), ended.records, ended.series.steps)
    };
    assert_eq!(report(1), report(1));
    assert_ne!(report(1).1, report(2).1);
}

/// Many functions whose calls come at the same moments, on nodes that are too small for all.
#[test]
fn a_crowded_run_is_the_same_each_time() {
    let calls: Vec<(u32, u64, u64)> = (0..600)
        .map(|call| (call as u32 % 30, call / 60 * 500_000, 20_000 + call * 997 % 300_000))
        .collect();
    let trace = trace(30, &calls);
    let small = Settings { node_bytes: 1 << 30, pool_bytes: 256 << 20, ..settings() };
    let directory = tempfile::tempdir().unwrap();
    let once = |name: &str| {
        let path = directory.path().join(name);
        let journal = JournalFile::open(&path).unwrap();
        let ended = run_journalled(&trace, &Profiles::new(), &small, Some(journal)).unwrap();
        (ended, std::fs::read(path).unwrap())
    };
    let ((first, decisions), (second, again)) = (once("first"), once("second"));
    assert_eq!(first.records, second.records);
    let replayed = replay(&*decisions, None).unwrap();
    assert!(replayed.decisions > 600 && replayed.differences.is_empty(), "{}", replayed.decisions);
    assert!(decisions == again, "equal runs make equal decisions for equal facts, in one order");
    assert_eq!((first.series.steps, first.end_us), (second.series.steps, second.end_us));
}

/// By Little's law, with ample memory: rate times duration.
#[test]
fn mean_concurrency_is_rate_times_duration() {
    let mut random = 7u64;
    let mut unit = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    let (rate, mean_us) = (40.0, 500_000.0);
    let mut calls = Vec::new();
    let mut at_s = 0.0;
    while at_s < 120.0 {
        at_s += -(1.0 - unit()).ln() / rate;
        calls.push((0, (at_s * 1e6) as u64, (2.0 * unit() * mean_us) as u64));
    }
    let trace = trace(1, &calls);
    let ample = Settings { node_bytes: 1 << 40, ..settings() };
    let ended = run(&trace, &Profiles::new(), &ample).unwrap();
    // The first seconds are cold starts. Calls are counted where they are: between arrival and answer.
    let (from, to) = (20e6, 115e6);
    let inside = |record: &farfork_sim::Record| {
        let (begun, end) =
            (record.arrival_us as f64, (record.arrival_us + record.latency_us) as f64);
        (end.min(to) - begun.max(from)).max(0.0)
    };
    let mean = ended.records.iter().map(inside).sum::<f64>() / (to - from);
    let expected = rate * mean_us / 1e6;
    assert!((mean / expected - 1.0).abs() < 0.1, "{mean}, not {expected}");
    let report = Report::new(&trace, &ended, 1);
    assert_eq!((report.failed, report.completed), (0, calls.len() as u64));
    let instances = report.instances.max as f64;
    assert!(instances >= expected && instances < 3.0 * expected, "{instances}");
}

#[test]
fn calls_beyond_the_platforms_limit_fail() {
    // A run of six minutes is aborted, and of 1,001 concurrent calls of an owner one is refused.
    let long = trace(1, &[(0, 0, 360_000_000)]);
    let [fast, oracle] = both(&long);
    assert_eq!((fast.records[0].start, oracle.records[0].start), (None, None));
    assert_eq!(fast.records[0].latency_us, COLD_US + 300_000_000);
    for many in both(&trace(1, &[(0, 0, 1_000_000); 1001])) {
        assert_eq!(many.records.iter().filter(|record| record.start.is_none()).count(), 1);
    }
}

#[test]
fn a_budget_below_one_instance_is_refused() {
    let small = Settings { node_bytes: 256 << 20, ..settings() };
    let error = run(&trace(1, &[(0, 0, 1)]), &Profiles::new(), &small).unwrap_err().to_string();
    assert!(
        error.contains("below one instance") && error.contains("--node-memory 282563638"),
        "{error}"
    );
    let enough = Settings { node_bytes: 282_563_638, ..settings() };
    assert_eq!(
        latencies(&run(&trace(1, &[(0, 0, 1)]), &Profiles::new(), &enough).unwrap()).len(),
        1
    );
}

#[test]
fn profiles_give_durations_and_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("profile.json");
    let profile = r#"{"function": "function-0", "machine": "m", "modelled": false, "version": "0",
        "cells": [{"payload_bytes": 0, "local_permille": 1000, "phase_us": {"cold": 200000},
                   "latency_us": {"p50": 30000, "p99": 40000, "n": 9}, "near_bytes": 104857600,
                   "pool_bytes": 0, "far_bytes": 0}]}"#;
    std::fs::write(&path, profile).unwrap();
    let mut trace = trace(1, &[(0, 0, 1), (0, 1_000_000, 1)]);
    trace.requests[1].duration_us = None;
    let read = |trace: &Trace| profiles(std::slice::from_ref(&path), trace);
    let ended = run(&trace, &read(&trace).unwrap(), &settings()).unwrap();
    let expected = [(Some(StartKind::Cold), 200_001), (Some(StartKind::Warm), 30_000)];
    assert_eq!(latencies(&ended), expected);
    assert_eq!(ended.series.max(|totals| totals.near_bytes), 104_857_600);
    let error = run(&trace, &Profiles::new(), &settings()).unwrap_err().to_string();
    assert!(error.contains("function-0") && error.contains("no profile"), "{error}");
    trace.functions[0].name = "other".to_owned();
    let error = read(&trace).unwrap_err().to_string();
    assert!(error.contains("function 'function-0' is not in the trace"), "{error}");
    std::fs::write(&path, "{}").unwrap();
    assert!(read(&trace).unwrap_err().to_string().contains("it is not a profile"));
}

#[test]
fn the_page_needs_no_network_and_says_that_it_is_modelled() {
    let trace = trace::read(&[data("own.csv")], None, 5).unwrap();
    let ended = ran(&trace);
    let report = Report::new(&trace, &ended, 5);
    let page = page(&trace, &ended, &settings(), &report);
    for words in ["Modelled.", &report.trace_sha256, "<tr><th>seed</th><td>5</td>", report.version]
    {
        assert!(page.contains(words), "{words}");
    }
    assert_eq!(page.matches("<svg ").count(), 4);
    for foreign in ["http", "src=", "<script", "url(", "@import", "NaN", "inf"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}
