//! The policy of the paper of shares (§4.1), and what its figures show, in kind.

use std::time::Duration;

use farfork_policy::settings::Share;
use farfork_policy::share::{Dynamic, Fixed};
use farfork_sim::fast::{self, FINEST_US, StartKind};
use farfork_sim::profile::Profiles;
use farfork_sim::report::Report;
use farfork_sim::summary::Summary;
use farfork_sim::trace::{Request, Trace};
use farfork_sim::{Ended, Scheduling, Settings, Shown, page, run};
use farfork_types::LocalShare;
use serde_json::json;

use crate::shares::{arrivals, read_text};
use crate::{settings, trace};

const S: u64 = 1_000_000;
const RUN_US: u64 = 400_000;
const START_US: u64 = 250_000;
const MIB: u64 = 1 << 20;

/// Small payloads are little slower with far memory, large ones much.
fn profile(trace: &Trace) -> Profiles {
    let cell = |payload: u64, slow_permille: u64, permille: u64| {
        let p50 = RUN_US + RUN_US * slow_permille * (1000 - permille) / 1_000_000;
        let near = (10 + 90 * permille / 1000) * MIB * (1 + payload / 100);
        json!({"payload_bytes": payload, "local_permille": permille, "phase_us": {"cold": START_US},
               "latency_us": {"p50": p50, "p99": p50, "n": 30}, "near_bytes": near,
               "far_bytes": 100 * MIB * (1 + payload / 100) - near})
    };
    let cells: Vec<_> =
        (0..=10).flat_map(|step| [cell(0, 100, step * 100), cell(100, 3900, step * 100)]).collect();
    read_text(&json!({"function": "function-0", "cells": cells}).to_string(), trace)
}

fn with(share: Option<Share>) -> Settings {
    let policies = farfork_policy::Settings { share, ..farfork_policy::Settings::default() };
    // Limits count for nothing.
    let (node_bytes, pool_bytes) = (1, 0);
    Settings { node_bytes, pool_bytes, policies, scheduling: Scheduling::Paper, ..settings() }
}

fn fixed(permille: u16) -> Share {
    Share::Fixed(Fixed { local_permille: LocalShare::from_permille(permille).unwrap() })
}

fn dynamic(tolerance_permille: u64) -> Share {
    Share::Dynamic(Dynamic { tolerance_permille })
}

fn simulated(trace: &Trace, share: Share) -> Ended {
    let mut ended = fast::run(trace, &profile(trace), &with(Some(share)), FINEST_US, None).unwrap();
    ended.records.sort_by_key(|record| record.request);
    ended
}

fn report(trace: &Trace, share: Share) -> Report {
    Report::of(trace, &Summary::of(&simulated(trace, share)), Duration::ZERO, 1)
}

/// Every other call has the large payload.
fn mixed(rate: f64, seconds: f64) -> Trace {
    let mut trace = arrivals(rate, seconds);
    let payload = |(index, one): (usize, &mut Request)| one.payload_bytes = index as u64 % 2 * 100;
    trace.requests.iter_mut().enumerate().for_each(payload);
    trace
}

#[test]
fn an_instance_starts_for_each_call_that_finds_none_idle_and_ends_after_a_minute() {
    let mut calls = trace(
        1,
        &[
            (0, 0, RUN_US),
            // Both others overlap it.
            (0, 100_000, RUN_US),
            (0, 200_000, RUN_US),
            // The first one has just ended.
            (0, START_US + RUN_US, RUN_US),
            // Two ended after a minute; the third was used last, at this moment a minute ago but one microsecond.
            (0, START_US + 2 * RUN_US + 60 * S - 1, RUN_US),
            // All have ended.
            (0, 200 * S, RUN_US),
        ],
    );
    calls.requests[5].payload_bytes = 100;
    let ended = simulated(&calls, fixed(1000));
    let seen: Vec<(StartKind, u64)> =
        ended.records.iter().map(|record| (record.start.unwrap(), record.latency_us)).collect();
    let (cold, warm) = ((StartKind::Cold, START_US + RUN_US), (StartKind::Warm, RUN_US));
    assert_eq!(seen, [cold, cold, cold, warm, warm, cold]);
    let levels: Vec<(u64, u64, u64)> = ended
        .series
        .steps
        .iter()
        .map(|step| (step.at_us, step.totals.instances, step.totals.near_bytes / MIB))
        .collect();
    let end = |at_us: u64| at_us + START_US + RUN_US + 60 * S;
    assert_eq!(levels[..3], [(0, 1, 100), (100_000, 2, 200), (200_000, 3, 300)]);
    assert_eq!(levels[3..5], [(end(100_000), 2, 200), (end(200_000), 1, 100)]);
    // The footprint is that of the payload.
    assert_eq!(levels.last(), Some(&(200 * S, 1, 200)));
}

/// So that the others end.
#[test]
fn the_instance_that_was_used_last_serves_the_next_call() {
    let later = (1..5).map(|call| (0, call * 40 * S, RUN_US));
    let calls: Vec<(u32, u64, u64)> = [(0, 0, RUN_US); 2].into_iter().chain(later).collect();
    let ended = simulated(&trace(1, &calls), fixed(1000));
    assert_eq!(ended.series.steps.last().unwrap().totals.instances, 1);
}

#[test]
fn instances_serve_calls_of_one_payload() {
    let mut calls = trace(1, &[(0, 0, RUN_US), (0, 10 * S, RUN_US), (0, 20 * S, RUN_US)]);
    calls.requests[1].payload_bytes = 90;
    let starts: Vec<StartKind> =
        simulated(&calls, fixed(500)).records.iter().map(|record| record.start.unwrap()).collect();
    assert_eq!(starts, [StartKind::Cold, StartKind::Cold, StartKind::Warm]);
}

/// Figure 7: dynamic saves memory and stays within its tolerance, and a fixed share does not.
#[test]
fn dynamic_stays_within_its_tolerance_and_saves_more_the_larger_that_is() {
    let trace = mixed(5.0, 600.0);
    let all = report(&trace, fixed(1000));
    assert_eq!(all.slower_runs.over_1_percent, 0);
    let mut before = all.memory_bytes.near.p50;
    for (tolerance, over) in [(10, 0), (50, 1), (100, 2), (200, 3)] {
        let seen = report(&trace, dynamic(tolerance));
        let slower = seen.slower_runs;
        let slower = [
            slower.over_1_percent,
            slower.over_5_percent,
            slower.over_10_percent,
            slower.over_20_percent,
        ];
        assert_eq!(slower[over], 0, "tolerance {tolerance}: {slower:?}");
        let near = seen.memory_bytes.near.p50;
        assert!(near <= before, "tolerance {tolerance}: {near}, before {before}");
        before = near;
    }
    assert!(before * 10 < all.memory_bytes.near.p50 * 9, "{before}");
    let most = report(&trace, fixed(800)).slower_runs;
    let large = trace.requests.iter().filter(|one| one.payload_bytes > 0).count() as u64;
    assert_eq!(most.over_20_percent, large, "large payloads are 78 % slower");
}

/// Figure 5b: smaller shares need more instances, and at some rates more memory in all.
#[test]
fn slower_calls_need_more_instances_and_can_need_more_memory() {
    let mut dearer = 0;
    for rate in [0.1, 0.5, 2.0, 10.0] {
        let mut trace = arrivals(rate, 900.0);
        trace.requests.iter_mut().for_each(|one| one.payload_bytes = 100);
        let [all, less] = [1000, 500].map(|permille| report(&trace, fixed(permille)));
        assert!(less.instances.mean >= all.instances.mean);
        dearer += usize::from(less.memory_bytes.near.mean > all.memory_bytes.near.mean);
        assert!(less.starts.cold >= all.starts.cold);
    }
    assert!((1..4).contains(&dearer), "{dearer}");
}

/// Mean busy instances are rate times duration, and nothing is lost.
#[test]
fn every_call_ends_once_in_the_time_that_it_takes() {
    let trace = mixed(20.0, 300.0);
    let ended = simulated(&trace, fixed(700));
    assert!(ended.records.iter().map(|one| one.request).eq(0..trace.requests.len()));
    for (record, request) in ended.records.iter().zip(&trace.requests) {
        let slow = if request.payload_bytes > 0 { 3900 } else { 100 };
        assert_eq!(record.run_us, RUN_US + RUN_US * slow * 300 / 1_000_000);
        let start_us = if record.start == Some(StartKind::Cold) { START_US } else { 0 };
        assert_eq!(record.latency_us, start_us + record.run_us);
    }
    let last = ended.series.steps.last().unwrap().totals;
    let held = last.near_bytes + last.far_bytes;
    assert!(held.is_multiple_of(100 * MIB) && last.instances * 100 * MIB <= held, "{last:?}");
}

#[test]
fn other_policies_and_the_platforms_code_are_refused() {
    let trace = arrivals(1.0, 5.0);
    let mut other = with(Some(fixed(800)));
    other.policies.freeze.after_ms = 3;
    let profiles = profile(&trace);
    let error = fast::run(&trace, &profiles, &other, FINEST_US, None).unwrap_err().to_string();
    assert!(error.contains("set nothing but 'share'"), "{error}");
    let error = run(&trace, &profiles, &with(None)).unwrap_err().to_string();
    assert!(error.contains("leave out --oracle"), "{error}");
}

#[test]
fn the_page_has_the_papers_figures() {
    let traces = [mixed(1.0, 60.0), mixed(5.0, 60.0)];
    let runs: Vec<(String, Settings, Trace, Ended)> = traces
        .iter()
        .enumerate()
        .flat_map(|(index, trace)| {
            [fixed(800), dynamic(100)].map(|share| {
                let named = Trace { sha256: index.to_string(), ..trace.clone() };
                (format!("{index} {share:?}"), with(Some(share)), named, simulated(trace, share))
            })
        })
        .collect();
    let summaries: Vec<(Summary, Report)> = runs
        .iter()
        .map(|(_, _, trace, ended)| {
            let summary = Summary::of(ended);
            let report = Report::of(trace, &summary, Duration::ZERO, 1);
            (summary, report)
        })
        .collect();
    let shown: Vec<Shown<'_>> = runs
        .iter()
        .zip(&summaries)
        .map(|((name, settings, ..), (summary, report))| Shown { name, report, summary, settings })
        .collect();
    let page = page(&shown, &[]);
    for words in [
        "policy of the paper",
        "by calls per second",
        "slower than with all memory near, by more than a tolerance",
        "fixed 0.8",
        "dynamic 10 %",
        "no limit",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert_eq!(page.matches("<svg viewBox").count(), 15);
    assert!(!page.contains("NaN") && !page.contains("The platform's own"));
}
