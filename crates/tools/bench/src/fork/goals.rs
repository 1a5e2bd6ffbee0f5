//! The goals of this benchmark.

use crate::cases::{Lane, metric};
use crate::goals::Goal;
use crate::samples::Samples;
use crate::subject::Forking;

const RESTORE_US: f64 = 1000.0;
/// From this footprint on, the goal for the excess of a clone is half of a local fork's.
const LARGE_MEGABYTES: u64 = 100;
const LOCAL_SHARE: f64 = 0.10;

/// Every goal for every subject.
pub fn judge(lanes: &[Lane], samples: &Samples) -> Vec<Goal> {
    let restore = lanes.iter().map(|lane| restore(lane, samples));
    let excess = lanes.iter().filter_map(|lane| excess(lane, samples));
    let memory = lanes.iter().map(|lane| memory(lane, samples));
    restore.chain(excess).chain(memory).collect()
}

fn restore(lane: &Lane, samples: &Samples) -> Goal {
    let values = samples.values(&lane.subject.case("clone"), metric::RESTORE);
    let goal = format!("{}: request to first instruction, us", lane.subject.name);
    Goal::median(goal, RESTORE_US, values)
}

fn excess(lane: &Lane, samples: &Samples) -> Option<Goal> {
    if matches!(lane.subject.forking, Forking::Impossible(_)) {
        return None;
    }
    let limit = if lane.subject.megabytes >= LARGE_MEGABYTES { 0.5 } else { 1.0 };
    let of = |start| samples.values(&lane.subject.case(start), metric::EXCESS);
    let goal = format!("{}: excess of first call, clone / local fork", lane.subject.name);
    Some(Goal::ratio(goal, limit, of("clone"), of("local-fork")))
}

fn memory(lane: &Lane, samples: &Samples) -> Goal {
    let of = |start| samples.values(&lane.subject.case(start), metric::LOCAL);
    let goal = format!("{}: local memory, clone / cold process", lane.subject.name);
    Goal::ratio(goal, LOCAL_SHARE, of("clone"), of("cold"))
}
