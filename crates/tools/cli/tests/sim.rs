//! `farfork sim`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const HEADER: &str = "function,arrival_us,duration_us,payload_bytes\n";

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
    command.arg("sim").args(arguments).output().expect("farfork starts")
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file with this text.
fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn a_trace_is_simulated_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let rows = "hello,0,10300,1\nhello,1000000,10300,1\nhello,500000,10300,1\n";
    let trace = file(directory.path(), "trace.csv", &format!("{HEADER}{rows}"));
    let page = directory.path().join("report.html");
    let (trace, page) = (trace.to_str().unwrap(), page.to_str().unwrap());
    let run =
        || sim(&["--trace", trace, "--json", "--seed", "7", "--threads", "4", "--report", page]);
    let (first, second) = (run(), run());
    assert!(first.status.success(), "{}", err(&first));
    let mut seen = document(&first);
    assert_eq!((&seen["requests"], &seen["completed"]), (&3.into(), &3.into()));
    assert_eq!((&seen["starts"]["cold"], &seen["starts"]["warm"]), (&1.into(), &2.into()));
    assert_eq!((&seen["latency_us"]["p50"], &seen["violations"]), (&10_300.into(), &1.into()));
    assert_eq!((&seen["seed"], &seen["modelled"]), (&7.into(), &true.into()));
    let mut other = document(&second);
    for document in [&mut seen, &mut other] {
        (document["wall_s"], document["requests_per_s"]) = (Value::Null, Value::Null);
    }
    assert_eq!(seen, other);
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("Modelled.") && html.contains(seen["trace_sha256"].as_str().unwrap()));

    let text = String::from_utf8_lossy(&sim(&["--trace", trace]).stdout).into_owned();
    assert!(
        text.starts_with("modelled: ") && text.contains("1 cold, 0 clone, 0 ghost, 2 warm"),
        "{text}"
    );
}

#[test]
fn the_document_has_the_promised_keys() {
    let directory = tempfile::tempdir().unwrap();
    let trace = file(directory.path(), "trace.csv", &format!("{HEADER}a,0,1,1\n"));
    let output = sim(&["--trace", trace.to_str().unwrap(), "--json"]);
    let seen = document(&output);
    let inner =
        |key: &str| -> Vec<String> { seen[key].as_object().unwrap().keys().cloned().collect() };
    let mut all: Vec<String> = seen.as_object().unwrap().keys().cloned().collect();
    all.sort();
    let mut expected = [
        "requests",
        "completed",
        "failed",
        "rows_malformed",
        "latency_us",
        "starts",
        "instances",
        "memory_bytes",
        "violations",
        "wall_s",
        "requests_per_s",
        "seed",
        "trace_sha256",
        "version",
        "modelled",
    ];
    expected.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(inner("latency_us"), ["max", "mean", "p50", "p99"]);
    assert_eq!(inner("starts"), ["clone", "cold", "ghost", "warm"]);
    assert_eq!(inner("instances"), ["max", "mean"]);
    assert_eq!(inner("memory_bytes"), ["far", "near", "pool"]);
    let near: Vec<&String> = seen["memory_bytes"]["near"].as_object().unwrap().keys().collect();
    assert_eq!(near, ["max", "mean", "p50"]);
}

#[test]
fn malformed_rows_are_shown_counted_and_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let rows = "a,0,1,1\na,1,-1,1\n".to_owned() + &"b,x,1,1\n".repeat(30);
    let trace = file(directory.path(), "trace.csv", &format!("{HEADER}{rows}"));
    let output = sim(&["--trace", trace.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let seen = document(&output);
    assert_eq!((&seen["requests"], &seen["rows_malformed"]), (&1.into(), &31.into()));
    let said = err(&output);
    assert!(said.contains("trace.csv line 3: the duration is negative: '-1'"), "{said}");
    assert_eq!(said.matches("malformed row: ").count(), 20, "{said}");
    assert!(said.contains("11 more rows are malformed"), "{said}");
}

#[test]
fn bad_input_is_refused_with_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| file(directory.path(), name, text).display().to_string();
    let good = file("good.csv", &format!("{HEADER}a,0,1,1\n"));
    let empty = file("empty.csv", "");
    let headless = file("headless.csv", "a,0,1,1\n");
    let negative = file("negative.csv", &format!("{HEADER}a,0,-1,1\n"));
    let cell =
        r#"{"payload_bytes": 0, "local_permille": 0, "latency_us": {"p50": 1}, "near_bytes": 1}"#;
    let unknown = file("unknown.json", &format!(r#"{{"function": "b", "cells": [{cell}]}}"#));
    let bare = file("bare.json", r#"{"function": "a", "cells": []}"#);
    let policies = file("policies.json", r#"{"tierings": {}}"#);
    for (arguments, code, words) in [
        (vec!["--trace", &empty], 1, "empty.csv: it is empty"),
        (vec!["--trace", &headless], 1, "is not the header of a known format"),
        (vec!["--trace", &negative], 1, "line 2: the duration is negative: '-1'"),
        (vec!["--trace", "/nowhere/trace.csv"], 1, "cannot read /nowhere/trace.csv"),
        (vec!["--trace", &good, "--profile", &unknown], 1, "function 'b' is not in the trace"),
        (vec!["--trace", &good, "--profile", &bare], 1, "it has no cells"),
        (vec!["--trace", &good, "--policies", &policies], 1, "invalid settings of policies"),
        (vec!["--trace", &good, "--node-memory", "100M"], 1, "below one instance"),
        (vec!["--trace", &good, "--nodes", "0"], 2, "--nodes"),
        (vec!["--trace", &good, "--pool", "much"], 2, "invalid unit 'much'"),
        (vec!["--trace", &good, "--format", "huawei2025"], 2, "not supported yet (supported: own,"),
        (vec!["--trace", &good, "--format", "azure2021"], 1, "lacks app, func"),
        (vec!["--trace", &good, "--report", "/nowhere/r.html"], 1, "cannot write /nowhere/r.html"),
        (vec![], 2, "--trace"),
    ] {
        let output = sim(&arguments);
        let said = err(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
}
