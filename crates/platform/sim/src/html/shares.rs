//! Charts of runs with shares of near memory: memory in all against the rate of calls, and slower runs by tolerance.

use std::collections::BTreeMap;

use farfork_policy::settings::Share;

use super::chart::{Axis, Chart, Line, bytes, count};
use super::{DRAWN, Shown, percent};
use crate::summary::TOLERANCES_PERMILLE;

/// A figure of a run.
type Figure = fn(&Shown<'_>) -> f64;

/// The charts of these runs; none without shares.
pub fn charts<'a>(runs: &[Shown<'a>]) -> Vec<Chart<'a>> {
    let with: Vec<Shown<'a>> =
        runs.iter().filter(|run| run.settings.policies.share.is_some()).copied().collect();
    if with.is_empty() {
        return Vec::new();
    }
    let near: Figure = |run| run.report.memory_bytes.near.mean as f64;
    let instances: Figure = |run| run.report.instances.mean;
    let against = [
        against_rate(&with, "Near memory of all instances (mean) by calls per second", bytes, near),
        against_rate(&with, "Instances (mean) by calls per second", count, instances),
    ];
    against.into_iter().flatten().chain([by_tolerance(&with)]).collect()
}

/// Calls per second.
fn rate(run: &Shown<'_>) -> f64 {
    run.report.requests as f64 * 1e6 / run.summary.end_us.max(1) as f64
}

/// The policy of shares in words.
fn named(run: &Shown<'_>) -> String {
    match run.settings.policies.share {
        None => "not decided".to_owned(),
        Some(Share::Fixed(policy)) => {
            format!("fixed {}", f64::from(policy.local_permille.permille()) / 1000.0)
        }
        Some(Share::Dynamic(policy)) => {
            format!("dynamic {} %", policy.tolerance_permille as f64 / 10.0)
        }
        Some(Share::Adaptive(policy)) => {
            format!("adaptive {} %", policy.tolerance_permille as f64 / 10.0)
        }
    }
}

/// A line for each policy of shares with which traces of several rates were run.
fn against_rate<'a>(
    runs: &[Shown<'a>],
    title: &'static str,
    value: fn(f64) -> String,
    figure: Figure,
) -> Option<Chart<'a>> {
    let mut lines: BTreeMap<String, Vec<(f64, f64, &str)>> = BTreeMap::new();
    for run in runs {
        let points = lines.entry(named(run)).or_default();
        points.push((rate(run), figure(run), &run.report.trace_sha256));
    }
    let line = |(name, mut points): (String, Vec<(f64, f64, &str)>)| {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let traces = points.windows(2).filter(|pair| pair[0].2 != pair[1].2).count();
        let points = points.into_iter().map(|(rate, value, _)| (rate, value)).collect();
        (traces > 0).then_some(Line { name: name.into(), points, is_stepped: false })
    };
    let lines: Vec<Line<'a>> = lines.into_iter().filter_map(line).take(DRAWN).collect();
    (!lines.is_empty()).then_some(Chart {
        title,
        lines,
        x: Axis { value: count, is_logarithmic: true },
        y: Axis { value, is_logarithmic: false },
    })
}

/// Calls whose runs were slower than with all memory near, by tolerance.
fn by_tolerance<'a>(runs: &[Shown<'a>]) -> Chart<'a> {
    let line = |run: &Shown<'a>| {
        let completed = run.report.completed.max(1) as f64;
        let slower = run.summary.slower.iter().map(|calls| *calls as f64 / completed);
        let tolerances = TOLERANCES_PERMILLE.iter().map(|permille| *permille as f64 / 1000.0);
        Line { name: run.name.into(), points: tolerances.zip(slower).collect(), is_stepped: false }
    };
    Chart {
        title: "Share of calls that ran slower than with all memory near, by more than a tolerance",
        lines: runs.iter().take(DRAWN).map(line).collect(),
        x: Axis { value: percent, is_logarithmic: false },
        y: Axis { value: percent, is_logarithmic: false },
    }
}
