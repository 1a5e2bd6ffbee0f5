//! A report as one page that needs no network.

use std::fmt::Write;

use crate::report::Report;
use crate::run::{Ended, Settings};
use crate::trace::Trace;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 180.0;
/// Space for the labels of the axes.
const LEFT: f64 = 80.0;
const BELOW: f64 = 24.0;
/// Points of a chart.
const POINTS: usize = 390;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1d2733;background:#fff}h1{font-size:1.6rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}\
table{border-collapse:collapse}td,th{padding:.15rem 1.2rem .15rem 0;text-align:left;vertical-align:top}\
td.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:.85em;word-break:break-all}\
.note{background:#fff4d6;padding:.6rem 1rem;border-left:4px solid #d9a400}svg{width:100%;height:auto}\
svg text{font:11px system-ui,sans-serif;fill:#5a6672}.area{fill:#cfe0f5}.line{fill:none;stroke:#1f5fae;\
stroke-width:1.5}.axis{stroke:#b8c2cc;stroke-width:1}";

/// A chart: values at equal distances, and how to write a value.
struct Chart<'a> {
    title: &'a str,
    values: Vec<f64>,
    value: fn(f64) -> String,
    /// Below the left, the middle and the right.
    ticks: [String; 3],
    is_filled: bool,
}

/// The page.
pub fn page(trace: &Trace, ended: &Ended, settings: &Settings, report: &Report) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>farfork sim</title>\n<style>{STYLE}</style></head><body>\n\
         <h1>farfork sim</h1>\n\
         <p class=\"note\"><b>Modelled.</b> The platform's own scheduler and policies decided; instances, memory \
         and time were simulated. Nothing on this page was measured on this machine.</p>\n"
    );
    page.push_str(&facts(trace, settings, report));
    page.push_str(&starts(report));
    for chart in charts(ended) {
        page.push_str(&chart.svg());
    }
    page.push_str("</body></html>\n");
    page
}

fn facts(trace: &Trace, settings: &Settings, report: &Report) -> String {
    let us = |us: u64| duration(us as f64);
    let rows = [
        ("requests", report.requests.to_string()),
        ("completed", report.completed.to_string()),
        ("failed", report.failed.to_string()),
        ("malformed rows", report.rows_malformed.to_string()),
        ("latency, mean", us(report.latency_us.mean)),
        ("latency, P50", us(report.latency_us.p50)),
        ("latency, P99", us(report.latency_us.p99)),
        ("latency, longest", us(report.latency_us.max)),
        ("calls over 110 % of their run", report.violations.to_string()),
        ("instances, mean", format!("{:.2}", report.instances.mean)),
        ("instances, most", report.instances.max.to_string()),
        ("near memory, mean", bytes(report.memory_bytes.near.mean as f64)),
        ("near memory, most", bytes(report.memory_bytes.near.max as f64)),
        ("pool, most", bytes(report.memory_bytes.pool as f64)),
        ("functions", trace.functions.len().to_string()),
        ("nodes", format!("{} of {}", settings.nodes, bytes(settings.node_bytes as f64))),
        ("pool", bytes(settings.pool_bytes as f64)),
        ("seed", report.seed.to_string()),
        ("SHA-256 of the trace", format!("<code>{}</code>", report.trace_sha256)),
        ("version", format!("farfork {}", report.version)),
    ];
    let mut table = "<table>\n".to_owned();
    for (name, value) in rows {
        let _ = writeln!(table, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    table.push_str("</table>\n");
    for note in &trace.notes {
        let _ = writeln!(table, "<p>{}</p>", escaped(note));
    }
    table
}

fn starts(report: &Report) -> String {
    let starts = report.starts;
    let kinds = [
        ("cold", starts.cold),
        ("clone", starts.clone),
        ("ghost", starts.ghost),
        ("warm", starts.warm),
    ];
    let mut table = "<h2>Completed calls by start</h2>\n<table>\n".to_owned();
    for (name, count) in kinds {
        let share = count as f64 * 100.0 / (report.completed.max(1)) as f64;
        let _ = writeln!(
            table,
            "<tr><th>{name}</th><td class=\"n\">{count}</td><td class=\"n\">{share:.2} %</td></tr>"
        );
    }
    table + "</table>\n"
}

fn charts(ended: &Ended) -> [Chart<'static>; 4] {
    let Ended { records, series, end_us, .. } = ended;
    let over_time = || ["0".to_owned(), duration(*end_us as f64 / 2.0), duration(*end_us as f64)];
    let mut arrivals = vec![0.0; POINTS];
    for record in records {
        let part = u128::from(record.arrival_us) * POINTS as u128 / u128::from((*end_us).max(1));
        arrivals[(part as usize).min(POINTS - 1)] += 1.0;
    }
    let part_s = (*end_us).max(1) as f64 / 1e6 / POINTS as f64;
    arrivals.iter_mut().for_each(|count| *count /= part_s);
    let (latencies, ticks) = cdf(ended);
    [
        Chart {
            title: "Requests per second",
            values: arrivals,
            value: plain,
            ticks: over_time(),
            is_filled: true,
        },
        Chart {
            title: "Instances (most within each interval)",
            values: series.peaks(*end_us, POINTS, |totals| totals.instances),
            value: plain,
            ticks: over_time(),
            is_filled: true,
        },
        Chart {
            title: "Near memory of all nodes (most within each interval)",
            values: series.peaks(*end_us, POINTS, |totals| totals.near_bytes),
            value: bytes,
            ticks: over_time(),
            is_filled: true,
        },
        Chart {
            title: "Share of completed calls that took at most so long",
            values: latencies,
            value: |share| format!("{:.0} %", share * 100.0),
            ticks,
            is_filled: false,
        },
    ]
}

/// Shares of calls up to latencies in equal steps of their logarithm.
fn cdf(ended: &Ended) -> (Vec<f64>, [String; 3]) {
    let completed = ended.records.iter().filter(|record| record.start.is_some());
    let mut all: Vec<u64> = completed.map(|record| record.latency_us.max(1)).collect();
    all.sort_unstable();
    let (least, most) = match (all.first(), all.last()) {
        (Some(least), Some(most)) => ((*least as f64).ln(), (*most as f64).ln()),
        _ => (0.0, 0.0),
    };
    let at = |share: f64| (least + (most - least) * share).exp();
    let share = |point: usize| {
        // The last point is the longest latency, whatever the rounding.
        if point == POINTS - 1 {
            return f64::from(u8::from(!all.is_empty()));
        }
        let limit = at(point as f64 / (POINTS - 1) as f64);
        all.partition_point(|us| *us as f64 <= limit) as f64 / all.len().max(1) as f64
    };
    let values = (0..POINTS).map(share).collect();
    (values, [at(0.0), at(0.5), at(1.0)].map(duration))
}

impl Chart<'_> {
    fn svg(&self) -> String {
        let Chart { title, values, value, ticks, is_filled } = self;
        let most = values.iter().copied().fold(0.0, f64::max);
        let step = (WIDTH - LEFT) / (values.len().max(2) - 1) as f64;
        let y = |value: f64| HEIGHT - value / most.max(f64::MIN_POSITIVE) * (HEIGHT - 10.0);
        let mut line = String::new();
        for (index, value) in values.iter().enumerate() {
            let _ = write!(line, "{:.1},{:.1} ", LEFT + index as f64 * step, y(*value));
        }
        let line = line.trim_end();
        let (bottom, whole) = (HEIGHT, HEIGHT + BELOW);
        let mut svg = format!(
            "<h2>{title}</h2>\n<svg viewBox=\"0 0 {WIDTH} {whole}\" role=\"img\" aria-label=\"{title}\">\n"
        );
        if *is_filled {
            let _ = writeln!(
                svg,
                "<polygon class=\"area\" points=\"{LEFT},{bottom} {line} {WIDTH},{bottom}\"/>"
            );
        }
        let _ = writeln!(svg, "<polyline class=\"line\" points=\"{line}\"/>");
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{WIDTH}\" y2=\"{bottom}\"/>"
        );
        for (share, at) in [(0.0, bottom), (0.5, bottom / 2.0 + 5.0), (1.0, 14.0)] {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{at}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                value(most * share)
            );
        }
        let places = [(LEFT, "start"), ((LEFT + WIDTH) / 2.0, "middle"), (WIDTH, "end")];
        for ((x, anchor), text) in places.into_iter().zip(ticks) {
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{text}</text>",
                HEIGHT + 16.0
            );
        }
        svg + "</svg>\n"
    }
}

fn plain(figure: f64) -> String {
    if figure >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.1}") }
}

/// A size with its unit.
fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration in microseconds with its unit.
fn duration(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.0} us"),
        _ if us < 1e6 => format!("{:.1} ms", us / 1e3),
        _ if us < 120e6 => format!("{:.1} s", us / 1e6),
        _ if us < 7200e6 => format!("{:.1} min", us / 60e6),
        _ => format!("{:.1} h", us / 3600e6),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
