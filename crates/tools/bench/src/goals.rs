//! What was aimed at, and whether it was reached.

use serde::Serialize;

use crate::stats::{Interval, median, median_interval, ratio};

/// A goal held against what was measured. Values above the limit miss it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// What was aimed at, for which subject.
    pub goal: String,
    /// The limit.
    pub limit: f64,
    /// What was measured.
    pub value: Option<f64>,
    /// Its 95 % interval; an end that is `null` in JSON is unbounded.
    pub ci: Option<[f64; 2]>,
    /// Whether it was reached.
    pub verdict: Verdict,
}

/// Whether a goal was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval is on the right side.
    Met,
    /// The whole interval is on the wrong side.
    Missed,
    /// The interval straddles the limit, or there is none.
    Undecided,
}

impl Goal {
    /// The median of `values` is to be at most `limit`.
    pub fn median(goal: String, limit: f64, values: &[f64]) -> Goal {
        let value = Some(median(values)).filter(|value| value.is_finite());
        Goal::of(goal, limit, value, median_interval(values))
    }

    /// The median of `values` is to be at most `limit` times the median of `others`.
    pub fn ratio(goal: String, limit: f64, values: &[f64], others: &[f64]) -> Goal {
        match ratio(values, others) {
            Some((value, interval)) => Goal::of(goal, limit, Some(value), interval),
            None => Goal::of(goal, limit, None, None),
        }
    }

    fn of(goal: String, limit: f64, value: Option<f64>, interval: Option<Interval>) -> Goal {
        let verdict = match interval {
            Some(interval) if interval.high <= limit => Verdict::Met,
            Some(interval) if interval.low > limit => Verdict::Missed,
            _ => Verdict::Undecided,
        };
        Goal { goal, limit, value, ci: interval.map(|i| [i.low, i.high]), verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_the_whole_interval_on_one_side() {
        let values: Vec<f64> = (1..=9).map(f64::from).collect(); // interval of ranks 2 and 8
        for (limit, verdict) in [
            (8.0, Verdict::Met),
            (7.9, Verdict::Undecided),
            (2.0, Verdict::Undecided),
            (1.9, Verdict::Missed),
        ] {
            let goal = Goal::median("restore".to_owned(), limit, &values);
            assert_eq!((goal.verdict, goal.value), (verdict, Some(5.0)), "{limit}");
        }
    }

    #[test]
    fn without_enough_samples_nothing_is_decided() {
        let goal = Goal::median("restore".to_owned(), 1000.0, &[1.0, 2.0]);
        assert_eq!((goal.verdict, goal.ci), (Verdict::Undecided, None));
        let goal = Goal::ratio("excess".to_owned(), 0.5, &[], &[1.0]);
        assert_eq!((goal.verdict, goal.value), (Verdict::Undecided, None));
    }

    #[test]
    fn shares_are_judged_by_their_ratio() {
        let goal = |share| Goal::ratio("memory".to_owned(), 0.1, &[share; 8], &[1.0; 8]).verdict;
        assert_eq!((goal(0.05), goal(0.2)), (Verdict::Met, Verdict::Missed));
    }
}
