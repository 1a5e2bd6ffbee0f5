//! The fast simulator against the platform itself: the same starts, on the same times, with the same memory.

use farfork_policy::checkpoint::{AfterCalls, WhenSettled};
use farfork_policy::ghosts::ByBursts;
use farfork_policy::growth::OneByOne;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{self, Checkpoint, Freeze, Growth, KeepAlive};
use farfork_policy::tiering;
use farfork_sim::fast::{self, PLATFORM_US, StartKind};
use farfork_sim::profile::{Behaviour, Profiles};
use farfork_sim::trace::{Function, Trace};
use farfork_sim::{Ended, JournalFile, Record, Settings, run_journalled};
use farfork_types::Tiering;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
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
            if let Some((function, rest)) = name.clone().split_once(':') {
                // What follows is the node of a stock of ghosts.
                let node = rest.split_once(' ').map_or("", |(_, node)| node);
                *name = format!("{function} {node}");
            }
        }
        Value::Array(all) => all.iter_mut().for_each(cut),
        Value::Object(all) => all.values_mut().for_each(cut),
        _ => {}
    }
}

/// The decisions of a journal, without the versions in names of images.
fn decisions(journal: &[u8]) -> Vec<Value> {
    let lines = journal.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut all: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let names_images =
        |one: &&mut Value| one["question"] == "reclaim" || one["question"] == "attached-ghosts";
    all.iter_mut().filter(names_images).for_each(cut);
    all
}

/// What both say of a trace must be the same: each decision with its facts, each call's start and latency, and
/// memory at each moment.
fn compare(trace: &Trace, profiles: &Profiles, settings: &Settings) -> Result<(), TestCaseError> {
    let mut journal = Vec::new();
    let fast = fast::run(trace, profiles, settings, PLATFORM_US, Some(&mut journal)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let file = JournalFile::open(&path).unwrap();
    let oracle = run_journalled(trace, profiles, settings, Some(file)).unwrap();
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
        Just(farfork_policy::Settings {
            growth: Growth::OneByOne(OneByOne { slack_bytes: 8 << 20 }),
            checkpoint: Checkpoint::AfterCalls(AfterCalls { calls: 4 }),
            ..defaults
        }),
    ]
}

/// Ghosts with images pay already after a few starts, as traces are short; or they are as by default.
fn ghosts() -> impl Strategy<Value = Option<ByBursts>> {
    let cheap = ByBursts { worth_us_per_mib_hour: 100, most: 6, ..ByBursts::default() };
    prop_oneof![Just(None), Just(Some(ByBursts::default())), Just(Some(cheap))]
}

/// An instance that was started without an image, and has answered no call yet, loads its code also after another one was
/// checkpointed.
#[test]
fn an_unused_instance_is_used_after_the_image_is_made() {
    let ms = 1000;
    // The second call goes to the first instance, which is free before the other one has started.
    let calls = [(0, 0), (0, 200 * ms), (0, 1000 * ms), (0, 1001 * ms)];
    let calls: Vec<(u32, u64, u64)> = calls.map(|(one, at_us)| (one, at_us, 100 * ms)).into();
    let trace = trace(1, &calls);
    let checkpoint = Checkpoint::AfterCalls(AfterCalls { calls: 2 });
    // No container is made in advance, so that a start takes a while.
    let ghosts = ByBursts { spare: 0, most: 0, ..ByBursts::default() };
    let policies =
        farfork_policy::Settings { checkpoint, ghosts, ..farfork_policy::Settings::default() };
    let settings = Settings { policies, ghosts: true, ..Settings::default() };
    compare(&trace, &Profiles::default(), &settings).unwrap();
    let fast = fast::run(&trace, &Profiles::default(), &settings, PLATFORM_US, None).unwrap();
    let starts: Vec<_> = by_request(&fast).iter().map(|one| one.start).collect();
    let (cold, warm) = (Some(StartKind::Cold), Some(StartKind::Warm));
    assert_eq!(
        starts,
        [cold, warm, warm, cold],
        "the last instance was started for the second call"
    );
}

/// A cold start's memory is known when its server has received its call: a function that is called at the moment at which its
/// instance has started asks for a second one before that.
#[test]
fn a_cold_start_is_weighed_after_its_function_has_acted() {
    let ms = 1000;
    let trace = trace(1, &[(0, 0, 500 * ms), (0, ms, 500 * ms)]);
    let growth = Growth::OneByOne(OneByOne::default());
    let policies = farfork_policy::Settings { growth, ..farfork_policy::Settings::default() };
    // It has room for a second one as soon as the first one is weighed.
    let settings = Settings { nodes: 1, node_bytes: 400 << 20, policies, ..Settings::default() };
    compare(&trace, &Profiles::default(), &settings).unwrap();
    let mut journal = Vec::new();
    fast::run(&trace, &Profiles::default(), &settings, PLATFORM_US, Some(&mut journal)).unwrap();
    let placed: Vec<(Value, Value)> = decisions(&journal)
        .into_iter()
        .filter(|one| one["question"] == "placement")
        .map(|one| (one["at_ms"].clone(), one["choice"].clone()))
        .collect();
    assert_eq!(placed[..2], [(0.into(), "node1".into()), (1.into(), Value::Null)], "{placed:?}");
}

/// How many random traces: more in the long run.
fn cases() -> u32 {
    if std::env::var_os("FARFORK_TEST_LONG").is_some() { 600 } else { 24 }
}

/// Nodes, and what decides on them.
#[derive(Clone, Debug)]
struct Scene {
    settings: Settings,
    /// Memory of an instance.
    memory_mb: u64,
    /// Objectives of the functions, in milliseconds. Some come near them, so that their clones are promoted.
    objectives: Vec<Option<u64>>,
    /// How much of a start needs a processor, in thousandths, by function.
    busy: Vec<u64>,
}

impl Scene {
    fn compare(self, calls: &[(u32, u64, u64)]) -> Result<(), TestCaseError> {
        let mut trace = trace(6, calls);
        for function in &mut trace.functions {
            function.memory_bytes = Some(self.memory_mb << 20);
        }
        let behaviour = |((function, p99_ms), permille): ((&Function, Option<u64>), u64)| {
            let typical = Behaviour::typical(function.memory_bytes);
            let behaviour = Behaviour {
                slo_ms: (None, p99_ms),
                cold_busy_us: typical.cold_us * permille / 1000,
                clone_busy_us: typical.clone_us * permille / 1000,
                ghost_busy_us: typical.ghost_us * permille / 1000,
                ..typical
            };
            (function.name.clone(), behaviour)
        };
        let functions = trace.functions.iter().zip(self.objectives).zip(self.busy);
        let profiles = functions.map(behaviour).collect();
        compare(&trace, &profiles, &self.settings)
    }
}

fn scene() -> impl Strategy<Value = Scene> {
    let sizes = (300u64..3000, 1u64..400, 20u64..260, 1u32..4);
    let objectives = proptest::collection::vec(proptest::option::of(100u64..4_000), 6);
    let busy = proptest::collection::vec(prop_oneof![Just(0), Just(1000), 0u64..1200], 6);
    let processors = prop_oneof![Just(None), (1u32..6).prop_map(Some)];
    let scene = |(
        (node_mb, pool_mb, memory_mb, nodes),
        policies,
        ghosts,
        objectives,
        (processors, busy),
    )| {
        let ghosts: Option<ByBursts> = ghosts;
        let policies = farfork_policy::Settings { ghosts: ghosts.unwrap_or_default(), ..policies };
        let (node_bytes, pool_bytes, ghosts) = (node_mb << 20, pool_mb << 20, ghosts.is_some());
        let settings = Settings {
            nodes,
            node_bytes,
            pool_bytes,
            policies,
            ghosts,
            processors,
            ..Settings::default()
        };
        Scene { settings, memory_mb, objectives, busy }
    };
    (sizes, policies(), ghosts(), objectives, (processors, busy)).prop_map(scene)
}

/// The traces of short runs are always the same, those of long ones new ones.
fn config(cases: u32) -> ProptestConfig {
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    let rng_seed = if is_long { RngSeed::Random } else { RngSeed::Fixed(1) };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(cases()))]

    #[test]
    fn the_fast_simulator_does_what_the_platform_does(
        calls in proptest::collection::vec((0u32..6, 0u64..20_000_000, 1u64..3_000_000), 1..250),
        scene in scene(),
    ) {
        // With one, runs could reach their time limit, which ends them in another order.
        let processors = scene.settings.processors.map(|count| count.max(2));
        let settings = Settings { processors, ..scene.settings };
        Scene { settings, ..scene }.compare(&calls)?;
    }
}

proptest! {
    #![proptest_config(config(cases() / 2))]

    /// Within some hundred milliseconds, so that much happens at the same moments: there the order of the platform's
    /// tasks decides. Small functions are promoted as quickly as they start.
    #[test]
    fn the_same_where_much_happens_at_once(
        calls in proptest::collection::vec((0u32..6, 0u64..400, 0u64..60), 1..250),
        memory_mb in 2u64..40,
        scene in scene(),
    ) {
        let scene = Scene { memory_mb, ..scene };
        let ms = |(function, at_ms, run_ms): &(u32, u64, u64)| (*function, at_ms * 1000, run_ms * 1000 + 1);
        scene.compare(&calls.iter().map(ms).collect::<Vec<_>>())?;
    }
}
