//! Means over the workloads, and the goals.
//!
//! One machine: `farfork`, whose guest runs when its machine is filled, against the goals of the paper. Many at once: `farfork-at-once`,
//! because all of them run as soon as they can.

use super::scene::{SCENES, Scene};
use super::{
    AGAIN, AT_ONCE, CASES, COLD_FAR, FAASNAP, FARFORK, FILE, FILE_COLD, MS, REAP, RESIDENT,
};
use crate::goals::Goal;
use crate::samples::Samples;
use crate::stats::median;

/// Geometric means round by round, and the metric of each workload that they are of: a part of its name.
const MEANS: [(&str, &str); 3] = [
    ("geometric mean of the nine workloads", ""),
    ("geometric mean of the nine workloads, 8 at once", ", 8 at once"),
    ("geometric mean of the nine workloads, 32 at once", ", 32 at once"),
];
/// The better of REAP and FaaSnap, both from memory.
const RIVAL: &str = "the better of reap and faasnap";

/// Adds the geometric mean of each case over the workloads. Of the two rivals, too: the better one of each workload.
pub(super) fn add_means(samples: &mut Samples) {
    let mut means = Vec::new();
    for (mean, part) in MEANS {
        let recorded = SCENES.iter().filter(|scene| scene.is_recorded());
        let metrics: Vec<String> =
            recorded.map(|Scene { name, .. }| format!("{name}{part}")).collect();
        for case in CASES.into_iter().chain([AGAIN, RIVAL]) {
            let series: Vec<&[f64]> =
                metrics.iter().map(|metric| values(samples, case, metric)).collect();
            let rounds = series.iter().map(|values| values.len()).min().unwrap_or(0);
            means.extend((0..rounds).map(|round| {
                let sum: f64 = series.iter().map(|values| values[round].ln()).sum();
                (case, mean, (sum / series.len() as f64).exp())
            }));
        }
    }
    means.into_iter().for_each(|(case, mean, ms)| samples.add(case, mean, MS, ms));
}

fn values<'a>(samples: &'a Samples, case: &str, metric: &str) -> &'a [f64] {
    let own = samples.values(case, metric);
    if case != RIVAL || !own.is_empty() {
        return own;
    }
    let [reap, faasnap] = [REAP, FAASNAP].map(|case| samples.values(case, metric));
    if median(reap) <= median(faasnap) { reap } else { faasnap }
}

/// What was reached.
pub(super) fn judged(samples: &Samples) -> Vec<Goal> {
    let against = |metric: &'static str, case: &'static str, other: &'static str, limit: f64| {
        let [ours, theirs] = [case, other].map(|case| values(samples, case, metric));
        Goal::ratio(format!("{metric}: {case} / {other}"), limit, ours, theirs)
    };
    let of_one = |metric| {
        vec![
            against(metric, FARFORK, FILE_COLD, 1.0 / 2.2),
            against(metric, FARFORK, FILE, 1.0 / 2.2),
            against(metric, FARFORK, RIVAL, 1.0 / 1.1),
            against(metric, FARFORK, RIVAL, 1.0 / 1.3),
            against(metric, FARFORK, RESIDENT, 1.15),
            against(metric, COLD_FAR, FILE_COLD, 1.0 / 2.2),
        ]
    };
    let of_crowd = |metric| {
        vec![
            against(metric, AT_ONCE, FILE_COLD, 1.0 / 2.2),
            against(metric, AT_ONCE, RIVAL, 1.0 / 1.1),
        ]
    };
    let alone = samples.metrics(FARFORK, MS);
    let is_crowd = |metric: &&str| !alone.contains(metric);
    let crowds = samples.metrics(AT_ONCE, MS).into_iter().filter(is_crowd);
    alone.iter().copied().flat_map(of_one).chain(crowds.flat_map(of_crowd)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goals::Verdict;

    /// Ten rounds of all workloads, of which the second is ten times as long in all cases.
    fn samples() -> Samples {
        let mut samples = Samples::default();
        for scene in SCENES.iter().filter(|scene| scene.is_recorded()) {
            let scale = if scene.name == "html" { 10.0 } else { 1.0 };
            // REAP is the better one of html alone.
            let reap = if scene.name == "html" { 20.0 } else { 24.0 };
            let alone = [
                (FARFORK, 10.0),
                (FILE_COLD, 30.0),
                (REAP, reap),
                (FAASNAP, 22.0),
                (RESIDENT, 9.0),
            ];
            for (case, ms) in alone {
                (0..10).for_each(|_| samples.add(case, scene.name, MS, ms * scale));
            }
            for (_, metric) in scene.crowds {
                for (case, ms) in
                    [(AT_ONCE, 10.0), (FILE_COLD, 15.0), (REAP, 12.0), (FAASNAP, 13.0)]
                {
                    (0..10).for_each(|_| samples.add(case, metric, MS, ms * scale));
                }
            }
        }
        samples
    }

    #[test]
    fn means_are_geometric_and_goals_are_judged_by_them() {
        let mut samples = samples();
        add_means(&mut samples);
        let mean = |case, metric: usize| samples.values(case, MEANS[metric].0);
        let near = |values: &[f64], expected: f64| {
            values.len() == 10 && values.iter().all(|value| (value / expected - 1.0).abs() < 1e-9)
        };
        let tenfold = 10f64.powf(1.0 / 9.0);
        assert!(near(mean(FARFORK, 0), 10.0 * tenfold), "{:?}", mean(FARFORK, 0));
        let rival = (22f64.powi(8) * 20.0).powf(1.0 / 9.0) * tenfold;
        assert!(near(mean(RIVAL, 0), rival), "{:?}", mean(RIVAL, 0));
        assert!(near(mean(AT_ONCE, 1), 10.0 * tenfold) && near(mean(FILE_COLD, 2), 15.0 * tenfold));
        assert!(mean(COLD_FAR, 0).is_empty() && mean(FARFORK, 1).is_empty());
        let goals = judged(&samples);
        let verdict = |of: &str| {
            let found: Vec<_> = goals.iter().filter(|goal| goal.goal == of).collect();
            found.iter().map(|goal| goal.verdict).collect::<Vec<_>>()
        };
        let [alone, _, crowd] = MEANS.map(|(mean, _)| mean);
        assert_eq!(verdict(&format!("{alone}: farfork / file-cold")), [Verdict::Met]);
        assert_eq!(verdict(&format!("{alone}: farfork / {RIVAL}")), [Verdict::Met; 2]);
        assert_eq!(verdict(&format!("{alone}: farfork / resident")), [Verdict::Met]);
        assert_eq!(verdict(&format!("{crowd}: farfork-at-once / file-cold")), [Verdict::Missed]);
        assert_eq!(verdict(&format!("{crowd}: farfork-at-once / {RIVAL}")), [Verdict::Met]);
        assert_eq!(verdict("html: farfork-cold-far / file-cold"), [Verdict::Undecided]);
        assert_eq!(goals.len(), (9 + 1) * 6 + (18 + 2) * 2);
    }
}
