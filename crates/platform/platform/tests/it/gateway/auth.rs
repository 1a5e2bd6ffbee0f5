//! Which requests need which key.

use serde_json::json;

use crate::gateway::bed::{Bed, GUEST, OTHER};

const ACTIONS: &str = "/api/v1/namespaces/_/actions";

#[test]
fn version_and_runtimes_need_no_key() {
    let bed = Bed::new();
    let about = bed.ask(None, "GET", "/api/v1", b"").good();
    assert!(about["build"].is_string() && about["buildno"].is_string(), "{about}");
    assert_eq!(about["runtimes"]["python"][0]["kind"], "python:3.11");
    assert_eq!(about["api_paths"], json!(["/api/v1"]));
}

#[test]
fn everything_else_needs_a_key() {
    let bed = Bed::new();
    for path in ["/api/v1/namespaces", ACTIONS, "/api/v1/namespaces/guest/activations"] {
        let wrong_secret = "guest-key:secre";
        for key in [None, Some(wrong_secret), Some("guest-key:"), Some("nobody:secret"), Some(":")]
        {
            let refused = bed.ask(key, "GET", path, b"");
            refused.assert_error(401, "authentication is invalid");
            let challenge = refused.header("www-authenticate").unwrap();
            assert!(challenge.starts_with("Basic realm="), "{challenge}");
        }
    }
    for header in ["Bearer abc", "Basic !!!", "Basic", "Basic //79"] {
        let request = format!(
            "GET {ACTIONS} HTTP/1.1\r\nAuthorization: {header}\r\nConnection: close\r\n\r\n"
        );
        bed.raw(request.as_bytes()).assert_error(401, "invalid");
    }
    // The error does not reveal whether the action exists, and nothing is done.
    bed.ask(None, "PUT", &format!("{ACTIONS}/a"), b"{}").assert_error(401, "invalid");
    bed.ask(None, "POST", &format!("{ACTIONS}/a"), b"{}").assert_error(401, "invalid");
    assert!(bed.caller.recorded().is_empty());
}

#[test]
fn a_key_opens_one_namespace() {
    let bed = Bed::new();
    bed.create("hello");
    assert_eq!(bed.ask(Some(GUEST), "GET", "/api/v1/namespaces", b"").good(), json!(["guest"]));
    assert_eq!(bed.ask(Some(OTHER), "GET", "/api/v1/namespaces", b"").good(), json!(["other"]));
    let listed = |namespace: &str| {
        bed.ask(Some(GUEST), "GET", &format!("/api/v1/namespaces/{namespace}/actions"), b"")
    };
    assert_eq!(listed("_").good(), listed("guest").good());
    for (method, rest) in [
        ("GET", "actions"),
        ("GET", "actions/hello"),
        ("PUT", "actions/hello?overwrite=true"),
        ("POST", "actions/hello?blocking=true"),
        ("DELETE", "actions/hello"),
        ("GET", "activations"),
        ("GET", "activations/00000000000000000000000000000000"),
        ("GET", "packages"),
        ("GET", "triggers"),
        ("GET", "rules"),
        ("GET", "limits"),
    ] {
        bed.caller.recorded();
        // An existing namespace and a missing one look the same.
        for namespace in ["guest", "nobody"] {
            let path = format!("/api/v1/namespaces/{namespace}/{rest}");
            let refused = bed.ask(Some(OTHER), method, &path, b"{}");
            refused.assert_error(403, &format!("not authorized to access '{namespace}'"));
        }
        assert!(bed.caller.recorded().is_empty(), "{method} {rest}");
    }
}

#[test]
fn metrics_need_no_key() {
    let bed = Bed::new();
    let answer = bed.ask(None, "GET", "/metrics", b"");
    let kind = answer.header("content-type").unwrap().to_owned();
    assert_eq!(answer.good(), json!("calls_total 7\n# EOF\n"));
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    bed.ask(None, "POST", "/metrics", b"").assert_error(405, "not allowed");
}

#[test]
fn missing_features_are_empty_lists() {
    let bed = Bed::new();
    for what in ["packages", "triggers", "rules"] {
        assert_eq!(bed.get(&format!("{what}?limit=0&skip=0")).good(), json!([]), "{what}");
    }
}

#[test]
fn limits_are_those_of_actions() {
    let bed = Bed::new();
    bed.create("limited");
    let limits = bed.get("limits").good();
    assert_eq!(limits["concurrentInvocations"], 1000);
    let about = bed.ask(None, "GET", "/api/v1", b"").good();
    assert_eq!(about["limits"]["concurrent_actions"], 1000);
    assert_eq!(about["limits"]["max_action_duration"], 300_000);
    assert_eq!(about["limits"]["min_action_memory"], 32 << 20);
    for (limit, what) in [
        ("Duration", "timeout"),
        ("Memory", "memory"),
        ("Logs", "logs"),
        ("Concurrency", "concurrency"),
    ] {
        let [least, most] = ["Min", "Max"]
            .map(|end| limits[format!("action{limit}{end}")].as_u64().expect("a limit"));
        let put = |value: u64| {
            let body = json!({"limits": {what: value}});
            bed.guest("PUT", "actions/limited?overwrite=true", body)
        };
        put(least).good();
        put(most).good();
        put(most + 1).assert_error(400, &format!("exceeds allowed threshold of {most}"));
        if let Some(less) = least.checked_sub(1) {
            put(less).assert_error(400, &format!("below allowed threshold of {least}"));
        }
    }
}
