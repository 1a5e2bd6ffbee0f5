//! Goals of objects in shared memory.

use super::comparisons::{BEYOND, KEPT, LIST, OVERHEAD, SLOW, THREADTEST, TREE};
use super::{
    ALLOCATE, BY_NEXT, BY_WATCHER, FREE, HANDED, KILLED, LARGER, MESSAGE, ONE_WAY, OWN, PAIR,
    SHARED, SHUFFLED,
};
use crate::goals::Goal;
use crate::samples::Samples;

/// The limit for a ratio.
const THREADTEST_RATIO: f64 = 1.1;
const WALK_RATIO: f64 = 1.2;
const MESSAGE_NS: f64 = 15.0;
const KILLED_MS: f64 = 5.0;
/// Nanoseconds for an object: 1,000 and 250 M objects/s.
const OWN_NS: f64 = 1.0;
const SHARED_NS: f64 = 4.0;
const LOST_PERCENT: f64 = 5.0;
/// More than mimalloc.
const OVERHEAD_BYTES: f64 = 16.0;
/// AEP-DSM and CXL-SHM, on the machine of the paper.
const ALLOCATE_NS: f64 = 42.2;
const SLOW_NS: f64 = 589.1;
const FREE_NS: f64 = 33.72;
const BEYOND_PERCENT: [(usize, f64); 2] = [(2, 49.86), (16, 60.31)];

/// All of them, judged.
pub(super) fn of(samples: &Samples) -> Vec<Goal> {
    let larger = LARGER.map(|(_, _, metric)| metric);
    let against = |metric| ratio(samples, metric, 1.0, ("farfork-c", "mimalloc"));
    let mut goals: Vec<Goal> =
        [PAIR, SHUFFLED, HANDED].into_iter().chain(larger).map(against).collect();
    goals.push(ratio(samples, THREADTEST, THREADTEST_RATIO, ("farfork-c", "mimalloc")));
    let plain = "memory of one process";
    goals.extend([TREE, LIST].map(|it| ratio(samples, it, WALK_RATIO, ("farfork", plain))));
    goals.push(ratio(samples, ONE_WAY, 1.0, ("farfork", "iceoryx2")));
    goals.extend([
        median(samples, ("farfork", MESSAGE, "ns"), MESSAGE_NS),
        median(samples, (BY_NEXT, KILLED, "ms"), KILLED_MS),
        median(samples, (BY_WATCHER, KILLED, "ms"), KILLED_MS),
        changed(samples, ("farfork", OWN, "ns an object"), OWN_NS, |rate| 1e3 / rate),
        changed(samples, ("farfork", SHARED, "ns an object"), SHARED_NS, |rate| 1e3 / rate),
        changed(samples, ("farfork", KEPT, "% lost"), LOST_PERCENT, |kept| 100.0 - kept),
        overhead(samples),
        median(samples, ("farfork-c", ALLOCATE, "ns, and AEP-DSM in its paper"), ALLOCATE_NS),
        median(samples, ("farfork-c", SLOW, "ns, and AEP-DSM in its paper"), SLOW_NS),
        median(samples, ("farfork-c", FREE, "ns, and AEP-DSM in its paper"), FREE_NS),
    ]);
    for (clients, limit) in BEYOND_PERCENT {
        for (_, metric) in BEYOND.into_iter().filter(|(known, _)| *known == clients) {
            goals.push(median(
                samples,
                ("farfork-c", metric, "%, and CXL-SHM in the paper"),
                limit,
            ));
        }
    }
    goals
}

fn ratio(samples: &Samples, metric: &str, limit: f64, (one, other): (&str, &str)) -> Goal {
    let (ours, theirs) = (samples.values(one, metric), samples.values(other, metric));
    Goal::ratio(format!("{metric}: {one} / {other}"), limit, ours, theirs)
}

fn median(samples: &Samples, row: (&str, &str, &str), limit: f64) -> Goal {
    changed(samples, row, limit, |value| value)
}

/// A goal for what follows from the values of a row. Its unit is stated.
fn changed(
    samples: &Samples,
    (case, metric, unit): (&str, &str, &str),
    limit: f64,
    change: impl Fn(f64) -> f64,
) -> Goal {
    let values: Vec<f64> = samples.values(case, metric).iter().copied().map(change).collect();
    Goal::median(format!("{case}: {metric}, {unit}"), limit, &values)
}

fn overhead(samples: &Samples) -> Goal {
    let [ours, theirs] = ["farfork", "mimalloc"].map(|case| samples.values(case, OVERHEAD));
    let beyond: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
    Goal::median(format!("{OVERHEAD}: farfork beyond mimalloc"), OVERHEAD_BYTES, &beyond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goals::Verdict;

    /// What the goal that begins so says.
    fn verdict(samples: &Samples, begins: &str) -> Verdict {
        let goals = of(samples);
        goals.iter().find(|goal| goal.goal.starts_with(begins)).expect("a goal").verdict
    }

    #[test]
    fn rates_and_losses_are_judged_the_right_way_round() {
        let mut samples = Samples::default();
        for _ in 0..8 {
            samples.add("farfork", OWN, "M objects/s", 1200.0);
            samples.add("farfork", SHARED, "M objects/s", 200.0);
            samples.add("farfork", KEPT, "%", 94.0);
            samples.add(BY_NEXT, KILLED, "ms", 4.0);
            samples.add(BY_WATCHER, KILLED, "ms", 6.0);
        }
        let found = [OWN, SHARED, KEPT].map(|it| verdict(&samples, &format!("farfork: {it}")));
        assert_eq!(found, [Verdict::Met, Verdict::Missed, Verdict::Missed]);
        let found = [BY_NEXT, BY_WATCHER].map(|it| verdict(&samples, it));
        assert_eq!(found, [Verdict::Met, Verdict::Missed]);
        assert_eq!(verdict(&samples, MESSAGE_GOAL), Verdict::Undecided);
    }

    const MESSAGE_GOAL: &str = "farfork: send + receive";
}
