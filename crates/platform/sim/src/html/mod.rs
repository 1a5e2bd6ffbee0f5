//! A report as one page that needs no network: tables and charts of runs, side by side.
//!
//! The page has no scripts. Charts are drawn as SVG, with at most [`DRAWN`] runs; tables have all of them.

mod chart;
mod shares;

use std::fmt::Write;

use crate::distribution::Distribution;
use crate::report::Report;
use crate::settings::{Scheduling, Settings};
use crate::summary::Summary;
use crate::timeline::{FAR, INSTANCES, Interval, NEAR, POOL};
use chart::{Axis, Chart, Line, bytes, count, duration};

/// Runs that charts show.
pub const DRAWN: usize = 8;
/// Points of a distribution.
const POINTS: usize = 240;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;\
color:#1d2733;background:#fff}h1{font-size:1.6rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}\
.wide{overflow-x:auto}table{border-collapse:collapse}td,th{padding:.15rem 1.2rem .15rem 0;text-align:left;\
vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}code,pre{font-size:.85em;\
word-break:break-all;white-space:pre-wrap}\
tr>th:first-child{white-space:nowrap;position:sticky;left:0;background:#fff}.note{background:#fff4d6;padding:.6rem 1rem;\
border-left:4px solid #d9a400}figure{margin:0}svg{width:100%;height:auto}\
svg text{font:11px system-ui,sans-serif;fill:#5a6672}.line{fill:none;stroke-width:1.5}\
.axis{stroke:#b8c2cc;stroke-width:1}.grid{stroke:#e4e9ee;stroke-width:1}";

/// A run, as a report shows it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// What makes it different from the others.
    pub name: &'a str,
    /// Its figures.
    pub report: &'a Report,
    /// What it has shown over time.
    pub summary: &'a Summary,
    /// What was simulated.
    pub settings: &'a Settings,
}

/// The page. Notes say what was assumed.
pub fn page(runs: &[Shown<'_>], notes: &[String]) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>farfork sim</title>\n<style>{STYLE}</style></head><body>\n\
         <h1>farfork sim</h1>\n\
         <p class=\"note\"><b>Modelled.</b> {} instances, memory \
         and time were simulated. Nothing on this page was measured on this machine.</p>\n",
        decided(runs)
    );
    if runs.iter().any(|run| run.report.synthetic) {
        page.push_str(
            "<p class=\"note\"><b>Synthetic trace.</b> The calls were generated from published statistics, and \
             not recorded on a platform.</p>\n",
        );
    }
    page.push_str(&figures(runs));
    for note in notes {
        let _ = writeln!(page, "<p>{}</p>", escaped(note));
    }
    if runs.len() > DRAWN {
        let _ = writeln!(page, "<p>The charts show the first {DRAWN} of {} runs.</p>", runs.len());
    }
    let drawn = &runs[..runs.len().min(DRAWN)];
    for chart in shares::charts(runs).into_iter().chain(charts(drawn)) {
        page.push_str(&chart.figure());
    }
    page.push_str(&settings(runs));
    page.push_str("</body></html>\n");
    page
}

/// What decided in these runs.
fn decided(runs: &[Shown<'_>]) -> &'static str {
    let is_paper = |run: &Shown<'_>| run.settings.scheduling == Scheduling::Paper;
    if !runs.iter().any(is_paper) {
        "The platform's own scheduler and policies decided;"
    } else if runs.iter().all(is_paper) {
        "Not the platform's scheduler decided, but the policy of the paper of elastic memory (no queue, a new instance \
         for each call that finds none idle, kept for 60 s after its last call, no limits of memory);"
    } else {
        "In some runs the platform's own scheduler and policies decided, in others (paper) that of the paper of \
         elastic memory, which has no queue and no limits;"
    }
}

/// A row of the table: its title, and its cell of a run.
type Row = (&'static str, fn(&Shown<'_>) -> String);

/// The rows of the table of figures.
const ROWS: [Row; 32] = [
    ("requests", |run| run.report.requests.to_string()),
    ("completed", |run| run.report.completed.to_string()),
    ("failed", |run| run.report.failed.to_string()),
    ("malformed rows", |run| run.report.rows_malformed.to_string()),
    ("latency, mean", |run| duration(run.report.latency_us.mean as f64)),
    ("latency, P50", |run| duration(run.report.latency_us.p50 as f64)),
    ("latency, P99", |run| duration(run.report.latency_us.p99 as f64)),
    ("latency, longest", |run| duration(run.report.latency_us.max as f64)),
    ("violations: over 110 % of their run", |run| {
        share(run.report.violations, run.report.completed)
    }),
    ("runs over 1 % slower than all near", |run| {
        share(run.report.slower_runs.over_1_percent, run.report.completed)
    }),
    ("runs over 5 % slower", |run| {
        share(run.report.slower_runs.over_5_percent, run.report.completed)
    }),
    ("runs over 10 % slower", |run| {
        share(run.report.slower_runs.over_10_percent, run.report.completed)
    }),
    ("runs over 20 % slower", |run| {
        share(run.report.slower_runs.over_20_percent, run.report.completed)
    }),
    ("cold starts", |run| share(run.report.starts.cold, run.report.completed)),
    ("clones", |run| share(run.report.starts.clone, run.report.completed)),
    ("clones in ghosts", |run| share(run.report.starts.ghost, run.report.completed)),
    ("warm", |run| share(run.report.starts.warm, run.report.completed)),
    ("instances, mean", |run| format!("{:.2}", run.report.instances.mean)),
    ("instances, most", |run| run.report.instances.max.to_string()),
    ("near memory, mean", |run| bytes(run.report.memory_bytes.near.mean as f64)),
    ("near memory, P50", |run| bytes(run.report.memory_bytes.near.p50 as f64)),
    ("near memory, most", |run| bytes(run.report.memory_bytes.near.max as f64)),
    ("pool, most", |run| bytes(run.report.memory_bytes.pool as f64)),
    ("far memory, most", |run| bytes(run.report.memory_bytes.far as f64)),
    ("simulated time", |run| duration(run.summary.end_us as f64)),
    ("policy", |run| {
        let is_paper = run.settings.scheduling == Scheduling::Paper;
        if is_paper { "paper" } else { "platform" }.to_owned()
    }),
    ("nodes", |run| limited(run, run.settings.nodes.to_string())),
    ("memory of a node", |run| limited(run, bytes(run.settings.node_bytes as f64))),
    ("size of the pool", |run| limited(run, bytes(run.settings.pool_bytes as f64))),
    ("seed", |run| run.report.seed.to_string()),
    ("SHA-256 of the trace", |run| format!("<code>{}</code>", run.report.trace_sha256)),
    ("version", |run| format!("farfork {}", run.report.version)),
];

/// A limit, where limits count.
fn limited(run: &Shown<'_>, limit: String) -> String {
    if run.settings.scheduling == Scheduling::Paper { "no limit".to_owned() } else { limit }
}

fn share(count: u64, whole: u64) -> String {
    format!("{count} ({:.2} %)", count as f64 * 100.0 / whole.max(1) as f64)
}

fn figures(runs: &[Shown<'_>]) -> String {
    let mut table = "<div class=\"wide\"><table id=\"figures\">\n".to_owned();
    if runs.len() > 1 {
        table.push_str("<tr><th></th>");
        for run in runs {
            let _ = write!(table, "<th class=\"n\">{}</th>", escaped(run.name));
        }
        table.push_str("</tr>\n");
    }
    for (title, cell) in ROWS {
        let _ = write!(table, "<tr><th>{title}</th>");
        for run in runs {
            let _ = write!(table, "<td class=\"n\">{}</td>", cell(run));
        }
        table.push_str("</tr>\n");
    }
    table + "</table></div>\n"
}

/// Settings of policies, as a file with policies holds them.
fn settings(runs: &[Shown<'_>]) -> String {
    let mut text = "<h2>Policies</h2>\n".to_owned();
    let json =
        |run: &Shown<'_>| serde_json::to_string_pretty(&run.settings.policies).unwrap_or_default();
    let is_one = runs.windows(2).all(|pair| pair[0].settings.policies == pair[1].settings.policies);
    for run in &runs[..if is_one { runs.len().min(1) } else { runs.len() }] {
        let name = if is_one { "All runs" } else { run.name };
        let (name, json) = (escaped(name), escaped(&json(run)));
        let _ = writeln!(text, "<details><summary>{name}</summary><pre>{json}</pre></details>");
    }
    text
}

fn charts<'a>(runs: &[Shown<'a>]) -> Vec<Chart<'a>> {
    let mut charts = vec![over_time(runs, "Requests per second", count, |run| {
        per_second(run, |interval| interval.arrivals)
    })];
    for (title, level, value) in [
        ("Instances (most within each interval)", INSTANCES, count as fn(f64) -> String),
        ("Near memory of all nodes (most within each interval)", NEAR, bytes),
        ("Pool (most within each interval)", POOL, bytes),
        ("Far memory (most within each interval)", FAR, bytes),
    ] {
        charts.push(over_time(runs, title, value, |run| {
            run.summary.timeline.intervals.iter().map(|one| one.peaks[level] as f64).collect()
        }));
    }
    charts.push(over_time(runs, "Violations per second", count, |run| {
        per_second(run, |interval| interval.violations)
    }));
    for (title, kind) in [
        ("Calls with a cold start, per second", 0),
        ("Calls with a clone, per second", 1),
        ("Calls with a clone in a ghost, per second", 2),
        ("Warm calls per second", 3),
    ] {
        charts.push(over_time(runs, title, count, |run| {
            per_second(run, |interval| interval.starts[kind])
        }));
    }
    charts.push(latencies(runs));
    charts.push(memory(runs));
    charts
}

/// A chart over time.
fn over_time<'a>(
    runs: &[Shown<'a>],
    title: &'static str,
    value: fn(f64) -> String,
    values: impl Fn(&Shown<'a>) -> Vec<f64>,
) -> Chart<'a> {
    let line = |run: &Shown<'a>| {
        let width = run.summary.timeline.width_us as f64;
        let values = values(run);
        let points = values.iter().enumerate().map(|(index, value)| (index as f64 * width, *value));
        Line { name: run.name.into(), points: points.collect(), is_stepped: true }
    };
    Chart {
        title,
        lines: runs.iter().map(line).collect(),
        x: Axis { value: duration, is_logarithmic: false },
        y: Axis { value, is_logarithmic: false },
    }
}

fn per_second(run: &Shown<'_>, figure: impl Fn(&Interval) -> u64) -> Vec<f64> {
    let width_s = run.summary.timeline.width_us as f64 / 1e6;
    run.summary.timeline.intervals.iter().map(|one| figure(one) as f64 / width_s).collect()
}

/// The distribution of latencies.
fn latencies<'a>(runs: &[Shown<'a>]) -> Chart<'a> {
    let line = |run: &Shown<'a>| {
        let all = &run.summary.latencies;
        let (least, most) = (all.min().max(1) as f64, all.max().max(1) as f64);
        let at = |point: usize| least * (most / least).powf(point as f64 / (POINTS - 1) as f64);
        distribution(run.name, all, (0..POINTS).map(at).collect())
    };
    Chart {
        title: "Share of completed calls that took at most so long",
        lines: runs.iter().map(line).collect(),
        x: Axis { value: duration, is_logarithmic: true },
        y: Axis { value: percent, is_logarithmic: false },
    }
}

/// The distribution of near memory over time.
fn memory<'a>(runs: &[Shown<'a>]) -> Chart<'a> {
    let line = |run: &Shown<'a>| {
        let most = run.summary.near.max() as f64;
        let at = |point: usize| most * point as f64 / (POINTS - 1) as f64;
        distribution(run.name, &run.summary.near, (0..POINTS).map(at).collect())
    };
    Chart {
        title: "Share of time in which near memory was at most this",
        lines: runs.iter().map(line).collect(),
        x: Axis { value: bytes, is_logarithmic: false },
        y: Axis { value: percent, is_logarithmic: false },
    }
}

fn distribution<'a>(name: &'a str, all: &Distribution, mut limits: Vec<f64>) -> Line<'a> {
    if let Some(last) = limits.last_mut() {
        // The largest value, whatever the rounding.
        *last = all.max() as f64;
    }
    let shares = all.shares(&limits);
    Line { name: name.into(), points: limits.into_iter().zip(shares).collect(), is_stepped: false }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Text that is not markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
