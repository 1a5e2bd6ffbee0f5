//! `farfork profile`, and profiles that `farfork serve` reads: wrong input is refused in words.

use std::fs;
use std::process::Command;

fn fails(arguments: &[&str], status: i32, words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
    command.env_remove("FARFORK_PYTHON").env("FARFORK_CACHES_PLUGIN", "/nowhere/plugin.so");
    let output = command.args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{arguments:?}: no '{word}' in: {message}");
    }
}

#[test]
fn wrong_input_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let function = file("hello.py", "def main(args):\n    return {}\n");
    let [array, one, other] = [
        file("array.json", "[1]"),
        file("one.json", r#"{"payload_bytes": 70}"#),
        file("other.json", r#"{"payload_bytes": 70, "more": 1}"#),
    ];
    let function = &*function;
    for (arguments, status, words) in [
        (vec!["--shares", "0,1.5"], 2, "invalid share '1.5'"),
        (vec!["--shares", "half"], 2, "invalid share 'half'"),
        (vec!["--far-ns", "20"], 2, "invalid latency '20'"),
        (vec!["--overlap", "0"], 2, "invalid overlap '0'"),
        (vec!["--payload", &array], 1, "it is not a JSON object"),
        (vec!["--payload", "/nowhere.json"], 1, "cannot use the payload in /nowhere.json"),
        (vec!["--payload", &one, &other], 1, "cannot profile two payloads of 70 bytes"),
        (vec!["--python", "no-such-python"], 1, "no-such-python: it is not in PATH"),
        (vec!["--python", "/nowhere/python"], 1, "cannot run /nowhere/python"),
    ] {
        fails(&[&["profile", function], &arguments[..]].concat(), status, &[words]);
    }
    let key = file("key", "user:secret");
    let absent = ["profile", "/no/such.py", "--url", "http://127.0.0.1:1", "--key-file", &key];
    fails(&absent, 1, &["127.0.0.1:1"]);
}

#[test]
fn profiles_without_what_policies_need_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("profile.json");
    let state = directory.path().join("state");
    let serve = ["serve", "--state", state.to_str().unwrap(), "--profile", path.to_str().unwrap()];
    let cell = |share: u64| {
        format!(
            r#"{{"payload_bytes": 7, "local_permille": {share}, "latency_us": {{"p50": 9}}, "near_bytes": {share}}}"#
        )
    };
    let profile = |cells: &[u64]| {
        let cells: Vec<String> = cells.iter().map(|share| cell(*share)).collect();
        format!(r#"{{"function": "a", "cells": [{}]}}"#, cells.join(","))
    };
    for (text, words) in [
        ("{".to_owned(), "it is not a profile"),
        (profile(&[0, 500]), "no share 1000"),
        (profile(&[1000]), "no share below 1000"),
        (profile(&[0, 1001]), "a share is above 1000"),
        (profile(&[]), "it has no cells"),
    ] {
        fs::write(&path, text).unwrap();
        fails(&serve, 1, &[words]);
    }
    fs::write(&path, profile(&[0, 1000])).unwrap();
    let twice = [&serve[..], &["--profile", path.to_str().unwrap()]].concat();
    fails(&twice, 1, &["there is another one of function 'a'"]);
}
