//! The goals of this benchmark.

use super::starts::{metric as ghosts, start};
use super::{Function, herd};
use crate::cases::metric;
use crate::goals::Goal;
use crate::samples::Samples;
use crate::stats::median;
use crate::subject::Forking;

const RESTORE_US: f64 = 1000.0;
const EXCESS_SHARE: f64 = 0.5;
/// Above a bare wake-up.
const GHOST_ABOVE_WAKE_UP_US: f64 = 60.0;
const GHOST_US: f64 = 100.0;
const GHOST_CALL_SHARE: f64 = 1.05;
const EMPTY_GHOST_BYTES: f64 = 512.0 * 1024.0;
/// 2,000 clones a second.
const HERD_US: f64 = 500.0;
const HERD_BYTES: f64 = 100_000.0;

/// Every goal for every function, and for every herd.
pub fn judge(functions: &[Function], herds: &[String], samples: &Samples) -> Vec<Goal> {
    let of_all = [restore, excess, above_wake_up, ghost_start, ghost_call, empty_ghost];
    let of_each = of_all
        .iter()
        .flat_map(|goal| functions.iter().filter_map(|function| goal(function, samples)));
    of_each.chain(herds.iter().flat_map(|name| of_herd(name, samples))).collect()
}

fn of_herd(name: &str, samples: &Samples) -> Vec<Goal> {
    let of = |case: &str, what: &str, limit, metric| {
        let case = format!("{name}/{case}");
        Goal::median(format!("{case}: {what}"), limit, samples.values(&case, metric))
    };
    let each = |case: &str, from: &str| {
        let what = format!("{from}, time per clone that answered, us");
        of(case, &what, HERD_US, herd::metric::EACH)
    };
    let bytes = "local memory before the first call, bytes";
    let mut goals = vec![each(herd::WHOLE, "from scratch")];
    let in_ghosts = herd::GHOSTS.map(|(case, _)| case).into_iter().chain([herd::WHOLE_IN_GHOSTS]);
    // Not every subject has a whole herd in ghosts.
    let is_measured =
        |case: &&str| !samples.values(&format!("{name}/{case}"), herd::metric::EACH).is_empty();
    goals.extend(in_ghosts.filter(is_measured).map(|case| each(case, "in existing namespaces")));
    goals.push(of(herd::WHOLE, bytes, HERD_BYTES, herd::metric::LOCAL));
    goals
}

fn values<'a>(function: &Function, samples: &'a Samples, start: &str, metric: &str) -> &'a [f64] {
    samples.values(&function.lane.subject.case(start), metric)
}

fn name(function: &Function, what: &str) -> String {
    format!("{}: {what}", function.lane.subject.name)
}

fn restore(function: &Function, samples: &Samples) -> Option<Goal> {
    let goal = name(function, "clone, request to first instruction, us");
    let values = values(function, samples, start::CLONE, metric::RESTORE);
    Some(Goal::median(goal, RESTORE_US, values))
}

fn excess(function: &Function, samples: &Samples) -> Option<Goal> {
    if matches!(function.lane.subject.forking, Forking::Impossible(_)) {
        return None;
    }
    let goal = name(function, "excess of first call, clone / local fork");
    let of = |start| values(function, samples, start, metric::EXCESS);
    Some(Goal::ratio(goal, EXCESS_SHARE, of(start::CLONE), of("local-fork")))
}

fn above_wake_up(function: &Function, samples: &Samples) -> Option<Goal> {
    let goal = name(
        function,
        "pre-attached ghost, message to first instruction above a bare \
                               wake-up, us",
    );
    let ghost = values(function, samples, start::ATTACHED, metric::RESTORE);
    // A waiting clone is woken twice: for its descriptors, and less than 10 ms later for its start.
    let bare = values(function, samples, start::WAKE_UP_AGAIN, ghosts::WAKE_UP);
    let above: Vec<f64> = ghost.iter().zip(bare).map(|(ghost, bare)| ghost - bare).collect();
    Some(Goal::median(goal, GHOST_ABOVE_WAKE_UP_US, &above))
}

/// A goal only if it exceeds the bare wake-up by enough.
fn ghost_start(function: &Function, samples: &Samples) -> Option<Goal> {
    let bare = median(values(function, samples, start::WAKE_UP_AGAIN, ghosts::WAKE_UP));
    let goal = name(function, "pre-attached ghost, message to first instruction, us");
    let ghost = values(function, samples, start::ATTACHED, metric::RESTORE);
    (bare + GHOST_ABOVE_WAKE_UP_US <= GHOST_US).then(|| Goal::median(goal, GHOST_US, ghost))
}

fn ghost_call(function: &Function, samples: &Samples) -> Option<Goal> {
    let goal = name(function, "first call, pre-attached ghost / warm process, both idle before");
    let ghost = values(function, samples, start::ATTACHED, metric::RESPONSE);
    let warm = values(function, samples, "warm-unconnected-10ms", metric::RESPONSE);
    Some(Goal::ratio(goal, GHOST_CALL_SHARE, ghost, warm))
}

fn empty_ghost(function: &Function, samples: &Samples) -> Option<Goal> {
    let goal = name(function, "empty ghost, local memory while it waits, bytes");
    let values = values(function, samples, start::EMPTY, ghosts::GHOST_LOCAL);
    Some(Goal::median(goal, EMPTY_GHOST_BYTES, values))
}
