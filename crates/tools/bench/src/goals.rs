//! Goals, and whether they were met.

use serde::Serialize;

use crate::stats::{Interval, median, median_interval, ratio};

/// A goal and the measured value. Values above the limit miss it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Subject and metric.
    pub goal: String,
    /// The limit.
    pub limit: f64,
    /// The measured value.
    pub value: Option<f64>,
    /// Its 95 % interval. An end that is `null` in JSON is unbounded.
    pub ci: Option<[f64; 2]>,
    /// Whether the goal was met.
    pub verdict: Verdict,
}

/// Whether a goal was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval is at or below the limit.
    Met,
    /// The whole interval is above the limit.
    Missed,
    /// The interval straddles the limit, or there is none.
    Undecided,
}

impl Goal {
    /// Goal: the median of `values` is at most `limit`.
    pub fn median(goal: String, limit: f64, values: &[f64]) -> Goal {
        let value = Some(median(values)).filter(|value| value.is_finite());
        Goal::judged(goal, limit, value, median_interval(values))
    }

    /// Goal: the median of `values` is at most `limit` times the median of `others`.
    pub fn ratio(goal: String, limit: f64, values: &[f64], others: &[f64]) -> Goal {
        match ratio(values, others) {
            Some((value, interval)) => Goal::judged(goal, limit, Some(value), interval),
            None => Goal::judged(goal, limit, None, None),
        }
    }

    fn judged(goal: String, limit: f64, value: Option<f64>, interval: Option<Interval>) -> Goal {
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
    fn a_ratio_of_medians_is_judged() {
        let goal = |share| Goal::ratio("memory".to_owned(), 0.1, &[share; 8], &[1.0; 8]).verdict;
        assert_eq!((goal(0.05), goal(0.2)), (Verdict::Met, Verdict::Missed));
    }
}
