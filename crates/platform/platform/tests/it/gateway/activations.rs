//! Activations: read and list.

use serde_json::{Value, json};

use crate::gateway::bed::{Bed, OTHER};

/// Calls that began at these times; their ids.
fn called(bed: &Bed, calls: &[(&str, u64)]) -> Vec<String> {
    let id = |(name, at): &(&str, u64)| {
        let args = json!({ "at": at });
        let path = format!("actions/{name}?blocking=true");
        bed.guest("POST", &path, args).good()["activationId"].as_str().unwrap().to_owned()
    };
    calls.iter().map(id).collect()
}

fn ids(listed: &Value) -> Vec<&str> {
    let all = listed.as_array().unwrap().iter();
    all.map(|one| one["activationId"].as_str().unwrap()).collect()
}

#[test]
fn an_activation_is_returned_whole_and_in_parts() {
    let bed = Bed::new();
    bed.create("hello");
    let id = &called(&bed, &[("hello", 5)])[0];
    let whole = bed.get(&format!("activations/{id}")).good();
    assert_eq!(
        (&whole["start"], &whole["end"], &whole["duration"]),
        (&json!(5), &json!(12), &json!(7))
    );
    let logs = bed.get(&format!("activations/{id}/logs")).good();
    assert_eq!(logs, json!({ "logs": whole["logs"] }));
    let result = bed.get(&format!("activations/{id}/result")).good();
    assert_eq!(result["result"], json!({"at": 5}));
    assert_eq!((&result["success"], &result["status"]), (&json!(true), &json!("success")));
    for bad in ["x", &"g".repeat(32), &"0".repeat(31)] {
        for part in ["", "/logs", "/result"] {
            let path = format!("activations/{bad}{part}");
            bed.get(&path).assert_error(400, "32 hexadecimal digits");
        }
    }
    bed.get(&format!("activations/{}", "0".repeat(32))).assert_error(404, "activation");
    // Knowing an id is not enough without the key.
    let path = format!("/api/v1/namespaces/_/activations/{id}");
    bed.ask(Some(OTHER), "GET", &path, b"").assert_error(404, "activation");
}

#[test]
fn lists_are_chosen_by_name_and_time() {
    let bed = Bed::new();
    bed.create("a");
    bed.create("b");
    let made = called(&bed, &[("a", 10), ("b", 20), ("a", 30), ("b", 40)]);
    let listed = |query: &str| {
        let listed = bed.get(&format!("activations{query}")).good();
        let position = |id: &str| made.iter().position(|one| one == id).unwrap();
        ids(&listed).into_iter().map(position).collect::<Vec<_>>()
    };
    assert_eq!(listed(""), [3, 2, 1, 0], "the latest first");
    assert_eq!(listed("?limit=2&skip=1"), [2, 1]);
    assert_eq!(listed("?name=a"), [2, 0]);
    assert_eq!(listed("?since=20&upto=30"), [2, 1]);
    assert_eq!(listed("?since=31&name=a"), Vec::<usize>::new());
    assert_eq!(listed("?upto=9"), Vec::<usize>::new());
    assert_eq!(bed.get("activations?count=true&since=20").good(), json!({"activations": 3}));
    bed.get("activations?limit=201").assert_error(400, "at most 200");
    bed.get("activations?name=a%2Fb").assert_error(400, "invalid name");
    bed.get("activations?since=yesterday").assert_error(400, "query");
}

#[test]
fn lists_have_summaries_unless_documents_are_requested() {
    let bed = Bed::new();
    bed.create("a");
    called(&bed, &[("a", 10)]);
    let summary = &bed.get("activations").good()[0];
    assert!(summary.get("response").is_none() && summary.get("logs").is_none(), "{summary}");
    assert_eq!((&summary["statusCode"], &summary["name"]), (&json!(0), &json!("a")));
    // As `wsk activation poll` requests repeatedly.
    let whole = &bed.get("activations?docs=true&since=0&limit=0").good()[0];
    assert_eq!(whole["response"]["result"], json!({"at": 10}));
    assert!(whole["logs"].is_array());
}
