//! The rows of a report: counts, and modelled times.

use farfork_types::Tiering;

use super::model::{LOCAL_NS, Traffic};
use super::{CLONES, Function, LAST_LEVELS};
use crate::cases::metric::{LATER, LOCAL, RESPONSE};
use crate::goals::Goal;
use crate::samples::Samples;
use crate::stats::median;

/// Latency of CXLfork's device, in nanoseconds (section 6).
const DEVICE_NS: f64 = 391.0;
/// The largest latency, where CXLfork's figure 9 begins.
const SLOWEST_NS: f64 = 400.0;
/// Latencies for each of the caches, from the largest down to that of local memory.
const LATENCIES_NS: [&[f64]; 2] = [&[SLOWEST_NS, DEVICE_NS, 300.0, 200.0, LOCAL_NS], &[DEVICE_NS]];
/// Numbers of overlapping misses. One is the worst case; processors overlap or prefetch more.
const OVERLAPS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
/// The overlap that goals are judged by.
const WORST_OVERLAP: f64 = OVERLAPS[0];
const WARM_SHARE: f64 = 1.05;
const MEMORY_SHARE: f64 = 0.5;

/// Metrics of the counts.
mod metric {
    pub const FIRST_LINES: &str = "first call: lines of the pool that it waits for";
    pub const FIRST_PAGES: &str = "first call: pages copied";
    pub const WARM_LINES: &str = "warm call: lines of the pool that it waits for";
    pub const WARM_PAGES: &str = "warm call: pages copied";
    pub const FIRST: &str = "first call / local fork's";
    pub const WARM: &str = "warm call / local fork's";
}

/// The clones of one function under one policy, with one of the caches.
struct Clones<'a> {
    function: &'a Function,
    start: &'static str,
    tiering: Tiering,
    level: usize,
}

/// Adds the rows of one function.
pub fn add(function: &Function, samples: &mut Samples) {
    // With copies of all pages, calls read nothing from the pool.
    for (start, tiering) in CLONES.into_iter().filter(|(_, tiering)| *tiering != Tiering::Copy) {
        for (level, latencies) in LATENCIES_NS.iter().enumerate() {
            let clones = Clones { function, start, tiering, level };
            clones.add_counts(samples);
            for latency in *latencies {
                // The latency of local memory adds nothing, with any overlap.
                let count = if *latency == LOCAL_NS { 1 } else { OVERLAPS.len() };
                let overlaps = OVERLAPS[..count].iter();
                overlaps.for_each(|misses| clones.add_times(*latency, *misses, samples));
            }
        }
    }
}

impl Clones<'_> {
    fn case(&self) -> String {
        let megabytes = LAST_LEVELS[self.level] >> 20;
        self.function.lane.subject.case(&format!("{}/{megabytes} MiB cache", self.start))
    }

    fn first(&self) -> Traffic {
        Traffic::from_counts(&self.function.counted.first, self.level, self.tiering)
    }

    fn warm(&self) -> Vec<Traffic> {
        let of = |seen| Traffic::from_counts(seen, self.level, self.tiering);
        self.function.counted.warm.iter().map(of).collect()
    }

    fn add_counts(&self, samples: &mut Samples) {
        let (case, first) = (self.case(), self.first());
        samples.add(&case, metric::FIRST_LINES, "count", first.lines as f64);
        samples.add(&case, metric::FIRST_PAGES, "count", first.pages as f64);
        for Traffic { lines, pages } in self.warm() {
            samples.add(&case, metric::WARM_LINES, "count", lines as f64);
            samples.add(&case, metric::WARM_PAGES, "count", pages as f64);
        }
    }

    /// The time added to a warm call. It is a median, because a call may touch pages for the first time.
    fn added_warm_us(&self, latency_ns: f64, misses: f64) -> f64 {
        let added: Vec<f64> =
            self.warm().iter().map(|traffic| traffic.added_us(latency_ns, misses)).collect();
        median(&added)
    }

    /// Adds ratios of each round's clone to the same round's fork.
    fn add_times(&self, latency_ns: f64, misses: f64, samples: &mut Samples) {
        let case = format!("{}/pool of {latency_ns} ns, overlap {misses}", self.case());
        let measured = |samples: &Samples, metric| {
            let values = |start| samples.values(&self.function.lane.subject.case(start), metric);
            let of_rounds = values(self.start).iter().zip(values("local-fork"));
            of_rounds.map(|(clone, fork)| (*clone, *fork)).collect::<Vec<_>>()
        };
        let added = self.first().added_us(latency_ns, misses);
        for (clone, fork) in measured(samples, RESPONSE) {
            samples.add(&case, metric::FIRST, "", (clone + added) / fork);
        }
        let added = self.added_warm_us(latency_ns, misses);
        for (clone, fork) in measured(samples, LATER) {
            samples.add(&case, metric::WARM, "", (clone + added) / fork);
        }
    }
}

/// Goals with the policy `hybrid`, the worst overlap and the larger cache: warm calls as fast as with all
/// memory local, and half of that memory.
pub fn goals(function: &Function, samples: &Samples) -> [Goal; 2] {
    let subject = &function.lane.subject;
    let values = |start: &str, metric| samples.values(&subject.case(start), metric);
    let hybrid = Clones { function, start: "hybrid", tiering: Tiering::Hybrid, level: 0 };
    let added = hybrid.added_warm_us(DEVICE_NS, WORST_OVERLAP);
    let rounds = values("hybrid", LATER).iter().zip(values("copy", LATER));
    let shares: Vec<f64> = rounds.map(|(hybrid, copy)| (hybrid + added) / copy).collect();
    let goal = |what: &str| format!("{}: hybrid, {what} / all local", subject.name);
    let warm = goal(&format!("warm call with a pool of {DEVICE_NS} ns (modelled)"));
    let memory = goal("local memory after one call");
    [
        Goal::median(warm, WARM_SHARE, &shares),
        Goal::ratio(memory, MEMORY_SHARE, values("hybrid", LOCAL), values("copy", LOCAL)),
    ]
}
