//! Starts by kind, and their duration by phase.
//!
//! ```text
//!  call ─ queue ─► platform ─ container ─ restore ─► init ─► faults ─ run
//!                  └── of a new instance only ──┘    cold    new
//! ```
//! Page faults happen within the first call of an instance, where their time cannot be measured
//! directly: `faults` is how much longer that call took than warm calls of its function.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use farfork_sys::sync::locked;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::recent::StartStats;
use super::{times, word};
use crate::api::{ActivationId, Name, StartKind};
use crate::scheduler::nodes::StartTimes;
use crate::scheduler::snapshot;
use crate::store::StoreError;

/// Least time between lines of the log about lost activations.
const LOST_LINES: Duration = Duration::from_secs(60);

/// Counters of calls and instances of all functions.
#[derive(Debug)]
pub struct Starts {
    /// Calls that wait or run.
    pub calls: Gauge,
    ways: BTreeMap<StartKind, StartStats>,
    phases: Family<PhaseLabels, Histogram, fn() -> Histogram>,
    instances: Family<StartLabels, Counter>,
    checkpoints: Family<ResultLabels, Counter>,
    refusals: Family<NamespaceLabels, Counter>,
    lost: Counter,
    lost_lines: Mutex<Option<Instant>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    start: &'static str,
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartLabels {
    start: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespaceLabels {
    namespace: String,
}

/// The phases of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallPhases {
    /// How it got its instance.
    pub start: StartKind,
    /// From its receipt until it was sent to the instance.
    pub waited: Duration,
    /// The times of the instance's start.
    pub took: StartTimes,
    /// Loading the code, if it was loaded.
    pub init: Option<Duration>,
    /// The call itself, if it was answered.
    pub run: Option<Duration>,
    /// Of this, how much longer it took than warm calls, for a new instance and if known.
    pub faults: Option<Duration>,
}

impl Default for Starts {
    fn default() -> Starts {
        let (calls, instances, checkpoints, refusals) = Default::default();
        let (lost, lost_lines) = Default::default();
        let phases = Family::new_with_constructor(times as fn() -> Histogram);
        let ways = StartKind::ALL.map(|start| (start, StartStats::default())).into();
        Starts { calls, ways, phases, instances, checkpoints, refusals, lost, lost_lines }
    }
}

impl Starts {
    /// Records a call that was dispatched to an instance.
    pub fn called(&self, way: &CallPhases) {
        let CallPhases { start, waited, took, init, run, faults } = *way;
        let observe = |phase: &'static str, time: Duration| {
            let labels = PhaseLabels { start: word(start), phase };
            self.phases.get_or_create(&labels).observe(time.as_secs_f64());
        };
        if start == StartKind::Warm {
            observe("queue", waited);
        } else {
            observe("queue", waited.saturating_sub(took.whole));
            observe("platform", took.whole.saturating_sub(took.container + took.restore));
            observe("container", took.container);
            observe("restore", took.restore);
        }
        let rest = run.map(|run| run.saturating_sub(faults.unwrap_or_default()));
        for (phase, time) in [("init", init), ("faults", faults), ("run", rest)] {
            if let Some(time) = time {
                observe(phase, time);
            }
        }
        if let Some(one) = self.ways.get(&start) {
            let before = waited + init.unwrap_or_default();
            one.add(before, before + run.unwrap_or_default());
        }
    }

    /// The figures of each kind of start.
    pub fn look(&self) -> BTreeMap<StartKind, snapshot::Starts> {
        self.ways.iter().map(|(start, one)| (*start, one.look())).collect()
    }

    /// Counts the start of an instance, or its failure.
    pub fn started(&self, start: StartKind, is_done: bool) {
        let labels = StartLabels { start: word(start), result: result(is_done) };
        self.instances.get_or_create(&labels).inc();
    }

    /// Counts a checkpoint, or its failure.
    pub fn checkpointed(&self, is_done: bool) {
        self.checkpoints.get_or_create(&ResultLabels { result: result(is_done) }).inc();
    }

    /// Counts a call that was refused because its namespace had too many.
    pub fn refused(&self, namespace: &Name) {
        let labels = NamespaceLabels { namespace: namespace.to_string() };
        self.refusals.get_or_create(&labels).inc();
    }

    /// Counts an activation whose record could not be stored, and says so once in a while.
    pub fn lost(&self, error: &StoreError, id: ActivationId) {
        let lost = self.lost.inc() + 1;
        // Every step leaves the time valid.
        let mut last = locked(&self.lost_lines);
        if last.is_none_or(|last| last.elapsed() >= LOST_LINES) {
            *last = Some(Instant::now());
            tracing::error!(%error, %id, lost, "the record of an activation is lost");
        }
    }

    /// Registers the metrics: farfork's below a prefix, and OpenWhisk's.
    pub fn register(&self, registry: &mut Registry) {
        let refusals = self.refusals.clone();
        let help = "Calls refused because their namespace had too many concurrent calls";
        registry.register("openwhisk_action_limit_concurrent", help, refusals);
        let own = registry.sub_registry_with_prefix("farfork");
        let help = "Duration of calls by phase and by how they got their instance";
        own.register_with_unit("call_phase", help, Unit::Seconds, self.phases.clone());
        own.register("calls_in_flight", "Calls waiting or running", self.calls.clone());
        let help = "Activations whose records could not be stored";
        own.register("activations_lost", help, self.lost.clone());
        own.register("instance_starts", "Starts of instances", self.instances.clone());
        own.register("checkpoints", "Checkpoints of instances", self.checkpoints.clone());
    }
}

fn result(is_done: bool) -> &'static str {
    if is_done { "done" } else { "failed" }
}
