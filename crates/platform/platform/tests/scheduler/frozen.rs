//! Freezing idle instances.

use std::time::Duration;

use farfork_platform::api::Action;
use farfork_policy::Settings;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{Freeze, KeepAlive};
use serde_json::json;
use tokio::time::sleep;

use crate::nodes::{FREEZE, TestNodes};
use crate::world::{World, kind, settle};

const AFTER: Duration = Duration::from_secs(2);

/// Idle instances are frozen after two seconds, and end after a minute.
fn world() -> World {
    let long = ByPressure { long_ms: 60_000, ..ByPressure::default() };
    let settings = Settings {
        keep_alive: KeepAlive::ByPressure(long),
        freeze: Freeze { after_ms: AFTER.as_millis() as u64 },
        ..Settings::default()
    };
    World::with(TestNodes::new(&[("node1", 1100), ("node2", 1100)]), settings)
}

fn requests(world: &World) -> Vec<String> {
    std::mem::take(&mut world.nodes.state().freezer)
}

#[tokio::test(start_paused = true)]
async fn an_idle_instance_is_frozen_until_its_next_call() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    for _ in 0..3 {
        let first = world.call(&action, json!({})).await;
        sleep(AFTER / 2).await;
        let second = world.call(&action, json!({})).await;
        assert_eq!(
            first.response.result.value()["instance"],
            second.response.result.value()["instance"]
        );
        sleep(AFTER - Duration::from_millis(1)).await;
        assert!(!requests(&world).contains(&"freeze 1".to_owned()), "it was called meanwhile");
        sleep(AFTER).await;
        assert_eq!(requests(&world), ["freeze 1"], "once is enough");
    }
    world.call(&action, json!({})).await;
    assert_eq!(requests(&world), ["thaw 1"]);
    sleep(Duration::from_secs(59)).await;
    assert_eq!(world.nodes.alive(), [1], "its time is that without it");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.nodes.alive(), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_during_a_freeze_waits_for_its_end() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    world.call(&action, json!({})).await;
    settle().await;
    while world.nodes.state().freezer.is_empty() {
        sleep(FREEZE / 4).await;
    }
    assert!(world.nodes.state().frozen.is_empty(), "it is not frozen yet");
    is_warm(&world, &action).await;
    sleep(2 * FREEZE).await;
    assert!(world.nodes.state().frozen.is_empty(), "it was thawed before it was frozen");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_may_be_frozen_is_thawed() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    world.call(&action, json!({})).await;
    world.nodes.state().failing_freezes = 1;
    sleep(2 * AFTER).await;
    is_warm(&world, &action).await;
}

/// The next call goes to the same instance, which is thawed.
async fn is_warm(world: &World, action: &Action) {
    let made = world.call(action, json!({})).await;
    assert_eq!(
        (&*kind(&made), requests(world)),
        ("warm", vec!["freeze 1".into(), "thaw 1".into()])
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_cannot_be_thawed_ends_and_its_call_is_retried() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    world.call(&action, json!({})).await;
    sleep(2 * AFTER).await;
    world.nodes.state().failing_thaws = 1;
    let made = world.call(&action, json!({})).await;
    assert_eq!((&*kind(&made), &made.response.result.value()["instance"]), ("cold", &json!(2)));
    settle().await;
    assert_eq!(world.nodes.alive(), [2]);
}
