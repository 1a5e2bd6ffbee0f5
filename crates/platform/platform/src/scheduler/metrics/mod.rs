//! Figures for Prometheus: OpenWhisk's names where they fit, `farfork_…` for the rest.
//!
//! ```text
//!  functions  each function's calls
//!  starts     how calls came to instances, by phase; instances and checkpoints, done and failed
//!  recent     calls of the last seconds, for those who look
//!  gauges   instances, nodes and pool, which are looked at when somebody asks
//! ```
//! Invariants: a function has series from its first call since the start on, and none once it was
//! deleted; what a call is counted by is looked up once for each version, so that counting it adds
//! to a few numbers.

mod functions;
mod gauges;
mod recent;
mod starts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Advisor;
use super::fleet::Fleet;
use super::nodes::Nodes;
use super::snapshot::Snapshot;
use crate::api::{Outcome, StartKind};
pub use functions::{FunctionCounters, Functions};
use gauges::Gauges;
use recent::Window;
pub use starts::{CallPhases, Starts};

/// Upper bounds of the buckets of all times, in seconds: from a fraction of a restore to the longest
/// that a call may take.
const BOUNDS_S: [f64; 19] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Calls of all functions that are remembered, if they are recent.
const REMEMBERED: usize = 8192;

/// All figures.
#[derive(Debug)]
pub struct Metrics {
    /// Of functions.
    pub functions: Arc<Functions>,
    /// Of starts.
    pub starts: Starts,
    recent: Window,
    failed: Counter,
    gauges: Gauges,
    registry: Registry,
}

impl Metrics {
    /// Nothing is counted yet.
    pub fn new(nodes: &Arc<dyn Nodes>, fleet: &Arc<Fleet>, advisor: &Advisor) -> Metrics {
        let functions = Arc::new(Functions::default());
        let starts = Starts::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(FunctionsCollector(Arc::clone(&functions))));
        starts.register(&mut registry);
        registry.register("farfork_decisions", "Decisions of policies", advisor.counts.clone());
        let gauges = Gauges { nodes: Arc::clone(nodes), fleet: Arc::clone(fleet) };
        registry.register_collector(Box::new(gauges.clone()));
        let (recent, failed) = (Window::new(REMEMBERED), Counter::default());
        Metrics { functions, starts, recent, failed, gauges, registry }
    }

    /// What came of a call is kept, so long after the platform had the call.
    pub fn ended(&self, counted: &FunctionCounters, took: Duration, outcome: Outcome) {
        self.recent.add(took, outcome == Outcome::Success);
        counted.ended(took, outcome);
        if outcome != Outcome::Success {
            self.failed.inc();
        }
    }

    /// What there is, and what has been.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            calls_in_flight: u64::try_from(self.starts.calls.get()).unwrap_or(0),
            recent: self.recent.look(),
            starts: self.starts.look(),
            calls_failed: self.failed.get(),
            functions: self.functions.rows(),
            ..Snapshot::default()
        };
        let waiting = snapshot.functions.values().map(|function| function.waiting);
        snapshot.calls_waiting = waiting.sum();
        self.gauges.look(&mut snapshot);
        snapshot
    }

    /// All of them, in the text format of OpenMetrics 1.0.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // A string takes all that is written to it.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// What the registry owns of functions' figures.
#[derive(Debug)]
struct FunctionsCollector(Arc<Functions>);

impl Collector for FunctionsCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

fn times() -> Histogram {
    Histogram::new(BOUNDS_S)
}

fn word(start: StartKind) -> &'static str {
    match start {
        StartKind::Warm => "warm",
        StartKind::Ghost => "ghost",
        StartKind::Clone => "clone",
        StartKind::Cold => "cold",
    }
}

fn gauge<'s>(
    encoder: &'s mut DescriptorEncoder<'_>,
    (name, help): (&'s str, &str),
    unit: Option<&'s Unit>,
) -> Result<MetricEncoder<'s>, fmt::Error> {
    encoder.encode_descriptor(name, help, unit, MetricType::Gauge)
}

/// What a gauge can tell.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
