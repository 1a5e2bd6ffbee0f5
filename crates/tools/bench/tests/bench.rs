//! `farfork bench` as people and scripts call it.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_farfork-bench");
/// The other subjects are larger, and take minutes where this one takes seconds.
const SUBJECT: &str = "c-24M";
const SERIES: [(&str, &str); 12] = [
    ("cold", "request to response"),
    ("cold", "local memory after one call"),
    ("local-fork", "excess of first call"),
    ("clone", "request to first instruction"),
    ("clone", "request to response"),
    ("clone", "excess of first call"),
    ("clone", "local memory after one call"),
    ("warm", "request to response"),
    ("warm-idle-10ms", "request to response"),
    ("herd", "clones that answered"),
    ("checkpoint", "time frozen"),
    ("memcpy", "memcpy of the same bytes"),
];

/// Runs `farfork bench` with these arguments. `None` where the machine cannot run it.
fn bench(arguments: &[&str]) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: benchmarks mount a pool and make PID namespaces: run as root");
        return None;
    }
    if !Path::new(PROGRAM).with_file_name("farfork").is_file() {
        println!("skipped: farfork is not built: cargo build --package farfork-cli");
        return None;
    }
    Some(Command::new(PROGRAM).args(arguments).output().expect("farfork-bench starts"))
}

/// The document that a quick run prints.
fn report(arguments: &[&str]) -> Option<Value> {
    let output = bench(&[arguments, &["--quick", "--json"]].concat())?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("stdout is JSON"))
}

#[test]
fn a_quick_run_gives_every_row_and_judges_every_goal() {
    let Some(report) = report(&["fork", "--only", SUBJECT]) else { return };
    for key in ["cpu", "cores", "kernel", "memory_bytes", "load"] {
        assert!(!report["machine"][key].is_null(), "{key}");
    }
    check(&report, SUBJECT);
    let goals = report["goals"].as_array().expect("goals");
    assert_eq!(goals.len(), 3, "nothing else was measured: {goals:?}");
}

#[test]
fn an_unknown_subject_is_refused() {
    let Some(output) = bench(&["fork", "--only", "c-1M"]) else { return };
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("unknown subject c-1M") && message.contains("c-24M"), "{message}");
}

#[test]
fn each_kind_has_a_cost_and_each_phase_a_time() {
    let Some(report) = report(&["features"]) else { return };
    let rows = report["rows"].as_array().expect("rows");
    let figure = |case: &str, metric: &str, key: &str| {
        let row = rows.iter().find(|row| row["case"] == case && row["metric"] == metric);
        row.and_then(|row| row[key].as_f64()).unwrap_or_else(|| panic!("{case}, {metric}: {key}"))
    };
    // A cost is a difference of noisy times. Only its presence is certain.
    for kind in ["thread", "anonymous mapping", "regular file", "eventfd", "listening TCP socket"] {
        figure(kind, "restore time of one more", "median");
    }
    let many = "many things";
    for phase in ["memory", "state and threads", "process"] {
        let metric = format!("restore phase: {phase}");
        assert!(figure(many, &metric, "min") > 0.0, "{phase} takes no time");
    }
    // No ordinary process has so many.
    assert!(figure(many, "mappings", "median") > 450.0);
}

fn check(report: &Value, subject: &str) {
    let rows = report["rows"].as_array().expect("rows");
    for (start, metric) in SERIES {
        let case = format!("{subject}/{start}");
        let row = rows.iter().find(|row| row["case"] == *case && row["metric"] == metric);
        let row = row.unwrap_or_else(|| panic!("no row {case}, {metric}"));
        let figure = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert!(figure("min") <= figure("median") && figure("median") <= figure("max"), "{row}");
        assert!(figure("n") >= 1.0 && row["unit"].is_string(), "{row}");
        assert!(figure("n") < 6.0 || figure("ci_low") <= figure("ci_high"), "{row}");
    }
    let criu = rows.iter().find(|row| row["case"] == format!("{subject}/criu"));
    let is_explained = |row: &Value| row["note"].is_string() || row["median"].is_number();
    assert!(criu.is_some_and(is_explained), "no row gives the reason why CRIU was not measured");
    let goals = report["goals"].as_array().expect("goals");
    let of_subject = |goal: &&Value| {
        goal["goal"].as_str().is_some_and(|name| name.starts_with(&format!("{subject}:")))
    };
    assert_eq!(goals.iter().filter(of_subject).count(), 3, "restore, excess, memory");
    for goal in goals.iter().filter(of_subject) {
        let verdict = goal["verdict"].as_str().unwrap_or_default();
        assert!(["met", "missed", "undecided"].contains(&verdict), "{goal}");
    }
}
