//! Instances that have nothing to do stand still.

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

/// They stand still after two seconds, and end after a minute.
fn world() -> World {
    let long = ByPressure { long_ms: 60_000, ..ByPressure::default() };
    let settings = Settings {
        keep_alive: KeepAlive::ByPressure(long),
        freeze: Freeze { after_ms: AFTER.as_millis() as u64 },
        ..Settings::default()
    };
    World::with(TestNodes::new(&[("node1", 1100), ("node2", 1100)]), settings)
}

fn told(world: &World) -> Vec<String> {
    std::mem::take(&mut world.nodes.state().freezer)
}

#[tokio::test(start_paused = true)]
async fn what_has_no_call_for_a_while_stands_still_until_the_next() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    for _ in 0..3 {
        let first = world.call(&action, json!({})).await;
        sleep(AFTER / 2).await;
        let second = world.call(&action, json!({})).await;
        assert_eq!(first.response.result["instance"], second.response.result["instance"]);
        sleep(AFTER - Duration::from_millis(1)).await;
        assert!(!told(&world).contains(&"freeze 1".to_owned()), "it was called meanwhile");
        sleep(AFTER).await;
        assert_eq!(told(&world), ["freeze 1"], "once is enough");
    }
    world.call(&action, json!({})).await;
    assert_eq!(told(&world), ["thaw 1"]);
    sleep(Duration::from_secs(59)).await;
    assert_eq!(world.nodes.alive(), [1], "its time is that without it");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.nodes.alive(), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_while_one_is_told_to_waits_for_that() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    world.call(&action, json!({})).await;
    settle().await;
    while world.nodes.state().freezer.is_empty() {
        sleep(FREEZE / 4).await;
    }
    assert!(world.nodes.state().frozen.is_empty(), "it does not stand still yet");
    is_warm(&world, &action).await;
    sleep(2 * FREEZE).await;
    assert!(world.nodes.state().frozen.is_empty(), "it was told to go on before it stood still");
}

#[tokio::test(start_paused = true)]
async fn one_that_may_stand_still_is_told_to_go_on() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    world.call(&action, json!({})).await;
    world.nodes.state().failing_freezes = 1;
    sleep(2 * AFTER).await;
    is_warm(&world, &action).await;
}

/// The next call goes to the same instance, which is told to go on.
async fn is_warm(world: &World, action: &Action) {
    let made = world.call(action, json!({})).await;
    assert_eq!((&*kind(&made), told(world)), ("warm", vec!["freeze 1".into(), "thaw 1".into()]));
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_go_on_ends_and_its_call_is_anothers() {
    let world = world();
    let action = world.action("a", "code", json!({}));
    world.call(&action, json!({})).await;
    sleep(2 * AFTER).await;
    world.nodes.state().failing_thaws = 1;
    let made = world.call(&action, json!({})).await;
    assert_eq!((&*kind(&made), &made.response.result["instance"]), ("cold", &json!(2)));
    settle().await;
    assert_eq!(world.nodes.alive(), [2]);
}
