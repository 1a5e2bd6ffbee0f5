//! Starts of instances on processors that are shared.

use farfork_sim::fast::{self, FINEST_US};
use farfork_sim::profile::{BASE_US, Behaviour, Profiles};
use farfork_sim::trace::Trace;
use farfork_sim::{Settings, run};

use crate::{settings, trace};

/// A profile of functions whose cold start takes a time, for a part of which it needs a processor.
fn starting(trace: &Trace, load_us: u64, busy_us: u64) -> Profiles {
    let one =
        Behaviour { cold_us: BASE_US + load_us, cold_busy_us: busy_us, ..Behaviour::typical(None) };
    trace.functions.iter().map(|function| (function.name.clone(), one.clone())).collect()
}

/// What calls took, in milliseconds, rounded: by the fast simulator, but the platform's own code says the same.
fn took_ms(trace: &Trace, profiles: &Profiles, processors: Option<u32>) -> Vec<u64> {
    let settings = Settings { nodes: 1, processors, ..settings() };
    let fast = fast::run(trace, profiles, &settings, FINEST_US, None).unwrap();
    let oracle = run(trace, profiles, &settings).unwrap();
    let [fast, oracle] = [fast, oracle].map(|mut ended| {
        ended.records.sort_by_key(|record| record.request);
        ended.records
    });
    for (fast, oracle) in fast.iter().zip(&oracle) {
        assert_eq!(fast.start, oracle.start);
        // What the oracle does ends at whole milliseconds: a clone of the base image, loads, and runs.
        let apart_us = fast.latency_us.abs_diff(oracle.latency_us);
        assert!(apart_us <= 4_000, "{fast:?} {oracle:?}");
    }
    fast.into_iter().map(|record| (record.latency_us + 500) / 1000).collect()
}

/// Instances that start at once share the processors of their node, for the part of a start that needs one.
#[test]
fn starts_share_processors() {
    let trace = trace(6, &[0, 1, 2, 3, 4, 5].map(|function| (function, 0, 1)));
    let longest_ms = |processors, busy_us| {
        let profiles = starting(&trace, 100_000, busy_us);
        took_ms(&trace, &profiles, processors).into_iter().max().unwrap()
    };
    assert_eq!(longest_ms(None, 100_000), 101);
    assert_eq!(longest_ms(Some(6), 100_000), 101);
    assert_eq!(longest_ms(Some(2), 0), 101, "as profiles without processor time have it");
    assert_eq!(longest_ms(Some(2), 100_000), 301, "three at each processor");
    assert_eq!(longest_ms(Some(2), 50_000), 201, "half of it is something else");
    assert_eq!(longest_ms(Some(2), 200_000), 301, "a start has one processor at most");
}

/// A start slows calls down while it needs a processor, and not afterwards.
#[test]
fn a_start_gives_its_processor_back() {
    // The second one begins when the first one has started, and runs.
    let trace = trace(2, &[(0, 0, 400_000), (1, 100_784, 1)]);
    let profiles = starting(&trace, 100_000, 50_000);
    // Both at half speed for 100 ms: the start has its 50 ms then, and the call misses as much.
    assert_eq!(took_ms(&trace, &profiles, Some(1)), [551, 151]);
}

/// The same of a clone.
#[test]
fn a_clone_gives_its_processor_back() {
    // An image is made of the first ones. Of the last two, one finds the instance busy.
    let mut calls: Vec<_> = (0..16).map(|number| (0, number * 1_000_000, 400_000)).collect();
    calls.extend([(0, 30_000_000, 400_000), (0, 30_000_001, 400_000)]);
    let trace = trace(1, &calls);
    let mut profiles = starting(&trace, 100_000, 0);
    for one in profiles.values_mut() {
        (one.clone_us, one.clone_busy_us) = (100_000, 50_000);
    }
    assert_eq!(took_ms(&trace, &profiles, None)[16..], [400, 500]);
    // Both at half speed for 100 ms, then 50 ms in which the other call is alone. It has 300 ms to go when the clone runs:
    // both at half speed for 600 ms. The clone has 100 ms to go.
    assert_eq!(took_ms(&trace, &profiles, Some(1))[16..], [750, 850]);
}

/// A load of code that others slow down ends at the time limit of a call.
#[test]
fn a_load_on_shared_processors_ends_at_the_time_limit() {
    let trace = trace(2, &[(0, 0, 1), (1, 0, 1)]);
    for (busy_us, fails) in [(75_000_000, false), (125_000_000, true), (175_000_000, true)] {
        let profiles = starting(&trace, 200_000_000, busy_us);
        let settings = Settings { nodes: 1, processors: Some(1), ..settings() };
        let fast = fast::run(&trace, &profiles, &settings, FINEST_US, None).unwrap();
        let oracle = run(&trace, &profiles, &settings).unwrap();
        for ended in [&fast, &oracle] {
            assert!(ended.records.iter().all(|one| one.start.is_none() == fails), "{busy_us}");
        }
    }
}
