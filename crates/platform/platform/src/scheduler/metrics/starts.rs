//! How calls came to instances, and what that took, by phase.
//!
//! ```text
//!  call ─ queue ─► platform ─ container ─ restore ─► init ─► faults ─ run
//!                  └── of a new instance only ──┘    cold    new
//! ```
//! Page faults take their time within the first run of an instance, and nothing tells how much: `faults`
//! is what that run took longer than warm ones of its function.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::recent::StartStats;
use super::{times, word};
use crate::api::{Name, StartKind};
use crate::scheduler::nodes::StartTimes;
use crate::scheduler::snapshot;

/// What the calls and instances of all functions are counted by.
#[derive(Debug)]
pub struct Starts {
    /// Calls that wait or are being made.
    pub calls: Gauge,
    ways: BTreeMap<StartKind, StartStats>,
    phases: Family<PhaseLabels, Histogram, fn() -> Histogram>,
    instances: Family<StartLabels, Counter>,
    checkpoints: Family<ResultLabels, Counter>,
    refusals: Family<NamespaceLabels, Counter>,
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

/// What a call's way was.
#[derive(Clone, Copy, Debug)]
pub struct CallPhases {
    /// How it came to its instance.
    pub start: StartKind,
    /// From when the platform had it until the instance had it.
    pub waited: Duration,
    /// What starting the instance took.
    pub took: StartTimes,
    /// What loading the code took, if that was done.
    pub init: Option<Duration>,
    /// What the call itself took, if there was an answer.
    pub run: Option<Duration>,
    /// Of this, what it took longer than warm ones, if the instance was new and that is known.
    pub faults: Option<Duration>,
}

impl Default for Starts {
    fn default() -> Starts {
        let (calls, instances, checkpoints, refusals) = Default::default();
        let phases = Family::new_with_constructor(times as fn() -> Histogram);
        let ways = StartKind::ALL.map(|start| (start, StartStats::default())).into();
        Starts { calls, ways, phases, instances, checkpoints, refusals }
    }
}

impl Starts {
    /// A call has ended that was handed to an instance.
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

    /// How calls came to instances, and what that took of late.
    pub fn look(&self) -> BTreeMap<StartKind, snapshot::Starts> {
        self.ways.iter().map(|(start, one)| (*start, one.look())).collect()
    }

    /// An instance was started, or not.
    pub fn started(&self, start: StartKind, is_done: bool) {
        let labels = StartLabels { start: word(start), result: result(is_done) };
        self.instances.get_or_create(&labels).inc();
    }

    /// An instance was checkpointed, or not.
    pub fn checkpointed(&self, is_done: bool) {
        self.checkpoints.get_or_create(&ResultLabels { result: result(is_done) }).inc();
    }

    /// A call was one too many of its namespace.
    pub fn refused(&self, namespace: &Name) {
        let labels = NamespaceLabels { namespace: namespace.to_string() };
        self.refusals.get_or_create(&labels).inc();
    }

    /// Has a registry tell them; all but OpenWhisk's below its prefix.
    pub fn register(&self, registry: &mut Registry) {
        let refusals = self.refusals.clone();
        let help = "Calls refused as there were too many of their namespace";
        registry.register("openwhisk_action_limit_concurrent", help, refusals);
        let own = registry.sub_registry_with_prefix("farfork");
        let help = "Calls by phase and by how they came to their instance";
        own.register_with_unit("call_phase", help, Unit::Seconds, self.phases.clone());
        own.register("calls_in_flight", "Calls that wait or are being made", self.calls.clone());
        own.register("instance_starts", "Starts of instances", self.instances.clone());
        own.register("checkpoints", "Checkpoints of instances", self.checkpoints.clone());
    }
}

fn result(is_done: bool) -> &'static str {
    if is_done { "done" } else { "failed" }
}
