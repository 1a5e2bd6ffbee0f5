//! Metrics for Prometheus: OpenWhisk's names where they fit, `farfork_…` for the rest.
//!
//! ```text
//!  functions  each function's calls
//!  starts     starts by phase; instances and checkpoints, done and failed
//!  recent     calls of the last seconds, for viewers
//!  gauges     instances, nodes and pool, read at each request
//!  disk       what namespaces take of the disk, read at each request
//! ```
//! Invariants: a function has series from its first call on until it is deleted. Counters are
//! looked up once per version, so that counting a call only increments a few numbers.

mod disk;
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
use super::fleet::SharedFleet;
use super::nodes::Nodes;
use super::snapshot::Snapshot;
use crate::api::{Outcome, StartKind};
use crate::confine::Folders;
use crate::store::Store;
use disk::DiskGauges;
pub use functions::{FunctionCounters, Functions};
use gauges::Gauges;
use recent::Window;
pub use starts::{CallPhases, Starts};

/// Upper bounds of the buckets of times, in seconds: from a fraction of a restore to the longest
/// time limit of a call.
const BOUNDS_S: [f64; 19] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Recent calls remembered, of all functions.
const REMEMBERED: usize = 8192;

/// All metrics.
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
    /// Metrics without any counts.
    pub fn new(nodes: &Arc<dyn Nodes>, fleet: &Arc<SharedFleet>, advisor: &Advisor) -> Metrics {
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

    /// Adds what namespaces take of the disk.
    pub fn of_disk(mut self, store: &Arc<dyn Store>, folders: &Folders) -> Metrics {
        let gauges = DiskGauges { store: Arc::clone(store), folders: folders.clone() };
        self.registry.register_collector(Box::new(gauges));
        self
    }

    /// Records a call's whole duration, from its receipt until its activation was stored.
    pub fn ended(&self, counters: &FunctionCounters, took: Duration, outcome: Outcome) {
        self.recent.add(took, outcome == Outcome::Success);
        counters.ended(took, outcome);
        if outcome != Outcome::Success {
            self.failed.inc();
        }
    }

    /// Takes a snapshot.
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

    /// All metrics in the text format of OpenMetrics 1.0.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Collects the metrics of functions for the registry.
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

/// A value in the range of gauges.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
