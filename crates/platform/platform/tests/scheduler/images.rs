//! Removal of images when the pool is full.

use std::time::Duration;

use farfork_platform::api::Action;
use farfork_platform::scheduler::nodes::Usage;
use farfork_policy::Settings;
use farfork_policy::reclaim::BetweenMarks;
use serde_json::json;
use tokio::time::sleep;

use crate::nodes::{IMAGE_BYTES, POOL_BYTES, TestNodes};
use crate::world::{World, answered, kind, settle};

/// The operator's image in the pool.
const OTHERS: [&str; 2] = ["farfork/python:base", "guest/other:1"];

/// The marks are closer than an image, which takes 62 ‰ of the pool.
fn settings() -> Settings {
    let reclaim = BetweenMarks { high_permille: 900, low_permille: 850 };
    Settings { reclaim, ..Settings::default() }
}

/// A platform with an image of each of these functions.
async fn with_images<const N: usize>(names: [&str; N]) -> (World, [Action; N]) {
    with_images_by(settings(), names).await
}

async fn with_images_by<const N: usize>(
    settings: Settings,
    names: [&str; N],
) -> (World, [Action; N]) {
    let world = World::with(TestNodes::new(&[("node1", 2200), ("node2", 2200)]), settings);
    world.nodes.state().images.extend(OTHERS.map(str::to_owned));
    let actions = names.map(|name| world.action(name, "code", json!({})));
    for action in &actions {
        world.calls(action, 16).await;
        settle().await;
    }
    assert_eq!(functions(&world), names);
    (world, actions)
}

/// The functions with an image.
fn functions(world: &World) -> Vec<String> {
    let state = world.nodes.state();
    let others = |name: &&String| !OTHERS.contains(&name.as_str());
    let function = |name: &String| name["guest/".len()..name.find(':').unwrap()].to_owned();
    state.images.iter().filter(others).map(function).collect()
}

/// Sets the pool's use in thousandths, and waits until it is seen.
async fn filled(world: &World, permille: u64) {
    let images = world.nodes.state().images.len() as u64 * IMAGE_BYTES;
    world.nodes.state().pool_bytes = POOL_BYTES * permille / 1000 - images;
    sleep(Duration::from_millis(2500)).await;
}

async fn burst(world: &World, action: &Action) -> Vec<String> {
    let calls: Vec<_> = (0..3).map(|_| world.begin(action, json!({"ms": 50}))).collect();
    let mut kinds = Vec::new();
    for call in calls {
        kinds.push(kind(&answered(call).await));
    }
    kinds.sort();
    kinds
}

#[tokio::test(start_paused = true)]
async fn only_the_least_started_image_is_removed() {
    let (world, [first, second]) = with_images(["a", "b"]).await;
    assert_eq!(burst(&world, &first).await, ["clone", "clone", "warm"]);
    filled(&world, 899).await;
    assert_eq!(functions(&world), ["a", "b"], "there is room");
    filled(&world, 901).await;
    assert_eq!(functions(&world), ["a"]);
    assert!(OTHERS.iter().all(|name| world.nodes.state().images.contains(*name)));
    // Its function goes on without, and is checkpointed again after as many calls as it had made,
    // from an instance that has answered enough of them.
    assert_eq!(burst(&world, &second).await, ["cold", "cold", "warm"]);
    world.calls(&second, 12).await;
    settle().await;
    assert_eq!(functions(&world), ["a"]);
    world.calls(&second, 16).await;
    settle().await;
    assert_eq!(functions(&world), ["a", "b"]);
    world.replay();
}

#[tokio::test(start_paused = true)]
async fn the_mark_may_be_any() {
    let reclaim = BetweenMarks { high_permille: 500, low_permille: 450 };
    let (world, _) = with_images_by(Settings { reclaim, ..settings() }, ["a", "b"]).await;
    filled(&world, 499).await;
    assert_eq!(functions(&world), ["a", "b"], "there is room");
    filled(&world, 501).await;
    assert_eq!(functions(&world).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn images_with_living_clones_stay() {
    let (world, _) = with_images(["a", "b"]).await;
    let images = world.nodes.state().images.clone();
    world.nodes.state().pinned = images;
    filled(&world, 990).await;
    assert_eq!(functions(&world), ["a", "b"]);
    // With unchanged facts, no decision is made.
    let asked = world.replay();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.replay(), asked);
    world.nodes.state().pinned.clear();
    sleep(Duration::from_secs(2)).await;
    assert!(functions(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn images_of_uncalled_functions_are_removed_too() {
    let (world, _) = with_images(["a"]).await;
    let World { nodes, store, directory, .. } = world;
    let later = World::on(nodes, store, directory, settings());
    filled(&later, 901).await;
    assert!(functions(&later).is_empty());
    assert_eq!(later.nodes.state().images.len(), OTHERS.len());
}

#[tokio::test(start_paused = true)]
async fn an_image_is_removed_for_one_that_is_due() {
    let (world, _) = with_images(["a", "b"]).await;
    let due = world.action("c", "code", json!({}));
    filled(&world, 800).await;
    // More than the whole pool.
    let usage = |megabytes: u64| Some(Usage { local_bytes: 1 << 20, pool_bytes: megabytes << 20 });
    world.nodes.state().usage = usage(1024);
    world.calls(&due, 16).await;
    filled(&world, 800).await;
    assert_eq!(functions(&world), ["a", "b"], "none is removed in vain");
    world.nodes.state().usage = None;
    let larger = world.action("d", "code", json!({}));
    world.nodes.state().usage = usage(240);
    world.calls(&larger, 16).await;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(functions(&world).len(), 1);
    world.calls(&larger, 1).await;
    settle().await;
    assert!(functions(&world).contains(&"d".to_owned()));
    world.replay();
}

/// The image takes more than the measured memory of its instance.
#[tokio::test(start_paused = true)]
async fn an_image_is_removed_for_one_that_is_larger_than_expected() {
    let reclaim = BetweenMarks { high_permille: 1000, low_permille: 1000 };
    let (world, _) = with_images_by(Settings { reclaim, ..settings() }, ["a", "b"]).await;
    let due = world.action("c", "code", json!({}));
    // Less than an image takes, but more than expected.
    filled(&world, 960).await;
    world.nodes.state().usage = Some(Usage { local_bytes: 1 << 20, pool_bytes: 10 << 20 });
    world.calls(&due, 16).await;
    settle().await;
    assert_eq!(functions(&world), ["a", "b"], "it was tried");
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(functions(&world).len(), 1);
    world.calls(&due, 1).await;
    settle().await;
    assert!(functions(&world).contains(&"c".to_owned()));
    assert_eq!(world.nodes.events().iter().filter(|e| e.starts_with("checkpoint")).count(), 4);
    world.replay();
}
