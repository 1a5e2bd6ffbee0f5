//! `farfork replay`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use farfork_policy::checkpoint::CheckpointFacts;
use farfork_policy::journal::{self, Line, Record};
use farfork_policy::{Memory, Policies, Settings};
use serde_json::{Value, json};

fn replay(arguments: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
    command.arg("replay").args(arguments).output().expect("farfork starts")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A journal with a decision after 3 and one after 16 calls.
fn journal(directory: &Path) -> std::path::PathBuf {
    let (settings, mut text) = (Settings::default(), Vec::new());
    journal::write(&mut text, &Line::Settings { settings }).unwrap();
    for calls in [3, 16] {
        let pool = Memory { used_bytes: 1, budget_bytes: 100 };
        let facts = CheckpointFacts { calls, pool, ..CheckpointFacts::default() };
        let decision = Policies::from(settings).checkpoint.decide(&facts);
        let record = Record::new(7, "guest/hello", &facts, &decision).unwrap();
        journal::write(&mut text, &Line::Record(record)).unwrap();
    }
    let path = directory.join("decisions.jsonl");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn decisions_are_replayed_and_compared() {
    let directory = tempfile::tempdir().unwrap();
    let journal = journal(directory.path());
    let same = replay(&[&journal]);
    assert!(same.status.success(), "{same:?}");
    assert_eq!(out(&same), "2 decisions replayed, 0 of them differ\n");

    // Other decisions under other settings are a result.
    let policies = directory.path().join("policies.json");
    let sooner = json!({"checkpoint": {"policy": "after-calls", "calls": 2}});
    fs::write(&policies, sooner.to_string()).unwrap();
    let other = replay(&[&journal, Path::new("--policies"), &policies]);
    assert!(other.status.success(), "{other:?}");
    let text = out(&other);
    assert!(text.starts_with("line 2: checkpoint of guest/hello\n  was \"not-yet\": "), "{text}");
    assert!(text.contains("  now \"now\": ") && text.ends_with(" replayed, 1 of them differ\n"));
    let other = replay(&[&journal, Path::new("--policies"), &policies, Path::new("--json")]);
    let report: Value = serde_json::from_str(&out(&other)).unwrap();
    assert_eq!((&report["decisions"], &report["differences"][0]["line"]), (&json!(2), &json!(2)));
    assert_eq!(report["differences"][0]["record"]["about"], "guest/hello");

    // Other decisions under the same settings are a failure.
    let text = fs::read_to_string(&journal).unwrap().replace("\"not-yet\"", "\"now\"");
    fs::write(&journal, text).unwrap();
    assert_eq!(replay(&[&journal]).status.code(), Some(1));
}

#[test]
fn invalid_journals_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let missing = replay(&[&path]);
    fs::write(&path, "{\"settings\": {}}\nnot json\n").unwrap();
    let wrong = replay(&[&path]);
    for (output, words) in [(missing, "cannot replay"), (wrong, "line 2 of the journal")] {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
