//! Calls of actions.

use std::time::Instant;

use serde_json::{Value, json};

use crate::gateway::bed::{Answer, Bed};

fn bed() -> Bed {
    let bed = Bed::new();
    bed.create("hello");
    bed.caller.recorded();
    bed
}

fn header_of(answer: &Answer) -> String {
    let id = answer.header("x-openwhisk-activation-id").expect("an id in the headers");
    assert_eq!(id.len(), 32, "{id}");
    id.to_owned()
}

#[test]
fn a_blocking_call_returns_its_activation() {
    let bed = bed();
    let answer = bed.guest("POST", "actions/hello?blocking=true", json!({"name": "Ada"}));
    let id = header_of(&answer);
    let activation = answer.good();
    assert_eq!(activation["activationId"], json!(id));
    assert_eq!(activation["response"]["result"], json!({"name": "Ada"}));
    assert_eq!(activation["response"]["status"], "success");
    assert_eq!(activation["response"]["statusCode"], 0);
    assert_eq!((&activation["duration"], &activation["subject"]), (&json!(7), &json!("guest")));
    let annotation = |key: &str| {
        let all = activation["annotations"].as_array().unwrap();
        all.iter().find(|one| one["key"] == key).map(|one| one["value"].clone())
    };
    assert_eq!(annotation("waitTime"), Some(json!(2)));
    assert_eq!(annotation("initTime"), Some(json!(5)));
    assert_eq!(annotation("startKind"), Some(json!("cold")));
    assert_eq!(annotation("kind"), Some(json!("python:3.11")));
    assert_eq!(bed.get(&format!("activations/{id}")).good(), activation);
    assert_eq!(bed.caller.recorded(), ["call guest/hello accepted=false"]);
}

#[test]
fn only_the_result_is_returned_on_request() {
    let bed = bed();
    let answer = bed.guest("POST", "actions/hello?blocking=true&result=true", json!({"n": 1}));
    header_of(&answer);
    assert_eq!(answer.good(), json!({"n": 1}));
    // A body is not needed.
    assert_eq!(bed.guest("POST", "actions/hello?blocking=true&result=true", ()).good(), json!({}));
}

#[test]
fn a_non_blocking_call_is_stored_before_it_is_accepted() {
    let bed = bed();
    for query in ["", "?blocking=false&result=false", "?result=true"] {
        let answer = bed.guest("POST", &format!("actions/hello{query}"), json!({}));
        let id = header_of(&answer);
        assert_eq!((answer.status, &answer.body), (202, &json!({ "activationId": id })));
        assert_eq!(bed.caller.recorded(), ["call guest/hello accepted=true"]);
        assert_eq!(bed.get(&format!("activations/{id}")).good()["name"], "hello");
        assert!(bed.store.accepted().unwrap().is_empty(), "it has been made");
    }
}

#[test]
fn failures_have_their_status() {
    let bed = bed();
    for (what, status, words) in [
        ("fail", 502, "application error"),
        ("crash", 502, "action developer error"),
        ("break", 500, "whisk internal error"),
    ] {
        let args = json!({ "do": what });
        let whole = bed.guest("POST", "actions/hello?blocking=true", args.clone());
        header_of(&whole);
        assert_eq!((whole.status, &whole.body["response"]["status"]), (status, &json!(words)));
        assert_eq!(whole.body["response"]["success"], false);
        let result = bed.guest("POST", "actions/hello?blocking=true&result=true", args);
        assert_eq!(result.status, status);
        assert!(result.body["error"].is_string(), "{result:?}");
        header_of(&result);
    }
    let lost = bed.guest("POST", "actions/hello?blocking=true", json!({"do": "lose"}));
    lost.assert_error(500, "was lost");
}

#[test]
fn a_client_that_waits_too_long_gets_the_id() {
    let bed = bed();
    let begun = Instant::now();
    let answer =
        bed.guest("POST", "actions/hello?blocking=true&timeout=300", json!({"do": "wait"}));
    let waited = begun.elapsed().as_millis();
    assert!((300..5000).contains(&waited), "{waited}");
    let id = header_of(&answer);
    assert_eq!((answer.status, &answer.body), (202, &json!({ "activationId": id })));
    // A blocking call is not stored before it has ended.
    bed.get(&format!("activations/{id}")).assert_error(404, &id);
}

#[test]
fn the_callers_arguments_override_the_actions_parameters() {
    let bed = bed();
    let bound = json!({"parameters": [{"key": "a", "value": 1}, {"key": "b", "value": 2}]});
    bed.guest("PUT", "actions/hello?overwrite=true", bound).good();
    let call =
        |args: Value| bed.guest("POST", "actions/hello?blocking=true&result=true", args).good();
    assert_eq!(call(json!({"b": 3, "c": 4})), json!({"a": 1, "b": 3, "c": 4}));
    assert_eq!(call(json!({})), json!({"a": 1, "b": 2}));
}

#[test]
fn an_invalid_call_is_not_made() {
    let bed = bed();
    for body in ["[1]", "\"a\"", "{", "null", "{\"a\":1}x", "{\"a\": NaN}", "\u{0}"] {
        let refused = bed.guest("POST", "actions/hello?blocking=true", body);
        refused.assert_error(400, "not a JSON object");
    }
    for query in ["?blocking=perhaps", "?timeout=-1", "?blocking=true&timeout=x"] {
        bed.guest("POST", &format!("actions/hello{query}"), ()).assert_error(400, "query");
    }
    assert!(bed.caller.recorded().is_empty());
}

#[test]
fn too_many_calls_are_refused_before_any_is_accepted() {
    let bed = Bed::new();
    let exec = json!({"exec": {"kind": "python", "code": "x"}}).to_string();
    let path = "/api/v1/namespaces/_/actions/a";
    bed.ask(Some("crowd:x"), "PUT", path, exec.as_bytes()).good();
    bed.caller.recorded();
    for query in ["", "?blocking=true"] {
        let refused = bed.ask(Some("crowd:x"), "POST", &format!("{path}{query}"), b"{}");
        refused.assert_error(429, "1000 calls");
    }
    assert!(bed.caller.recorded().is_empty() && bed.store.accepted().unwrap().is_empty());
}
