//! Figures and timelines as comma-separated values.

use std::fmt::Write;

use serde_json::Value;

use crate::html::Shown;

/// One row per run: its name, what was simulated, and each figure of its report, named by its place in the JSON
/// document (`latency_us.p99`).
pub fn figures(runs: &[Shown<'_>]) -> String {
    let mut text = String::new();
    for (index, run) in runs.iter().enumerate() {
        let mut cells = vec![
            ("run".to_owned(), field(run.name)),
            ("nodes".to_owned(), run.settings.nodes.to_string()),
            ("node_memory_bytes".to_owned(), run.settings.node_bytes.to_string()),
            ("pool_size_bytes".to_owned(), run.settings.pool_bytes.to_string()),
        ];
        flat("", &serde_json::to_value(run.report).unwrap_or_default(), &mut cells);
        let policies = serde_json::to_string(&run.settings.policies).unwrap_or_default();
        cells.push(("policies".to_owned(), field(&policies)));
        if index == 0 {
            let names: Vec<&str> = cells.iter().map(|(name, _)| name.as_str()).collect();
            let _ = writeln!(text, "{}", names.join(","));
        }
        let values: Vec<&str> = cells.iter().map(|(_, value)| value.as_str()).collect();
        let _ = writeln!(text, "{}", values.join(","));
    }
    text
}

/// One row per run and interval.
pub fn timelines(runs: &[Shown<'_>]) -> String {
    let mut text = "run,begin_us,width_us,arrivals,failed,violations,cold,clone,ghost,warm,instances_mean,\
                    instances_max,near_bytes_mean,near_bytes_max,pool_bytes_mean,pool_bytes_max,far_bytes_mean,\
                    far_bytes_max\n"
        .to_owned();
    for run in runs {
        let (name, width_us) = (field(run.name), run.summary.timeline.width_us);
        for (index, one) in run.summary.timeline.intervals.iter().enumerate() {
            let begin_us = index as u64 * width_us;
            // The last interval ends with the run.
            let us = run.summary.end_us.saturating_sub(begin_us).clamp(1, width_us);
            let [cold, clone, ghost, warm] = one.starts;
            let _ = write!(
                text,
                "{name},{begin_us},{width_us},{},{},{},{cold},{clone},{ghost},{warm}",
                one.arrivals, one.failed, one.violations
            );
            for (area, peak) in one.areas.iter().zip(one.peaks) {
                let _ = write!(text, ",{:.3},{peak}", *area as f64 / us as f64);
            }
            text.push('\n');
        }
    }
    text
}

/// The values of a document, by their places.
fn flat(place: &str, value: &Value, cells: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let inner = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                flat(&inner, value, cells);
            }
        }
        Value::Null => cells.push((place.to_owned(), String::new())),
        Value::String(text) => cells.push((place.to_owned(), field(text))),
        other => cells.push((place.to_owned(), other.to_string())),
    }
}

/// A field, quoted if it has to be.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
