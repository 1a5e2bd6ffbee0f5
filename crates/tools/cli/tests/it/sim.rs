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
        "utilisation",
        "slower_runs",
        "wall_s",
        "requests_per_s",
        "seed",
        "trace_sha256",
        "version",
        "modelled",
        "synthetic",
        "settings",
    ];
    expected.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(inner("latency_us"), ["max", "mean", "p50", "p99"]);
    let over = |percent: u64| format!("over_{percent}_percent");
    assert_eq!(inner("slower_runs"), [10, 1, 20, 5].map(over));
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
        (
            vec!["--trace", &good, "--format", "azure2022"],
            2,
            "unknown format 'azure2022' (supported: own,",
        ),
        (vec!["--trace", &good, "--format", "huawei2025"], 1, "lacks time_worker, funcName"),
        (vec!["--trace", &good, "--report", "/tmp/r.json"], 1, "give a name that ends in .html"),
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

/// Four functions, 400 calls: enough for budgets and windows to matter.
fn busy(directory: &Path) -> PathBuf {
    let row = |call: u64| {
        format!("f{},{},{},1\n", call % 4, call / 8 * 400_000, 20_000 + call * 997 % 300_000)
    };
    file(directory, "trace.csv", &(HEADER.to_owned() + &(0..400).map(row).collect::<String>()))
}

#[test]
fn a_sweep_runs_every_combination_whatever_the_number_of_threads() {
    let directory = tempfile::tempdir().unwrap();
    busy(directory.path());
    let toml = "[base]\ntrace = 'trace.csv'\nnode_memory = '1G'\nseed = 3\n\
                [[vary]]\nkey = 'nodes'\nvalues = [1, 2]\n\
                [[vary]]\nkey = 'policies.freeze.after_ms'\nvalues = [1000, 60000, 5]\n";
    let sweep = file(directory.path(), "sweep.toml", toml);
    let page = directory.path().join("r.html");
    let (sweep, page) = (sweep.to_str().unwrap(), page.to_str().unwrap());
    let run = |threads: &str| {
        let output = sim(&["sweep", sweep, "--json", "--threads", threads, "--report", page]);
        assert!(output.status.success(), "{}", err(&output));
        let mut seen = document(&output);
        for run in seen["runs"].as_array_mut().unwrap() {
            let result = &mut run["result"];
            (result["wall_s"], result["requests_per_s"]) = (Value::Null, Value::Null);
        }
        seen
    };
    let one = run("1");
    assert_eq!(one, run("4"));
    let runs = one["runs"].as_array().unwrap();
    let sets: Vec<String> = runs.iter().map(|run| run["set"].to_string()).collect();
    assert_eq!(sets.len(), 6);
    assert_eq!(sets[1], r#"{"nodes":1,"policies.freeze.after_ms":60000}"#);
    assert!(runs.iter().all(|run| run["result"]["requests"] == 400 && run["result"]["seed"] == 3));
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("nodes 2, after_ms 5</th>"), "each run has a column");
    let figures = fs::read_to_string(directory.path().join("r.csv")).unwrap();
    assert_eq!(figures.lines().count(), 7);
    let beside: Value =
        serde_json::from_str(&fs::read_to_string(directory.path().join("r.json")).unwrap())
            .unwrap();
    assert_eq!(beside["runs"].as_array().unwrap().len(), 6);
    assert!(directory.path().join("r.time.csv").exists());

    let text = String::from_utf8_lossy(&sim(&["sweep", sweep]).stdout).into_owned();
    assert_eq!(text.lines().count(), 8, "{text}");
}

#[test]
fn a_sweep_varies_shares_of_near_memory() {
    let directory = tempfile::tempdir().unwrap();
    let row = |call: u64| format!("f,{},300000,1\n", call * 50_000);
    let rows: String = (0..400).map(row).collect();
    file(directory.path(), "trace.csv", &(HEADER.to_owned() + &rows));
    let cell = |share: u64, us: u64| {
        format!(
            r#"{{"payload_bytes": 0, "local_permille": {share}, "latency_us": {{"p50": {us}}},
            "near_bytes": {share}000}}"#
        )
    };
    let cells = [cell(500, 180_000), cell(900, 110_000), cell(1000, 100_000)].join(",");
    file(directory.path(), "f.json", &format!(r#"{{"function": "f", "cells": [{cells}]}}"#));
    let simulated = |vary: &str| {
        let base = "[base]\ntrace = 'trace.csv'\nprofile = 'f.json'\n";
        let sweep = file(directory.path(), "sweep.toml", &format!("{base}{vary}"));
        let output = sim(&["sweep", sweep.to_str().unwrap(), "--json"]);
        assert!(output.status.success(), "{}", err(&output));
        document(&output)["runs"].as_array().unwrap().clone()
    };
    let slower = |runs: &[Value]| -> Vec<u64> {
        let over = |run: &Value| run["result"]["slower_runs"]["over_5_percent"].as_u64();
        runs.iter().map(|run| over(run).unwrap()).collect()
    };
    let shares = "[[vary]]\nkey = 'policies.share'\nvalues = [{policy = 'fixed'}, \
                  {policy = 'fixed', local_permille = 700}, {policy = 'adaptive'}]\n";
    let runs = simulated(shares);
    assert_eq!(slower(&runs)[..2], [0, 400]);
    let near = |run: &Value| run["result"]["memory_bytes"]["near"]["max"].as_u64().unwrap();
    assert!(near(&runs[0]) > 0 && near(&runs[1]) > 0);
    assert!(runs[1]["result"]["memory_bytes"]["far"].as_u64() > Some(0), "{}", runs[1]);
    let tolerances = "policies = {share = {policy = 'dynamic'}}\n[[vary]]\n\
                      key = 'policies.share.tolerance_permille'\nvalues = [50, 100, 800]\n";
    assert_eq!(slower(&simulated(tolerances)), [0, 400, 400]);
}

#[test]
fn calls_share_the_processors_of_their_node() {
    let directory = tempfile::tempdir().unwrap();
    let rows: String = (0..3).map(|_| "f,0,400000,1\n".to_owned()).collect();
    let trace = file(directory.path(), "trace.csv", &(HEADER.to_owned() + &rows));
    let cell = r#"{"payload_bytes": 0, "local_permille": 1000, "latency_us": {"p50": 1}, "near_bytes": 9}"#;
    let text = format!(r#"{{"function": "f", "cores": 2, "cells": [{cell}]}}"#);
    let profile = file(directory.path(), "f.json", &text);
    let (trace, profile) = (trace.to_str().unwrap(), profile.to_str().unwrap());
    let most = |more: &[&str]| {
        let output = sim(&[&["--trace", trace, "--nodes", "1", "--json"], more].concat());
        assert!(output.status.success(), "{}", err(&output));
        document(&output)["latency_us"]["max"].as_u64().unwrap()
    };
    let alone = most(&[]);
    assert_eq!(most(&["--processors", "3"]), alone);
    assert_eq!(most(&["--processors", "1"]), alone + 800_000);
    assert_eq!(most(&["--profile", profile]), alone + 200_000, "three calls on two");
    assert_eq!(most(&["--profile", profile, "--processors", "4"]), alone);
    let output = sim(&["--trace", trace, "--nodes", "1", "--profile", profile, "--json"]);
    assert_eq!(document(&output)["settings"]["processors"], 2, "what was simulated");
    let profiled = ["--trace", trace, "--nodes", "1", "--profile", profile, "--json", "--oracle"];
    let seen = document(&sim(&profiled));
    assert_eq!(seen["settings"]["processors"], 2, "the platform's own code knows them, too");
    let most_us = seen["latency_us"]["max"].as_u64().unwrap();
    assert!(most_us.abs_diff(alone + 200_000) <= 4_000, "{most_us}");
    let output = sim(&["--trace", trace, "--far-bandwidth", "1G", "--oracle"]);
    assert!(err(&output).contains("leave out --oracle"), "{}", err(&output));
    assert_eq!(sim(&["--trace", trace, "--processors", "0"]).status.code(), Some(2));
}

#[test]
fn the_papers_policy_knows_no_limits_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let rows: String = (0..3).map(|call| format!("f,{},400000,1\n", call * 100_000)).collect();
    let trace = file(directory.path(), "trace.csv", &(HEADER.to_owned() + &rows));
    let trace = trace.to_str().unwrap();
    let output = sim(&["--trace", trace, "--policy", "paper", "--json"]);
    let seen = document(&output);
    assert_eq!((&seen["starts"]["cold"], &seen["failed"]), (&3.into(), &0.into()), "{seen}");
    assert_eq!(seen["settings"]["policy"], "paper");
    assert!(seen["settings"].get("nodes").is_none(), "{seen}");
    let text = sim(&["--trace", trace, "--policy", "paper"]).stdout;
    assert!(text.starts_with(b"modelled: the paper's policy decided"));
    let freeze = file(directory.path(), "p.json", r#"{"freeze": {"after_ms": 1}}"#);
    for (more, code, words) in [
        (["--nodes", "3"], 2, "--nodes"),
        (["--pool", "1G"], 2, "--pool"),
        (["--policies", freeze.to_str().unwrap()], 1, "set nothing but 'share'"),
    ] {
        let output = sim(&[&["--trace", trace, "--policy", "paper"], &more[..]].concat());
        assert_eq!(output.status.code(), Some(code));
        assert!(err(&output).contains(words), "{}", err(&output));
    }
    let output = sim(&["--trace", trace, "--policy", "news"]);
    assert!(err(&output).contains("unknown policy 'news' (supported: platform, paper)"));
    let sweep =
        "[base]\ntrace = 'trace.csv'\n[[vary]]\nkey = 'policy'\nvalues = ['platform', 'paper']\n";
    let sweep = file(directory.path(), "sweep.toml", sweep);
    let runs = document(&sim(&["sweep", sweep.to_str().unwrap(), "--json"]));
    assert_eq!(runs["runs"][1]["result"]["settings"]["policy"], "paper");
}

#[test]
fn runs_of_a_sweep_that_cannot_be_simulated_are_named() {
    let directory = tempfile::tempdir().unwrap();
    busy(directory.path());
    let json = r#"{"base": {"trace": "trace.csv"}, "vary": [{"key": "node-memory", "values": ["100M", "2G", "x"]}]}"#;
    let sweep = file(directory.path(), "sweep.json", json);
    let output = sim(&["sweep", sweep.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let seen = document(&output);
    let errors: Vec<&str> =
        seen["runs"].as_array().unwrap().iter().filter_map(|run| run["error"].as_str()).collect();
    assert_eq!(seen["runs"].as_array().unwrap().len(), 3);
    assert!(
        errors[0].contains("below one instance") && errors[1].contains("invalid unit 'x'"),
        "{errors:?}"
    );
}

#[test]
fn bad_sweeps_are_refused_with_their_reason() {
    let directory = tempfile::tempdir().unwrap();
    busy(directory.path());
    for (text, words) in [
        ("", "missing field `base`"),
        ("[base]\n", "missing field `trace`"),
        ("[base]\ntrace = 'nowhere.csv'\n", "cannot read nowhere.csv"),
        ("[base]\ntrace = 'trace.csv'\nnode = 3\n", "unknown field `node`"),
        ("[base]\ntrace = 'trace.csv'\nnodes = 0\n", "invalid nodes 0"),
        ("[base]\ntrace = 'trace.csv'\nnodes = -1\n", "invalid value"),
        ("[base]\ntrace = 'trace.csv'\nformat = 'x'\n", "unknown format 'x'"),
        (
            "[base]\ntrace = 'trace.csv'\n[[vary]]\nkey = 'nodes'\nvalues = []\n",
            "'nodes' has no values",
        ),
        (
            "[base]\ntrace = 'trace.csv'\n[[vary]]\nkey = 'policies.freeze.after'\nvalues = [1]\n",
            "known here: after_ms",
        ),
        (
            "[base]\ntrace = 'trace.csv'\n[[vary]]\nkey = 'nodes.most'\nvalues = [1]\n",
            "unknown key 'nodes.most'",
        ),
        (
            "[base]\ntrace = 'trace.csv'\n[[vary]]\nkey = 'policies.share.tolerance_permille'\nvalues = [1]\n",
            "'share' is not set",
        ),
        (
            "[base]\ntrace = 'trace.csv'\npolicies = {share = {policy = 'fixed'}}\n",
            "shares are decided, and it has no profile",
        ),
        ("[base]\ntrace = 'trace.csv'\npolicies = 'none.json'\n", "cannot read none.json"),
        ("base = ", "cannot use sweep"),
    ] {
        let sweep = file(directory.path(), "sweep.toml", text);
        let output = sim(&["sweep", sweep.to_str().unwrap()]);
        let said = err(&output);
        assert_eq!(output.status.code(), Some(1), "{text}: {said}");
        assert!(said.contains(words), "{text}: {said}");
        assert!(output.stdout.is_empty(), "{text}: {output:?}");
    }
    assert_eq!(sim(&["sweep"]).status.code(), Some(2));
}

#[test]
fn several_policies_are_simulated_side_by_side() {
    let directory = tempfile::tempdir().unwrap();
    let trace = busy(directory.path());
    let short = file(
        directory.path(),
        "short.json",
        r#"{"keep_alive": {"policy": "by-pressure", "long_ms": 1000}}"#,
    );
    let long = file(
        directory.path(),
        "long.json",
        r#"{"keep_alive": {"policy": "by-pressure", "long_ms": 600000}}"#,
    );
    let page = directory.path().join("r.html");
    let output = sim(&[
        "--trace",
        trace.to_str().unwrap(),
        "--policies",
        short.to_str().unwrap(),
        long.to_str().unwrap(),
        "--report",
        page.to_str().unwrap(),
        "--json",
    ]);
    assert!(output.status.success(), "{}", err(&output));
    let seen = document(&output);
    let names: Vec<&str> = seen["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["set"]["policies"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["short", "long"]);
    assert!(fs::read_to_string(page).unwrap().contains("<th class=\"n\">short</th>"));
}

#[test]
fn a_generated_trace_is_sampled_and_simulated_and_called_synthetic() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (whole, part) = (path("whole"), path("part"));
    let call = |arguments: &[&str]| {
        let output = sim(arguments);
        assert!(output.status.success(), "{}", err(&output));
        document(&output)
    };
    let size = ["--functions", "60", "--minutes", "3", "--calls", "2000"];
    let generate = ["generate", "azure2019", "--format", "azure2019", "--out", &whole, "--json"];
    let made = call(&[&generate[..], &size].concat());
    let sampled =
        call(&["sample", "--trace", &whole, "--functions", "20", "--out", &part, "--json"]);
    assert_eq!((&sampled["calls_whole"], &sampled["functions"]), (&made["calls"], &20.into()));
    assert_eq!(sampled["wasserstein"]["invocations"]["per_minute"].as_array().unwrap().len(), 3);
    let beside: Value = serde_json::from_str(
        &fs::read_to_string(directory.path().join("part/sample.json")).unwrap(),
    )
    .unwrap();
    assert_eq!(beside, sampled);
    let seen = call(&["--trace", &part, "--node-memory", "64G", "--json"]);
    assert_eq!((&seen["requests"], &seen["synthetic"]), (&sampled["calls"], &true.into()));
    let output = sim(&["sample", "--trace", &whole, "--functions", "61", "--out", &part]);
    assert!(err(&output).contains("give --functions 1 to 60"), "{}", err(&output));
    assert_eq!(sim(&["generate", "zipf", "--out", &part]).status.code(), Some(2));
    let output = sim(&["generate", "poisson", "--out", "/nowhere/t.csv"]);
    assert!(err(&output).contains("cannot write /nowhere/t.csv"), "{}", err(&output));
}

/// A report has files beside it, which must not overwrite what is read.
#[test]
fn a_report_overwrites_nothing_that_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let trace = busy(directory.path()).display().to_string();
    let policies = file(directory.path(), "policies.json", "{}").display().to_string();
    let base = r#"{"base": {"trace": "trace.csv", "policies": "policies.json"}}"#;
    let sweep = file(directory.path(), "sweep.json", base).display().to_string();
    let inside = directory.path().display().to_string();
    let read = |name: &str| fs::read(path(name)).unwrap();
    let before = [read("trace.csv"), read("policies.json"), read("sweep.json")];
    for (arguments, report) in [
        (vec!["--trace", &trace], "trace.html"),
        (vec!["--trace", &inside], "trace.html"),
        (vec!["--trace", &trace, "--policies", &policies], "policies.html"),
        (vec!["sweep", &sweep], "sweep.html"),
        (vec!["sweep", &sweep], "trace.html"),
        (vec!["sweep", &sweep], "policies.html"),
    ] {
        let report = path(report);
        let output = sim(&[&arguments[..], &["--report", &report]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(err(&output).contains("the report would overwrite "), "{}", err(&output));
        assert!(!Path::new(&report).exists());
    }
    assert_eq!(before, [read("trace.csv"), read("policies.json"), read("sweep.json")]);
    let report = path("report.html");
    assert!(sim(&["sweep", &sweep, "--report", &report]).status.success());
}
