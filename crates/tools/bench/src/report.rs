//! The report of a benchmark.

use std::fmt::Write;

use serde::Serialize;

use crate::goals::{Goal, Verdict};
use crate::machine::Machine;
use crate::samples::Row;

/// One run of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark.
    pub benchmark: &'static str,
    /// Whether it was a quick run, whose figures are not for citing.
    pub quick: bool,
    /// The machine that it ran on.
    pub machine: Machine,
    /// Version of farfork.
    pub version: &'static str,
    /// What was measured.
    pub rows: Vec<Row>,
    /// The goals, judged.
    pub goals: Vec<Goal>,
    /// What a reader must know about the whole run.
    pub notes: Vec<String>,
}

impl Report {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.sentence());
        for row in &self.rows {
            let _ = writeln!(text, "{}", row_line(row));
        }
        let _ = writeln!(text);
        for goal in &self.goals {
            let _ = writeln!(text, "{}", goal_line(goal));
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }
}

fn row_line(row: &Row) -> String {
    let head = format!("{:<26} {:<28}", row.case, row.metric);
    let figures = match (row.median, row.ci_low, row.ci_high) {
        (Some(median), Some(low), Some(high)) => {
            let interval = format!("[{}, {}]", figure(low), figure(high));
            format!("{:>12} {:<8} {interval:<24} n={}", figure(median), row.unit, row.n)
        }
        (Some(median), ..) => format!("{:>12} {:<8} n={}", figure(median), row.unit, row.n),
        _ => "not measured".to_owned(),
    };
    let note = row.note.as_ref().map_or(String::new(), |note| format!("  ({note})"));
    format!("{head} {figures}{note}")
}

fn goal_line(goal: &Goal) -> String {
    let verdict = match goal.verdict {
        Verdict::Met => "met",
        Verdict::Missed => "missed",
        Verdict::Undecided => "undecided",
    };
    let value = goal.value.map_or("-".to_owned(), figure);
    let interval = goal
        .ci
        .map_or(String::new(), |[low, high]| format!(" [{}, {}]", figure(low), figure(high)));
    format!("{verdict:<10} {}: at most {}, is {value}{interval}", goal.goal, figure(goal.limit))
}

/// Three or more significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
