//! The measured values, by case and metric. They become the rows of a report.

use serde::Serialize;

use crate::stats::{median, median_interval};

/// All values of one benchmark. Series are in the order of their first value.
#[derive(Debug, Default)]
pub struct Samples {
    series: Vec<Series>,
}

#[derive(Debug)]
struct Series {
    case: String,
    metric: &'static str,
    unit: &'static str,
    values: Vec<f64>,
    note: Option<String>,
}

/// A row of a report. Without values, the figures are absent and `note` says why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Subject and how it was started, e.g. `c-400M/clone`.
    pub case: String,
    /// What was measured.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Median.
    pub median: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Number of values.
    pub n: usize,
    /// Lower end of the median's 95 % interval.
    pub ci_low: Option<f64>,
    /// Its upper end.
    pub ci_high: Option<f64>,
    /// What a reader must know about the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Samples {
    /// Adds a value.
    pub fn add(&mut self, case: &str, metric: &'static str, unit: &'static str, value: f64) {
        self.series(case, metric, unit).values.push(value);
    }

    /// Adds a note: why a case was not measured, or what is special about it.
    pub fn note(&mut self, case: &str, metric: &'static str, unit: &'static str, note: &str) {
        self.series(case, metric, unit).note = Some(note.to_owned());
    }

    /// Metrics of a case in a unit, in the order of their first values.
    pub fn metrics(&self, case: &str, unit: &str) -> Vec<&'static str> {
        let of = |series: &&Series| series.case == case && series.unit == unit;
        self.series.iter().filter(of).map(|series| series.metric).collect()
    }

    /// The values of a series. Empty if there is none.
    pub fn values(&self, case: &str, metric: &str) -> &[f64] {
        let found = self.series.iter().find(|s| s.case == case && s.metric == metric);
        found.map_or(&[], |series| &series.values)
    }

    /// The rows of all series.
    pub fn rows(&self) -> Vec<Row> {
        self.series.iter().map(Series::row).collect()
    }

    fn series(&mut self, case: &str, metric: &'static str, unit: &'static str) -> &mut Series {
        let found = self.series.iter().position(|s| s.case == case && s.metric == metric);
        let index = found.unwrap_or_else(|| {
            let case = case.to_owned();
            self.series.push(Series { case, metric, unit, values: Vec::new(), note: None });
            self.series.len() - 1
        });
        &mut self.series[index]
    }
}

impl Series {
    fn row(&self) -> Row {
        let interval = median_interval(&self.values);
        let figure = |value: f64| Some(value).filter(|_| !self.values.is_empty());
        Row {
            case: self.case.clone(),
            metric: self.metric,
            unit: self.unit,
            median: figure(median(&self.values)),
            min: self.values.iter().copied().min_by(f64::total_cmp),
            max: self.values.iter().copied().max_by(f64::total_cmp),
            n: self.values.len(),
            ci_low: interval.map(|interval| interval.low),
            ci_high: interval.map(|interval| interval.high),
            note: self.note.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_the_order_of_measuring_and_hold_their_figures() {
        let mut samples = Samples::default();
        for value in [5.0, 1.0, 3.0] {
            samples.add("a/clone", "restore", "us", value);
            samples.add("a/fork", "response", "us", 10.0);
        }
        samples.note("a/criu", "response", "us", "there is none");
        let rows = samples.rows();
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(cases, ["a/clone", "a/fork", "a/criu"]);
        let first = &rows[0];
        assert_eq!((first.median, first.min, first.max), (Some(3.0), Some(1.0), Some(5.0)));
        assert_eq!((first.n, first.ci_low), (3, None));
        assert_eq!((rows[2].n, rows[2].median, rows[2].min), (0, None, None));
        assert_eq!(samples.values("a/fork", "response"), [10.0; 3]);
        assert!(samples.values("b", "response").is_empty());
    }
}
