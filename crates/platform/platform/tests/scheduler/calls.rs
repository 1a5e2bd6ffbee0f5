//! Outcomes of calls.

use std::time::Duration;

use farfork_platform::api::Outcome;
use farfork_platform::scheduler::Caller;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::world::{World, annotation, kind, name, settle};

#[tokio::test(start_paused = true)]
async fn the_first_call_is_cold_and_later_ones_are_warm() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    let first = world.call(&action, json!({})).await;
    assert_eq!((kind(&first), annotation(&first, "initTime")), ("cold".into(), Some(json!(300))));
    assert_eq!(first.response.result.value()["id"], json!(first.activation_id.to_string()));
    assert_eq!(first.response.result.value()["code"], "code");
    let second = world.call(&action, json!({})).await;
    assert_eq!((kind(&second), annotation(&second, "initTime")), ("warm".into(), None));
    assert_eq!(second.response.result.value()["count"], 2);
    assert_eq!(world.nodes.events(), ["cold 1 on node1", "init 1", "run 1", "run 1"]);
    // It was stored before the caller got it.
    let kept = world.store.activation(&name("guest"), second.activation_id).unwrap();
    assert_eq!(kept, Some(second));
}

#[tokio::test(start_paused = true)]
async fn output_is_in_the_log_of_its_activation() {
    let world = World::new();
    let action = world.action("a", "code", json!({"limits": {"logs": 1}}));
    let text = |line: &String| line.split_once("Z ").unwrap().1.to_owned();
    // Lines of different streams have no order.
    let of = |logs: &[String]| {
        let mut lines: Vec<String> = logs.iter().map(text).collect();
        lines.sort();
        lines
    };
    let first = world.call(&action, json!({})).await;
    assert_eq!(of(&first.logs), ["stdout: called 1"]);
    let raised = world.call(&action, json!({"do": "raise"})).await;
    assert_eq!(of(&raised.logs), ["stderr: Traceback", "stdout: called 2"]);
    // The sentinel may follow an unfinished line.
    let half = world.call(&action, json!({"do": "half"})).await;
    assert_eq!(of(&half.logs), ["stdout: called 1", "stdout: no end of line"]);
    let chat = world.call(&action, json!({"do": "chat", "lines": 2000})).await;
    let (last, kept) = chat.logs.split_last().unwrap();
    assert!(last.contains("exceeds the limit of 1048576 bytes"), "{last}");
    // The limit counts time, stream and overhead of a line.
    let takes = |line: &String| line.len() + size_of::<String>();
    let held: usize = kept.iter().map(takes).sum();
    let more = takes(kept.last().unwrap());
    assert!(held <= 1 << 20 && held + more > 1 << 20, "{held} and {more}");
    let silent = world.call(&action, json!({"do": "silent"})).await;
    assert_eq!(silent.response.result.value(), json!({"silent": true}));
    assert!(of(&silent.logs)[0].contains("may be incomplete"), "{:?}", silent.logs);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_ends_with_its_instance() {
    let world = World::new();
    let action = world.action("a", "code", json!({"limits": {"timeout": 1000}}));
    world.calls(&action, 1).await;
    let begun = Instant::now();
    let late = world.call(&action, json!({"ms": 60_000})).await;
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(late.response.status, Outcome::DeveloperError);
    let words = "exceeded its time limits of 1000 milliseconds";
    assert!(late.response.result.value()["error"].as_str().unwrap().contains(words));
    let next = world.call(&action, json!({})).await;
    assert_eq!(
        (kind(&next), &next.response.result.value()["instance"]),
        ("cold".into(), &json!(2))
    );
    assert_eq!(world.nodes.alive(), [2]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_exits_fails_only_its_call() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    world.nodes.events();
    let died = world.call(&action, json!({"do": "die"})).await;
    assert_eq!(died.response.status, Outcome::DeveloperError);
    assert!(
        died.response.result.value()["error"].as_str().unwrap().contains("exited unexpectedly")
    );
    assert!(died.logs.iter().any(|line| line.contains("killed by signal 11")), "{:?}", died.logs);
    world.calls(&action, 1).await;
    // It was made once.
    let runs = ["run 1", "end 1", "cold 2 on node1", "init 2", "run 2"];
    assert_eq!(world.nodes.events(), runs);
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_code_are_developer_errors() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    for (what, outcome, words, is_kept) in [
        ("raise", Outcome::DeveloperError, "KeyError", false),
        ("number", Outcome::DeveloperError, "did not return a dictionary or array", false),
        ("much", Outcome::DeveloperError, "exceeded the allowed length", false),
        ("fail", Outcome::ApplicationError, "of its own", true),
    ] {
        let before = world.nodes.alive();
        let made = world.call(&action, json!({ "do": what })).await;
        assert_eq!(made.response.status, outcome, "{what}");
        assert!(
            made.response.result.value()["error"].as_str().unwrap().contains(words),
            "{made:?}"
        );
        settle().await;
        assert_eq!(!world.nodes.alive().is_empty(), is_kept, "{what} {before:?}");
    }
    for (code, words) in [("broken", "SyntaxError"), ("deadly", "did not initialize")] {
        let action = world.action(code, code, json!({}));
        let made = world.call(&action, json!({})).await;
        assert_eq!(made.response.status, Outcome::DeveloperError);
        let result = made.response.result.value();
        let said = result["error"].as_str().unwrap();
        assert!(said.contains(words), "{said}");
        assert_eq!(annotation(&made, "initTime").is_some(), code == "broken");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_starts_are_retried_and_given_up() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.nodes.state().failing_starts = 2;
    world.calls(&action, 1).await;
    assert_eq!(world.nodes.alive(), [3]);
    let other = world.action("b", "code", json!({}));
    world.nodes.state().failing_starts = 3;
    let failed = world.call(&other, json!({})).await;
    assert_eq!(failed.response.status, Outcome::InternalError);
    world.calls(&other, 1).await;
}

/// Several requests may be admitted before the first of them has become a call.
#[tokio::test(start_paused = true)]
async fn an_admitted_request_holds_a_slot() {
    let world = World::new();
    let admit = || world.platform.admit(&name("guest"));
    let places: Vec<_> = (0..1000).map(|_| admit().unwrap()).collect();
    assert_eq!(admit().unwrap_err().status(), 429);
    drop(places);
    assert!(admit().is_ok(), "a request without a call gives its slot back");
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_of_a_namespace_are_limited() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    let waiting: Vec<_> = (0..1000).map(|_| world.begin(&action, json!({"ms": 1}))).collect();
    let refused = world.platform.admit(&name("guest")).unwrap_err();
    assert_eq!(refused.status(), 429);
    assert!(world.platform.admit(&name("other")).is_ok());
    for call in waiting {
        let made = crate::world::answered(call).await;
        assert_eq!(made.response.status, Outcome::Success);
    }
    sleep(Duration::from_millis(1)).await;
    assert!(world.platform.admit(&name("guest")).is_ok());
    let used: Vec<Value> = world.nodes.alive().into_iter().map(Value::from).collect();
    assert_eq!(used.len(), 8, "as many as have room");
}
