//! The fast simulator against the platform itself: the same starts, on the same times, with the same memory.

use farfork_policy::checkpoint::{AfterCalls, WhenSettled};
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{self, Checkpoint, Freeze, KeepAlive};
use farfork_policy::tiering;
use farfork_sim::fast::{self, PLATFORM_US};
use farfork_sim::profile::Profiles;
use farfork_sim::trace::Trace;
use farfork_sim::{Ended, JournalFile, Record, Settings, run_journalled};
use farfork_types::Tiering;
use proptest::prelude::*;
use serde_json::Value;

use crate::trace;

/// Calls in the order of the trace.
fn by_request(ended: &Ended) -> Vec<Record> {
    let mut records = ended.records.clone();
    records.sort_by_key(|record| record.request);
    records
}

/// Cuts off what follows the name of the function in the names of images.
fn cut(value: &mut Value) {
    match value {
        Value::String(name) => {
            if let Some((function, _)) = name.clone().split_once(':') {
                function.clone_into(name);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(cut),
        Value::Object(all) => all.values_mut().for_each(cut),
        _ => {}
    }
}

/// The decisions of a journal, without what only the platform's own nodes count.
fn decisions(journal: &[u8]) -> Vec<Value> {
    let lines = journal.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut all: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    all.iter_mut().filter(|one| one["question"] == "reclaim").for_each(cut);
    for node in all.iter_mut().filter_map(|one| one["facts"]["nodes"].as_array_mut()).flatten() {
        node["need_bytes"] = Value::Null;
    }
    all
}

/// What both say of a trace must be the same: each decision with its facts, each call's start and latency, and
/// memory at each moment.
fn compare(trace: &Trace, settings: &Settings) -> Result<(), TestCaseError> {
    let mut journal = Vec::new();
    let fast =
        fast::run(trace, &Profiles::new(), settings, PLATFORM_US, Some(&mut journal)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let file = JournalFile::open(&path).unwrap();
    let oracle = run_journalled(trace, &Profiles::new(), settings, Some(file)).unwrap();
    let (own, theirs) = (decisions(&journal), decisions(&std::fs::read(path).unwrap()));
    if let Some(at) = own.iter().zip(&theirs).position(|(fast, oracle)| fast != oracle) {
        let line = |one: &Value| {
            let part = |key: &str| one[key].to_string();
            let [at_ms, about, question, choice] =
                ["at_ms", "about", "question", "choice"].map(part);
            format!("  {at_ms} {about} {question} {choice}\n")
        };
        let shown = |all: &[Value]| -> String {
            all[at.saturating_sub(12)..].iter().take(16).map(line).collect()
        };
        let words = format!(
            "decision {at}\nfast\n{}oracle\n{}{}\n{}",
            shown(&own),
            shown(&theirs),
            own[at],
            theirs[at]
        );
        return Err(TestCaseError::fail(words));
    }
    prop_assert_eq!(own.len(), theirs.len());
    for (fast, oracle) in by_request(&fast).iter().zip(&by_request(&oracle)) {
        prop_assert_eq!(fast, oracle);
    }
    for (fast, oracle) in fast.series.steps.iter().zip(&oracle.series.steps) {
        prop_assert_eq!(fast, oracle);
    }
    prop_assert_eq!(fast.records.len(), oracle.records.len());
    prop_assert_eq!(fast.series.steps.len(), oracle.series.steps.len());
    prop_assert_eq!(fast.end_us, oracle.end_us);
    Ok(())
}

/// Policies of which each decides something otherwise than the default does.
fn policies() -> impl Strategy<Value = farfork_policy::Settings> {
    let defaults = farfork_policy::Settings::default();
    let always = tiering::Always { tiering: Tiering::Hybrid };
    let short = ByPressure { long_ms: 5_000, short_ms: 500, ..ByPressure::default() };
    prop_oneof![
        Just(defaults),
        Just(farfork_policy::Settings {
            keep_alive: KeepAlive::ByPressure(short),
            freeze: Freeze { after_ms: 700 },
            ..defaults
        }),
        Just(farfork_policy::Settings {
            checkpoint: Checkpoint::WhenSettled(WhenSettled::default()),
            tiering: settings::Tiering::Always(always),
            ..defaults
        }),
        Just(farfork_policy::Settings {
            checkpoint: Checkpoint::AfterCalls(AfterCalls { calls: 2 }),
            ..defaults
        }),
    ]
}

/// How many random traces: more in the long run.
fn cases() -> u32 {
    if std::env::var_os("FARFORK_TEST_LONG").is_some() { 600 } else { 24 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_fast_simulator_does_what_the_platform_does(
        calls in proptest::collection::vec((0u32..6, 0u64..20_000_000, 1u64..3_000_000), 1..250),
        node_mb in 300u64..3000,
        pool_mb in 1u64..400,
        memory_mb in 20u64..260,
        nodes in 1u32..4,
        policies in policies(),
    ) {
        let mut trace = trace(6, &calls);
        for function in &mut trace.functions {
            function.memory_bytes = Some(memory_mb << 20);
        }
        let (node_bytes, pool_bytes) = (node_mb << 20, pool_mb << 20);
        let settings = Settings { nodes, node_bytes, pool_bytes, policies };
        compare(&trace, &settings)?;
    }
}
