//! Instances whose server executes another program.

use std::path::Path;
use std::time::Duration;

use farfork_platform::api::{Action, Outcome};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::nodes::CHECKPOINT;
use crate::world::{World, annotation, kind, settle};

const SCRIPT: &str = "#!/bin/sh\n";

fn blackbox(world: &World, limits: &Value) -> Action {
    let more = json!({"exec": {"kind": "blackbox", "code": SCRIPT}, "limits": limits});
    world.action("program", SCRIPT, more)
}

#[tokio::test(start_paused = true)]
async fn a_program_is_launched_once_and_gets_openwhisks_requests() {
    let world = World::new();
    let action = blackbox(&world, &json!({}));
    world.nodes.state().deaf_connects = 3;
    let made = world.call(&action, json!({})).await;
    assert_eq!(made.response.status, Outcome::Success, "{made:?}");
    // Waiting for it counts as loading, which takes 300 ms here.
    assert!(annotation(&made, "initTime").unwrap().as_u64().unwrap() >= 310, "{made:?}");
    let launch = world.nodes.script().launch.clone();
    let init = world.nodes.script().init.clone();
    let folder = Path::new(launch["folder"].as_str().unwrap());
    assert_eq!(launch["program"], folder.join("exec").to_str().unwrap());
    assert_eq!(std::fs::read_to_string(folder.join("exec")).unwrap(), SCRIPT);
    assert_eq!(launch["arguments"], json!([]));
    assert_eq!(launch["environment"]["HOME"], "/tmp");
    assert!(launch["environment"].get("PYTHONPATH").is_none(), "{launch}");
    assert_eq!(launch["confinement"]["user"], 2_000_000_000);
    assert_eq!(init.as_object().unwrap().keys().collect::<Vec<_>>(), ["value"]);
    assert_eq!(world.call(&action, json!({})).await.response.status, Outcome::Success);
    assert_eq!(world.nodes.events(), ["cold 1 on node1", "launch 1", "init 1", "run 1", "run 1"]);
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_program_are_not_launched() {
    let world = World::new();
    let action = blackbox(&world, &json!({}));
    world.calls(&action, 16).await;
    tokio::time::sleep(2 * CHECKPOINT).await;
    world.nodes.events();
    let calls = [world.begin(&action, json!({"ms": 50})), world.begin(&action, json!({"ms": 50}))];
    let mut kinds = Vec::new();
    for call in calls {
        kinds.push(kind(&crate::world::answered(call).await));
    }
    kinds.sort();
    assert_eq!(kinds, ["clone", "warm"]);
    assert!(!world.nodes.events().iter().any(|event| event.starts_with("launch")));
}

#[tokio::test(start_paused = true)]
async fn a_program_gets_each_call_on_a_connection_of_its_own() {
    let world = World::new();
    let python = world.action("python", "code", json!({}));
    world.calls(&python, 3).await;
    assert_eq!(world.nodes.state().connections, 1);
    let action = blackbox(&world, &json!({}));
    world.calls(&action, 3).await;
    let connections = world.nodes.state().connections;
    assert_eq!(connections, 1 + 1 + 1 + 3, "to launch it, by which it is found, and for each call");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_executed_is_a_developer_error() {
    let world = World::new();
    let action = blackbox(&world, &json!({}));
    world.nodes.script().failing_launch = Some("cannot execute it");
    let made = world.call(&action, json!({})).await;
    assert_eq!(made.response.status, Outcome::DeveloperError);
    let words = "The action failed to initialize: cannot execute it.";
    assert_eq!(made.response.result.value()["error"], words);
    settle().await;
    assert_eq!(world.nodes.events(), ["cold 1 on node1", "launch 1", "end 1"], "it is not retried");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_never_listens_is_given_up_at_its_limit() {
    let world = World::new();
    let action = blackbox(&world, &json!({"timeout": 5000}));
    world.nodes.state().deaf_connects = u32::MAX;
    let begun = Instant::now();
    let made = world.call(&action, json!({})).await;
    assert_eq!(made.response.status, Outcome::DeveloperError);
    let words = made.response.result.value()["error"].as_str().unwrap().to_owned();
    assert!(words.contains("did not listen on port 8080"), "{words}");
    assert!(words.contains("5000 milliseconds"), "{words}");
    // Includes the wait for logs.
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
    settle().await;
    assert_eq!(world.nodes.alive(), [0; 0]);
}
