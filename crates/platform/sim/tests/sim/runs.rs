//! What runs show.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ::csv::ReaderBuilder;
use farfork_platform::api::StartKind;
use farfork_platform::simulated::agents::MAKE_US;
use farfork_policy::journal::replay;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::KeepAlive;
use farfork_sim::fast::{self, FINEST_US};
use farfork_sim::many::{Job, run_all};
use farfork_sim::profile::{
    Behaviour, CLONE_BYTES, CLONE_US, COLD_BYTES, COLD_US, GHOST_US, Profiles, read as profiles,
};
use farfork_sim::report::Report;
use farfork_sim::summary::Summary;
use farfork_sim::trace::{self, Stream, Trace};
use farfork_sim::{Ended, JournalFile, Outcome, Settings, Shown, csv, page, run, run_journalled};

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

/// A container is made for a start that finds no ghost; others wait, and with enough starts also with the image.
#[test]
fn starts_take_ghosts_and_others_are_made() {
    // Sixteen calls until there is an image, then bursts of two, between which the second instance ends.
    let calls: Vec<(u32, u64, u64)> = (0..16)
        .map(|call| (0, call * 1_000_000, 5_000))
        .chain((0..400).map(|call| (0, 20_000_000 + call / 2 * 4_000_000, 50_000)))
        .collect();
    let mut trace = trace(1, &calls);
    let keep_alive = ByPressure { long_ms: 3_000, short_ms: 3_000, ..ByPressure::default() };
    let policies = farfork_policy::Settings {
        keep_alive: KeepAlive::ByPressure(keep_alive),
        ..farfork_policy::Settings::default()
    };
    let with = |trace: &Trace, settings: &Settings| {
        let fast = fast::run(trace, &Profiles::new(), settings, FINEST_US, None).unwrap();
        let oracle = run(trace, &Profiles::new(), settings).unwrap();
        assert_eq!(fast.records.len(), oracle.records.len());
        let longest = |ended: &Ended, start| {
            let of_kind = ended.records.iter().filter(|record| record.start == Some(start));
            of_kind.map(|record| record.latency_us - record.duration_us).max()
        };
        let kinds = [StartKind::Cold, StartKind::Clone, StartKind::Ghost];
        assert_eq!(
            kinds.map(|kind| longest(&fast, kind)),
            kinds.map(|kind| longest(&oracle, kind))
        );
        (kinds.map(|kind| longest(&fast, kind)), fast.series.max(|totals| totals.near_bytes))
    };
    let ghosts = Settings { policies, ghosts: true, nodes: 1, ..settings() };
    let without = Settings { ghosts: false, ..ghosts };
    // The first call comes before any ghost has been made.
    let (longest, near) = with(&trace, &ghosts);
    assert_eq!(longest, [Some(COLD_US + MAKE_US), Some(CLONE_US), Some(GHOST_US)]);
    let (longest, less) = with(&trace, &without);
    assert_eq!(longest, [Some(COLD_US), Some(CLONE_US), None]);
    assert!(near > less && near < less + (8 << 20), "ghosts take memory: {near}, {less}");
    // Later, a ghost waits for the first start.
    trace.requests.iter_mut().for_each(|request| request.arrival_us += 1_000_000);
    assert_eq!(with(&trace, &ghosts).0[0], Some(COLD_US));
}

/// Clones of a function that comes near its objective get the pages of the pool that they read.
#[test]
fn clones_of_functions_near_their_objective_are_promoted() {
    // Sixteen calls until there is an image; then two at once.
    let calls: Vec<(u32, u64, u64)> = (0..16)
        .map(|call| (0, call * 400_000, 100_000))
        .chain((0..400).map(|call| (0, 8_000_000 + call / 2 * 400_000, 100_000)))
        .collect();
    let trace = trace(1, &calls);
    let near = |p99_ms: u64| {
        let behaviour = Behaviour { slo_ms: (None, Some(p99_ms)), ..Behaviour::typical(None) };
        let profiles = Profiles::from([(trace.functions[0].name.clone(), behaviour)]);
        let fast = fast::run(&trace, &profiles, &settings(), FINEST_US, None).unwrap();
        let oracle = run(&trace, &profiles, &settings()).unwrap();
        let held = |ended: &Ended| ended.series.steps.last().map(|step| step.totals.near_bytes);
        assert_eq!(held(&fast), held(&oracle));
        held(&fast).unwrap()
    };
    // Two instances; one that started cold has all of its pages.
    assert_eq!(near(10_000), COLD_BYTES + CLONE_BYTES);
    assert_eq!(near(105), 2 * COLD_BYTES);
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
    let (summary, settings) = (Summary::of(&ran(&trace)), settings());
    let report = Report::of(&trace, &summary, Duration::from_millis(3), 5);
    let run = |name| Shown { name, report: &report, summary: &summary, settings: &settings };
    let notes = ["a <note>".to_owned()];
    let one = page(&[run("one")], &notes);
    for words in ["Modelled.", &report.trace_sha256, "<th>seed</th><td class=\"n\">5</td>"] {
        assert!(one.contains(words), "{words}");
    }
    assert!(one.contains("a &lt;note&gt;") && one.contains(report.version));
    assert_eq!(one.matches("<svg viewBox").count(), 12);
    assert_eq!(one.matches("<polyline").count(), 12);
    let many = page(&[run("<b>"), run("other")], &[]);
    assert_eq!(many.matches("<polyline").count(), 24);
    assert!(many.contains("&lt;b&gt;") && !many.contains("<b>\""));
    for page in [&one, &many] {
        for foreign in ["http", "src=", "<script", "url(", "@import", "NaN", "inf"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}

#[test]
fn tables_hold_each_run_and_each_interval() {
    let trace = trace::read(&[data("own.csv")], None, 5).unwrap();
    let (summary, settings) = (Summary::of(&ran(&trace)), settings());
    let report = Report::of(&trace, &summary, Duration::from_millis(3), 5);
    let shown = Shown { name: "a, \"b\"", report: &report, summary: &summary, settings: &settings };
    let rows = |text: &str| -> Vec<HashMap<String, String>> {
        let mut reader = ReaderBuilder::new().from_reader(text.as_bytes());
        reader.deserialize().map(Result::unwrap).collect()
    };
    let figures = rows(&csv::figures(&[shown, shown]));
    assert_eq!(figures.len(), 2);
    assert_eq!(figures[1]["run"], "a, \"b\"");
    assert_eq!(figures[0]["latency_us.p99"], report.latency_us.p99.to_string());
    assert_eq!((&*figures[0]["requests"], &*figures[0]["seed"]), ("3", "5"));
    let times = rows(&csv::timelines(&[shown]));
    let sum = |name: &str| times.iter().map(|row| row[name].parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(
        (sum("arrivals"), sum("cold"), sum("warm")),
        (3, report.starts.cold, report.starts.warm)
    );
    let most = times.iter().map(|row| row["near_bytes_max"].parse::<u64>().unwrap()).max();
    assert_eq!(most, Some(report.memory_bytes.near.max));
}

/// Streamed and kept runs show the same, and so do runs side by side, in any number of threads.
#[test]
fn streamed_runs_show_what_kept_ones_do() {
    let calls: Vec<(u32, u64, u64)> = (0..2000)
        .map(|call| (call as u32 % 9, call / 8 * 50_000, 20_000 + call * 997 % 300_000))
        .collect();
    let trace = trace(9, &calls);
    let stream = Stream::from(&trace);
    let profiles = Profiles::new();
    let sizes = [600 << 20, 1 << 30, 4 << 30];
    let jobs = sizes.map(|node_bytes| Job {
        stream: &stream,
        profiles: &profiles,
        settings: Settings { node_bytes, ..settings() },
    });
    let figures = |outcome: &Outcome| {
        let report = Report::of(&trace, &outcome.summary, Duration::ZERO, 1);
        (serde_json::to_string(&report).unwrap(), outcome.summary.timeline.intervals.clone())
    };
    let done = AtomicU64::new(0);
    let by_threads = [1, 2, 5].map(|threads| {
        let all = run_all(&jobs, threads, &done).into_iter();
        all.map(|outcome| figures(&outcome.unwrap())).collect::<Vec<_>>()
    });
    assert!(by_threads[0] == by_threads[1] && by_threads[0] == by_threads[2]);
    assert_ne!(by_threads[0][0], by_threads[0][2], "budgets matter");
    for (job, figures) in jobs.iter().zip(&by_threads[0]) {
        let kept = fast::run(&trace, &profiles, &job.settings, FINEST_US, None).unwrap();
        let report = Report::of(&trace, &Summary::of(&kept), Duration::ZERO, 1);
        assert_eq!(serde_json::to_string(&report).unwrap(), figures.0);
        let median = kept.series.median(kept.end_us, |totals| totals.near_bytes);
        assert_eq!(report.memory_bytes.near.p50, median);
        let mean = kept.series.mean(kept.end_us, |totals| totals.near_bytes) as u64;
        assert_eq!(report.memory_bytes.near.mean, mean);
    }
}
