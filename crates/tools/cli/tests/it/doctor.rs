//! `farfork doctor` as people and scripts call it.

use serde_json::Value;
use std::process::{Command, Output};

fn farfork(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farfork")).args(arguments).output().expect("farfork starts")
}

#[test]
fn json_is_one_document_and_agrees_with_the_exit_status() {
    let output = farfork(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    let capabilities = report["capabilities"].as_array().expect("a list of capabilities");
    for capability in capabilities {
        assert!(capability["available"].is_boolean(), "{capability}");
        assert!(
            ["required", "better", "users", "ghosts", "later"]
                .contains(&capability["group"].as_str().unwrap())
        );
        assert!(!capability["found"].as_str().unwrap().is_empty(), "{capability}");
        let missing = capability["available"] == false;
        assert_eq!(missing, capability["advice"].is_string(), "{capability}");
    }
    let lacking = capabilities.iter().any(|c| c["group"] == "required" && c["available"] == false);
    assert_eq!(report["ready"], !lacking);
    assert_eq!(output.status.code(), Some(i32::from(lacking)));
}

#[test]
fn the_text_has_the_same_answers() {
    let report: Value = serde_json::from_slice(&farfork(&["doctor", "--json"]).stdout).unwrap();
    let text = String::from_utf8(farfork(&["doctor"]).stdout).unwrap();
    for capability in report["capabilities"].as_array().unwrap() {
        let answer = if capability["available"] == true { "yes" } else { "no" };
        let line = format!("  {answer:<4}{}", capability["id"].as_str().unwrap());
        assert!(text.contains(&line), "{line:?} is missing in\n{text}");
    }
}

#[test]
fn without_privileges_the_exit_status_is_1_and_the_reason_is_shown() {
    let bare = Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all", "--", env!("CARGO_BIN_EXE_farfork")])
        .arg("doctor")
        .output()
        .expect("setpriv is a part of util-linux");
    let text = String::from_utf8(bare.stdout).unwrap();
    assert_eq!(bare.status.code(), Some(1), "{text}");
    for part in ["no  cap_sys_admin", "no  clone3_set_tid", "cannot checkpoint and restore"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn a_wrong_call_exits_2() {
    for arguments in [&[][..], &["doctor", "--yaml"], &["cure"]] {
        let output = farfork(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
