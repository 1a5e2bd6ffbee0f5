//! Metrics of each function's calls, with the names and labels of OpenWhisk's user metrics.
//!
//! Updating an action continues its metrics; deleting it and creating it again resets them.

mod encode;
mod rows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_sys::sync::locked;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::recent::{WarmRuns, Window};
use super::{signed, times};
use crate::api::{Action, Name, Outcome, Response, StartKind, Times, Version};
use crate::scheduler::snapshot::Image;

/// Recent calls remembered per function.
const REMEMBERED: usize = 1024;

/// Upper bounds of the buckets of sizes, in bytes: up to the longest result.
const BOUNDS_BYTES: [f64; 8] =
    [64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0];

const STARTS: [StartKind; 4] = StartKind::ALL;
const OUTCOMES: [Outcome; 4] =
    [Outcome::Success, Outcome::ApplicationError, Outcome::DeveloperError, Outcome::InternalError];

/// Namespace and action.
type FunctionKey = (Name, Name);
/// Runtime, and memory limit in megabytes.
type Shape = (String, u64);

/// The metrics of called functions.
#[derive(Debug, Default)]
pub struct Functions {
    all: Mutex<BTreeMap<FunctionKey, Entry>>,
}

/// The metrics of a function, and the version that was last called.
#[derive(Debug)]
struct Entry {
    updated_ms: u64,
    version: Version,
    figures: Arc<Figures>,
}

#[derive(Debug)]
struct Figures {
    calls: Mutex<BTreeMap<Shape, Counter>>,
    cold_starts: Counter,
    waits: Histogram,
    inits: Histogram,
    durations: Histogram,
    sizes: Histogram,
    /// Sum of the durations, which the histogram does not expose.
    duration_ms: Counter,
    /// The memory limit of its instances, in megabytes.
    memory_mb: Gauge,
    outcomes: [Counter; OUTCOMES.len()],
    starts: [Counter; STARTS.len()],
    recent: Window,
    /// Calls that wait for an instance.
    waiting: Gauge,
    image: Mutex<Image>,
    image_error: Mutex<Option<String>>,
}

impl Default for Figures {
    fn default() -> Figures {
        let [waits, inits, durations] = std::array::from_fn(|_| times());
        Figures {
            calls: Mutex::default(),
            cold_starts: Counter::default(),
            waits,
            inits,
            durations,
            sizes: Histogram::new(BOUNDS_BYTES),
            duration_ms: Counter::default(),
            memory_mb: Gauge::default(),
            outcomes: Default::default(),
            starts: Default::default(),
            recent: Window::new(REMEMBERED),
            waiting: Gauge::default(),
            image: Mutex::default(),
            image_error: Mutex::default(),
        }
    }
}

/// Counts the calls of one version of a function.
#[derive(Clone, Debug)]
pub struct FunctionCounters {
    figures: Arc<Figures>,
    calls: Counter,
    warm_runs: Arc<WarmRuns>,
}

impl FunctionCounters {
    /// Counts an ended call; without a start if it got no instance.
    pub fn called(&self, response: &Response, start: Option<StartKind>, times: Times) {
        self.calls.inc();
        self.figures.count(response, start, times);
    }

    /// Records a call's duration. For the first call of a new instance, returns how much longer it
    /// took than warm calls, if known.
    pub fn ran(&self, start: StartKind, run: Duration) -> Option<Duration> {
        self.warm_runs.add(run, start == StartKind::Warm)
    }

    /// Records a call's whole duration, from its receipt until its activation was stored.
    pub fn ended(&self, took: Duration, outcome: Outcome) {
        self.figures.recent.add(took, outcome == Outcome::Success);
    }

    /// Adds to the number of waiting calls.
    pub fn wait(&self, more: i64) {
        self.figures.waiting.inc_by(more);
    }

    /// Sets why the last image of the function was not made.
    pub fn image_error(&self, reason: Option<String>) {
        *locked(&self.figures.image_error) = reason;
    }

    /// Sets the state of the function's image.
    pub fn image(&self, image: Image) {
        *locked(&self.figures.image) = image;
    }
}

impl Figures {
    fn count(&self, response: &Response, start: Option<StartKind>, times: Times) {
        self.sizes.observe(response.size as f64);
        let seconds = |ms: u64| ms as f64 / 1000.0;
        self.waits.observe(seconds(times.wait_ms));
        let duration_ms = times.end_ms.saturating_sub(times.start_ms);
        self.durations.observe(seconds(duration_ms));
        self.duration_ms.inc_by(duration_ms);
        if let Some(init_ms) = times.init_ms {
            self.cold_starts.inc();
            self.inits.observe(seconds(init_ms));
        }
        for (outcome, counter) in OUTCOMES.into_iter().zip(&self.outcomes) {
            if outcome == response.status {
                counter.inc();
            }
        }
        for (kind, counter) in STARTS.into_iter().zip(&self.starts) {
            if Some(kind) == start {
                counter.inc();
            }
        }
    }

    fn shapes(&self) -> MutexGuard<'_, BTreeMap<Shape, Counter>> {
        // Every step leaves the table valid.
        locked(&self.calls)
    }
}

impl Functions {
    fn all(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, Entry>> {
        // Every step leaves the table valid.
        locked(&self.all)
    }

    /// The counters for this version of an action.
    pub fn counters(&self, action: &Action) -> FunctionCounters {
        let fresh = || {
            let (updated_ms, version) = (action.updated_ms, action.version);
            Entry { updated_ms, version, figures: Arc::default() }
        };
        let mut all = self.all();
        let entry = all.entry(key(action)).or_insert_with(fresh);
        if action.updated_ms > entry.updated_ms {
            // An update raises the version. A new action of the same name begins with the first
            // version.
            let figures = match action.version > entry.version {
                true => Arc::clone(&entry.figures),
                false => Arc::default(),
            };
            *entry = Entry { figures, ..fresh() };
        }
        let figures = Arc::clone(&entry.figures);
        figures.memory_mb.set(signed(action.limits.memory_mb));
        let shape = (action.exec.kind.clone(), action.limits.memory_mb);
        let calls = figures.shapes().entry(shape).or_default().clone();
        FunctionCounters { figures, calls, warm_runs: Arc::default() }
    }

    /// Removes the metrics of a deleted action, unless it was created again since.
    pub fn forget(&self, action: &Action) {
        let mut all = self.all();
        if all.get(&key(action)).is_some_and(|entry| entry.updated_ms <= action.updated_ms) {
            all.remove(&key(action));
        }
    }

    /// All metrics.
    fn list(&self) -> Vec<(FunctionKey, Arc<Figures>)> {
        let pair = |(key, entry): (&FunctionKey, &Entry)| (key.clone(), Arc::clone(&entry.figures));
        self.all().iter().map(pair).collect()
    }
}

fn key(action: &Action) -> FunctionKey {
    (action.namespace.clone(), action.name.clone())
}
