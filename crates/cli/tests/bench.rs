//! `farfork bench fork` as a program that people and scripts call.

use serde_json::Value;
use std::process::Command;

const SUBJECTS: [&str; 5] = ["c-24M", "c-100M", "c-400M", "c-400M-scattered", "c-1600M"];
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

#[test]
fn a_quick_run_gives_every_row_and_judges_every_goal() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: benchmarks mount a pool and make PID namespaces: run as root");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_farfork"))
        .args(["bench", "fork", "--quick", "--json"])
        .output()
        .expect("farfork starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    for key in ["cpu", "cores", "kernel", "memory_bytes", "load"] {
        assert!(!report["machine"][key].is_null(), "{key}");
    }
    let notes = report["notes"].to_string();
    let measured = |subject: &&&str| !notes.contains(&format!("{subject} was not measured"));
    for subject in SUBJECTS.iter().filter(measured) {
        check(&report, subject);
    }
}

#[test]
fn every_kind_of_thing_has_a_price_and_every_phase_its_time() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: benchmarks mount a pool and make PID namespaces: run as root");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_farfork"))
        .args(["bench", "features", "--quick", "--json"])
        .output()
        .expect("farfork starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    let rows = report["rows"].as_array().expect("rows");
    let median = |case: &str, metric: &str| {
        let row = rows.iter().find(|row| row["case"] == case && row["metric"] == metric);
        row.and_then(|row| row["median"].as_f64()).unwrap_or_else(|| panic!("{case}, {metric}"))
    };
    for kind in ["thread", "anonymous mapping", "regular file", "eventfd", "listening TCP socket"] {
        median(kind, "restore time of one more");
    }
    // A thread is a call of its own and more: this cannot be nothing.
    assert!(median("thread", "restore time of one more") > 1.0);
    let many = "many things";
    let phases = ["memory", "state and threads", "process"];
    let sum: f64 = phases.iter().map(|name| median(many, &format!("restore phase: {name}"))).sum();
    assert!(sum > 0.0 && sum < 1.5 * median(many, "request to first instruction"), "{sum}");
    assert!(median(many, "mappings") > 450.0);
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
    let is_told = |row: &Value| row["note"].is_string() || row["median"].is_number();
    assert!(criu.is_some_and(is_told), "CRIU is not left out in silence");
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
