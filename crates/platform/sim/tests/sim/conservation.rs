//! Nothing is lost and nothing is made, whatever the trace.

use std::collections::BTreeSet;
use std::io::Write;

use farfork_sim::fast::{self, FINEST_US};
use farfork_sim::profile::Profiles;
use farfork_sim::{Ended, Settings, run};
use proptest::prelude::*;

use crate::{settings, trace};

/// Each request has ended once, and memory was within its budgets.
fn check(
    calls: usize,
    ended: &Ended,
    settings: &Settings,
    instance_bytes: u64,
) -> Result<(), TestCaseError> {
    let requests: BTreeSet<usize> = ended.records.iter().map(|record| record.request).collect();
    prop_assert_eq!((ended.records.len(), requests.len()), (calls, calls));
    for record in &ended.records {
        let end_us = record.arrival_us + record.latency_us;
        prop_assert!(record.start.is_none() || record.latency_us >= record.duration_us);
        // Timers end at whole milliseconds.
        prop_assert!(end_us <= ended.end_us + 1000, "{:?} ends after {}", record, ended.end_us);
    }
    for step in &ended.series.steps {
        let totals = step.totals;
        prop_assert!(totals.near_bytes <= u64::from(settings.nodes) * settings.node_bytes);
        prop_assert!(totals.pool_bytes <= settings.pool_bytes);
        // Beside instances only ghosts hold memory.
        let is_held = settings.ghosts || totals.near_bytes <= totals.instances * instance_bytes;
        prop_assert!(is_held, "{:?}", totals);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_and_memory_stays_within_budgets(
        calls in proptest::collection::vec((0u32..6, 0u64..30_000_000, 0u64..3_000_000), 1..120),
        node_mb in 300u64..3000,
        pool_mb in 1u64..200,
        memory_mb in 20u64..260,
        nodes in 1u32..4,
    ) {
        let mut trace = trace(6, &calls);
        for function in &mut trace.functions {
            function.memory_bytes = Some(memory_mb << 20);
        }
        let settings =
            Settings { nodes, node_bytes: node_mb << 20, pool_bytes: pool_mb << 20, ..settings() };
        let ended = run(&trace, &Profiles::new(), &settings).unwrap();
        check(calls.len(), &ended, &settings, memory_mb << 20)?;
    }

    /// The same of the fast simulator, with more calls and functions.
    #[test]
    fn every_request_of_a_fast_run_ends_once(
        calls in proptest::collection::vec((0u32..40, 0u64..60_000_000, 0u64..5_000_000), 1..1200),
        node_mb in 300u64..9000,
        pool_mb in 1u64..2000,
        memory_mb in 20u64..260,
        nodes in 1u32..12,
        ghosts in any::<bool>(),
    ) {
        let mut trace = trace(40, &calls);
        for function in &mut trace.functions {
            function.memory_bytes = Some(memory_mb << 20);
        }
        let settings =
            Settings { nodes, node_bytes: node_mb << 20, pool_bytes: pool_mb << 20, ghosts, ..settings() };
        let ended = fast::run(&trace, &Profiles::new(), &settings, FINEST_US, None).unwrap();
        check(calls.len(), &ended, &settings, memory_mb << 20)?;
        // With a journal, decisions get all facts, and otherwise only those that can change a choice.
        let mut journal = Vec::new();
        let written =
            fast::run(&trace, &Profiles::new(), &settings, FINEST_US, Some(&mut journal)).unwrap();
        prop_assert_eq!(ended.records, written.records);
        prop_assert_eq!(ended.series.steps, written.series.steps);
    }

    /// Where much happens at one moment, functions that wait get the answers that each would get alone.
    #[test]
    fn a_journal_changes_nothing_where_functions_are_woken_together(
        calls in proptest::collection::vec((0u32..25, 0u64..40, 1u64..4), 100..400),
        node_mb in 300u64..1500,
        nodes in 1u32..4,
    ) {
        let calls: Vec<(u32, u64, u64)> = calls
            .into_iter()
            .map(|(function, arrival, run)| (function, arrival * 100_000, run * 100_000))
            .collect();
        let mut trace = trace(25, &calls);
        for (index, function) in trace.functions.iter_mut().enumerate() {
            function.memory_bytes = Some((60 + 40 * (index as u64 % 3)) << 20);
        }
        let settings = Settings { nodes, node_bytes: node_mb << 20, pool_bytes: 1 << 28, ..settings() };
        let run = |journal: Option<&mut dyn Write>| {
            fast::run(&trace, &Profiles::new(), &settings, 100_000, journal).unwrap()
        };
        let mut journal = Vec::new();
        let (without, with) = (run(None), run(Some(&mut journal)));
        prop_assert_eq!(without.records, with.records);
        prop_assert_eq!(without.series.steps, with.series.steps);
    }
}
