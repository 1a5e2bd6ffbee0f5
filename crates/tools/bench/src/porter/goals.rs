//! The goals of the autoscaler (CXLfork §7.2, figure 10).

use super::metric::{P99, P99_OF_FUNCTIONS, PERIOD};
use super::scenarios::{AMPLE, CROWDED, SCARCE};
use super::systems::{FARFORK, FULL_COPY, MIGRATE_ON_ACCESS};
use crate::goals::Goal;
use crate::samples::Samples;

/// Share of the latency of full copies, with ample memory.
const AMPLE_SHARE: f64 = 0.3;
/// The same with a quarter of the memory.
const SCARCE_SHARE: f64 = 1.0 / 16.0;
/// Share of the time per call under overload. Half of the time is twice the throughput.
const PERIOD_SHARE: f64 = 0.5;

/// Judges all goals of the systems that were measured.
pub fn judge(samples: &Samples) -> Vec<Goal> {
    // One metric weighs functions equally, the other weighs calls equally.
    let latencies = [P99_OF_FUNCTIONS, P99].into_iter().flat_map(|metric| {
        [
            (AMPLE, metric, FULL_COPY, AMPLE_SHARE),
            (SCARCE, metric, FULL_COPY, SCARCE_SHARE),
            (SCARCE, metric, MIGRATE_ON_ACCESS, SCARCE_SHARE),
        ]
    });
    let periods =
        [FULL_COPY, MIGRATE_ON_ACCESS].map(|rival| (CROWDED, PERIOD, rival, PERIOD_SHARE));
    let goal = |(scenario, metric, rival, limit): (&str, &'static str, &str, f64)| {
        let of = |system: &str| samples.values(&format!("{scenario}/{system}"), metric);
        let (own, others) = (of(FARFORK), of(rival));
        let name = format!("{scenario}: {metric}, {FARFORK} / {rival}");
        (!own.is_empty() && !others.is_empty()).then(|| Goal::ratio(name, limit, own, others))
    };
    latencies.chain(periods).filter_map(goal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goals::Verdict;

    #[test]
    fn only_measured_systems_have_goals() {
        let mut samples = Samples::default();
        let mut add = |scenario: &str, system: &str, metric, value: f64| {
            (0..6).for_each(|_| samples.add(&format!("{scenario}/{system}"), metric, "us", value));
        };
        add(SCARCE, FARFORK, P99_OF_FUNCTIONS, 10.0);
        add(SCARCE, FULL_COPY, P99_OF_FUNCTIONS, 170.0);
        add(SCARCE, FARFORK, P99, 20.0);
        add(SCARCE, FULL_COPY, P99, 300.0);
        add(SCARCE, MIGRATE_ON_ACCESS, P99, 400.0);
        add(CROWDED, FARFORK, PERIOD, 60.0);
        add(CROWDED, FULL_COPY, PERIOD, 100.0);
        let goals = judge(&samples);
        let verdicts: Vec<Verdict> = goals.iter().map(|goal| goal.verdict).collect();
        let [met, missed] = [Verdict::Met, Verdict::Missed];
        assert_eq!(verdicts, [met, missed, met, missed], "{goals:?}");
        assert_eq!(goals[1].goal, format!("{SCARCE}: P99, {FARFORK} / {FULL_COPY}"));
    }
}
