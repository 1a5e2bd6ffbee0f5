//! Nodes without room.

use std::time::Duration;

use farfork_platform::api::Outcome;
use farfork_policy::Settings;
use farfork_policy::admission::LeastWorthFirst;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::nodes::TestNodes;
use crate::world::{World, answered, kind, settle};

/// One node with room for this many instances of the default size.
fn small(instances: u64) -> World {
    // Instances may take 95 % of it.
    let nodes = TestNodes::new(&[("node1", instances * 256 * 100 / 94)]);
    World::with(nodes, Settings::default())
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_an_instance_that_is_busy() {
    let world = small(1);
    let action = world.action("a", "code", json!({}));
    let calls: Vec<_> = (0..3).map(|_| world.begin(&action, json!({"ms": 700}))).collect();
    for call in calls {
        let made = answered(call).await;
        assert_eq!(made.response.result.value()["instance"], 1);
    }
    assert_eq!(world.nodes.alive(), [1]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_instance_is_evicted_for_another_function() {
    let world = small(2);
    let [first, second, third] = ["a", "b", "c"].map(|name| world.action(name, "code", json!({})));
    // A frequently used instance is worth more.
    world.calls(&first, 5).await;
    world.calls(&second, 1).await;
    let begun = Instant::now();
    let made = world.call(&third, json!({})).await;
    assert_eq!((made.response.status, kind(&made)), (Outcome::Success, "cold".into()));
    assert!(begun.elapsed() < Duration::from_secs(2), "no window had to run out");
    settle().await;
    assert_eq!(world.nodes.alive(), [1, 3]);
    world.replay();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fits_nowhere_is_refused_in_time() {
    let world = small(1);
    let action = world.action("a", "code", json!({"limits": {"memory": 512}}));
    let made = world.call(&action, json!({})).await;
    assert_eq!(made.response.status, Outcome::InternalError);
    assert!(world.nodes.alive().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_ghosts_are_evicted_before_a_call_is_refused() {
    let world = small(1);
    world.nodes.state().ghosts = ["ghost x", "ghost y"].map(|id| (id.to_owned(), 20 << 20)).into();
    let action = world.action("a", "code", json!({}));
    let made = world.call(&action, json!({})).await;
    assert_eq!((made.response.status, kind(&made)), (Outcome::Success, "cold".into()));
    assert!(world.nodes.state().ghosts.is_empty(), "an instance has all but 14 MiB");
    world.replay();
}

#[tokio::test(start_paused = true)]
async fn evictions_happen_on_the_node_where_they_suffice() {
    let nodes = TestNodes::new(&[("node1", 300), ("node2", 300)]);
    nodes.state().ghosts = [("ghost x".to_owned(), 20 << 20)].into();
    {
        // One node has more free memory; on the other, evictions free enough.
        let mut state = nodes.state();
        state.ghosts_on = Some("node2".to_owned());
        state.nodes[0].memory.used_bytes = 32 << 20;
        state.nodes[1].memory.used_bytes = 15 << 20;
    }
    let world = World::with(nodes, Settings::default());
    let action = world.action("a", "code", json!({}));
    assert_eq!(world.call(&action, json!({})).await.response.status, Outcome::Success);
    assert!(world.nodes.events().contains(&"cold 1 on node2".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_memory_that_is_set_aside_for_a_moment() {
    let world = small(1);
    {
        let mut state = world.nodes.state();
        (state.is_settling, state.nodes[0].memory.used_bytes) = (true, 40 << 20);
    }
    let action = world.action("a", "code", json!({}));
    let call = world.begin(&action, json!({}));
    sleep(Duration::from_secs(5)).await;
    {
        let mut state = world.nodes.state();
        (state.is_settling, state.nodes[0].memory.used_bytes) = (false, 0);
    }
    assert_eq!(answered(call).await.response.status, Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_a_while_for_a_node_that_does_not_answer() {
    let world = small(1);
    let action = world.action("a", "code", json!({}));
    let nodes = std::mem::take(&mut world.nodes.state().nodes);
    let call = world.begin(&action, json!({}));
    sleep(Duration::from_secs(8)).await;
    world.nodes.state().nodes = nodes;
    assert_eq!(answered(call).await.response.status, Outcome::Success);
    let other = world.action("b", "code", json!({}));
    world.nodes.state().nodes.clear();
    let begun = Instant::now();
    let made = world.call(&other, json!({})).await;
    assert_eq!(made.response.status, Outcome::InternalError, "no node answers");
    assert!(begun.elapsed() < Duration::from_secs(12));
}

#[tokio::test(start_paused = true)]
async fn many_may_be_idle_where_few_may_be_busy() {
    let world = small(2);
    world.nodes.state().held_bytes = Some(8 << 20);
    let actions = ["a", "b", "c", "d"].map(|name| world.action(name, "code", json!({})));
    for action in &actions {
        world.calls(action, 1).await;
    }
    settle().await;
    assert_eq!(world.nodes.alive(), [1, 2, 3, 4], "none was evicted");
    let begun = Instant::now();
    let calls = actions.each_ref().map(|action| world.begin(action, json!({"ms": 700})));
    let mut made = Vec::new();
    for call in calls {
        made.push(answered(call).await);
    }
    assert!(made.iter().all(|made| made.response.status == Outcome::Success));
    assert!(begun.elapsed() >= Duration::from_millis(1400), "two may work at a time");
    world.replay();
}

#[tokio::test(start_paused = true)]
async fn idle_instances_end_when_a_node_runs_out_of_memory() {
    let world = small(2);
    world.nodes.state().held_bytes = Some(8 << 20);
    let [first, second] = ["a", "b"].map(|name| world.action(name, "code", json!({})));
    world.calls(&first, 3).await;
    world.calls(&second, 1).await;
    settle().await;
    assert_eq!(world.nodes.alive(), [1, 2]);
    let budget = world.nodes.state().nodes[0].memory.budget_bytes;
    world.nodes.state().nodes[0].memory.used_bytes = budget * 93 / 100;
    settle().await;
    settle().await;
    assert_eq!(world.nodes.alive(), [1], "the one that is used less is worth less");
    world.replay();
}

#[tokio::test(start_paused = true)]
async fn the_eviction_mark_is_a_setting() {
    let admission = LeastWorthFirst { most_memory_permille: 600, ..LeastWorthFirst::default() };
    let nodes = TestNodes::new(&[("node1", 1024)]);
    let world = World::with(nodes, Settings { admission, ..Settings::default() });
    world.nodes.state().held_bytes = Some(8 << 20);
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    let budget = world.nodes.state().nodes[0].memory.budget_bytes;
    for (permille, alive) in [(550, 1), (650, 0)] {
        world.nodes.state().nodes[0].memory.used_bytes = budget * permille / 1000;
        settle().await;
        settle().await;
        assert_eq!(world.nodes.alive().len(), alive, "{permille}");
    }
    world.replay();
}

#[tokio::test(start_paused = true)]
async fn a_start_that_lost_its_room_is_retried() {
    let world = small(2);
    let action = world.action("a", "code", json!({}));
    // More often than a failing start would be retried.
    world.nodes.state().full_starts = 5;
    let made = world.call(&action, json!({})).await;
    assert_eq!((made.response.status, kind(&made)), (Outcome::Success, "cold".into()));
    assert_eq!(world.nodes.alive(), [1]);
}
