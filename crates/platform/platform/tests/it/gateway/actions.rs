//! Actions: create, read, update, delete, list.

use serde_json::{Value, json};

use crate::gateway::bed::Bed;

#[test]
fn an_action_is_created_as_wsk_does_it_and_returned_with_its_code() {
    let bed = Bed::new();
    let exec = json!({"kind": "python:default", "code": "def main(a): return a"});
    let body = json!({"namespace": "_", "name": "hello", "exec": exec,
                      "annotations": [{"key": "web-export", "value": false}]});
    let made = bed.guest("PUT", "actions/hello?overwrite=false", body.clone()).good();
    assert_eq!(made["namespace"], "guest");
    assert_eq!(made["name"], "hello");
    assert_eq!(made["version"], "0.0.1");
    assert_eq!(made["publish"], false);
    assert_eq!(made["exec"]["kind"], "python:3.11");
    assert_eq!(made["exec"]["code"], "def main(a): return a");
    let limits = json!({"timeout": 60_000, "memory": 256, "logs": 10, "concurrency": 1});
    assert_eq!(made["limits"], limits);
    assert!(made["updated"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000));
    assert!(bed.caller.recorded().is_empty());
    assert_eq!(bed.get("actions/hello").good(), made);
    assert_eq!(bed.get("actions/hello?code=true").good(), made);
    let without = bed.get("actions/hello?code=false").good();
    assert!(without["exec"].get("code").is_none(), "{without}");
    // Again, with overwrite false and, as the npm client does, without.
    for query in ["?overwrite=false", ""] {
        let again = bed.guest("PUT", &format!("actions/hello{query}"), body.clone());
        again.assert_error(409, "resource already exists");
    }
    assert!(bed.caller.recorded().is_empty());
}

#[test]
fn an_update_may_leave_the_code_out() {
    let bed = Bed::new();
    bed.create("hello");
    let put = |body: Value| bed.guest("PUT", "actions/hello?overwrite=true", body);
    let limits = put(json!({"limits": {"memory": 512}})).good();
    assert_eq!((&limits["version"], &limits["limits"]["memory"]), (&json!("0.0.2"), &json!(512)));
    assert!(limits["exec"].get("code").is_none());
    let bound = put(json!({"parameters": [{"key": "a", "value": 1}]})).good();
    assert_eq!((&bound["version"], &bound["limits"]["memory"]), (&json!("0.0.3"), &json!(512)));
    let code = put(json!({"exec": {"kind": "python:3", "code": "new"}})).good();
    assert_eq!(code["parameters"], json!([{"key": "a", "value": 1}]));
    assert_eq!(bed.get("actions/hello").good()["exec"]["code"], "new");
    put(json!({"limits": {"memory": 1}}))
        .assert_error(400, "memory 1 MB below allowed threshold of 32 MB");
    assert_eq!(bed.get("actions/hello").good()["version"], "0.0.4");
    let gone = ["1", "2", "3"].map(|patch| format!("gone guest/hello 0.0.{patch}"));
    assert_eq!(bed.caller.recorded(), gone);
    // Nothing exists to update.
    let none = bed.guest("PUT", "actions/none?overwrite=true", json!({"limits": {}}));
    none.assert_error(400, "exec");
    bed.get("actions/none").assert_error(404, "'none'");
}

#[test]
fn a_deleted_action_is_gone() {
    let bed = Bed::new();
    bed.create("hello");
    bed.caller.recorded();
    assert_eq!(bed.guest("DELETE", "actions/hello", ()).good()["name"], "hello");
    assert_eq!(bed.caller.recorded(), ["gone guest/hello 0.0.1"]);
    for method in ["GET", "DELETE", "POST"] {
        bed.guest(method, "actions/hello", ()).assert_error(404, "does not exist");
    }
    assert_eq!(bed.create("hello")["version"], "0.0.1");
}

#[test]
fn lists_are_paged() {
    let bed = Bed::new();
    assert_eq!(bed.get("actions").good(), json!([]));
    for name in ["c", "a", "b"] {
        bed.create(name);
    }
    let names = |query: &str| {
        let listed = bed.get(&format!("actions{query}")).good();
        let all = listed.as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(""), ["a", "b", "c"]);
    assert_eq!(names("?limit=0&skip=0"), ["a", "b", "c"], "0 means all, to wsk");
    assert_eq!(names("?limit=1&skip=1"), ["b"]);
    assert_eq!(names("?skip=3"), Vec::<String>::new());
    assert_eq!(bed.get("actions?count=true").good(), json!({"actions": 3}));
    let one = &bed.get("actions?limit=1").good()[0];
    assert_eq!(one["exec"], json!({"binary": false}));
    assert!(one.get("parameters").is_none() && one["annotations"].is_array(), "{one}");
    bed.get("actions?limit=201").assert_error(400, "at most 200");
}

#[test]
fn encoded_names_are_accepted() {
    let bed = Bed::new();
    let made = bed.create("sp%20ace@x.y");
    assert_eq!(made["name"], "sp ace@x.y");
    assert_eq!(bed.get("actions/sp%20ace%40x.y").good(), made);
    for odd in ["%20a", "a%20", ".x", "-x", "a%2Fb", "%00", "a%0Ab", "%F0%9F%90%B4", "%2e%2e"] {
        let path = format!("actions/{odd}");
        for method in ["GET", "DELETE", "POST"] {
            bed.guest(method, &path, ()).assert_error(400, "invalid name");
        }
        bed.guest("PUT", &path, json!({})).assert_error(400, "invalid name");
    }
    bed.get("actions/%FF%FE").assert_error(400, "");
    bed.get(&format!("actions/{}", "a".repeat(257))).assert_error(400, "invalid name");
    bed.get("actions/package/action").assert_error(404, "no such path");
}

#[test]
fn what_cannot_be_executed_is_refused() {
    let bed = Bed::new();
    for (exec, words) in [
        (
            json!({"kind": "swift:5", "code": "x"}),
            "not supported by this platform. Valid values are: 'python:3.11'",
        ),
        (json!({"code": "x"}), "no kind"),
        (json!({"kind": "python"}), "no code"),
        (json!({"kind": "blackbox", "image": "a/b"}), "container images"),
        (json!({"kind": 3}), "malformed content"),
        (json!("x"), "malformed content"),
    ] {
        let refused = bed.guest("PUT", "actions/a", json!({ "exec": exec }));
        refused.assert_error(400, words);
    }
    assert!(bed.caller.recorded().is_empty());
}
