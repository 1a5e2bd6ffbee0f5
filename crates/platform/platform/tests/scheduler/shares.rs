//! Shares of near memory: which instances get one, and that nothing changes where none is decided.

use std::time::Duration;

use farfork_platform::scheduler::nodes::Usage;
use farfork_policy::Settings;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::nodes::TestNodes;
use crate::world::{World, answered, settle};

fn world(policies: Value) -> World {
    let settings: Settings = serde_json::from_value(policies).unwrap();
    World::with(TestNodes::new(&[("node1", 3000)]), settings)
}

/// The facts of the questions about shares in the journal.
fn asked(world: &World) -> Vec<Value> {
    let text = std::fs::read_to_string(world.directory.path().join("journal")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["question"] == "share").map(|line| line["facts"].clone()).collect()
}

/// Calls a function until it has an image, and then three times at once, which needs clones, and once more.
async fn clones(world: &World, more: Value) -> Vec<u16> {
    world.nodes.state().usage = Some(Usage { local_bytes: 7 << 20, pool_bytes: 1 << 20 });
    let action = world.action("sharing", "code", more);
    world.calls(&action, 40).await;
    settle().await;
    for _ in 0..2 {
        let burst =
            [0; 5].map(|_| world.begin(&action, json!({"ms": 50, "text": "x".repeat(100)})));
        for one in burst {
            answered(one).await;
        }
        sleep(Duration::from_secs(1800)).await;
    }
    world.replay();
    world.nodes.state().shares.iter().map(|share| share.permille()).collect()
}

#[tokio::test(start_paused = true)]
async fn clones_start_with_the_share_of_the_settings() {
    let world = world(json!({"share": {"policy": "fixed", "local_permille": 300}}));
    let shares = clones(&world, json!({})).await;
    assert!(!shares.is_empty() && shares.iter().all(|share| *share == 300), "{shares:?}");
    let asked = asked(&world);
    assert_eq!(asked.len(), shares.len());
    // What calls have shown is known: those of the instance without an image had all near.
    let seen = |facts: &Value| facts["observed"].to_string();
    assert!(asked.iter().any(|facts| seen(facts).contains("\"local_permille\":1000")), "{asked:?}");
    assert!(asked.iter().any(|facts| seen(facts).contains("\"near_bytes\":7340032")), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_declared_tolerance_has_shares_decided() {
    let world = world(json!({}));
    let tolerance = json!([{"key": "latency-tolerance", "value": 5}]);
    let shares = clones(&world, json!({"annotations": tolerance})).await;
    let asked = asked(&world);
    assert!(asked.iter().all(|facts| facts["tolerance_permille"] == 50), "{asked:?}");
    assert_eq!(asked.len(), shares.len());
    assert!(!shares.is_empty());
}

/// The calls that were made with a share, as the last question about the function had them.
fn learnt(world: &World, permille: u64) -> u64 {
    let asked = asked(world);
    let cells = asked.last().unwrap()["observed"].as_array().unwrap();
    let of_share = cells.iter().find(|cell| cell["local_permille"] == permille);
    of_share.map_or(0, |cell| cell["calls"].as_u64().unwrap())
}

#[tokio::test(start_paused = true)]
async fn nothing_is_learnt_of_a_share_that_instances_do_not_have() {
    for lacks_shares in [false, true] {
        let world = world(json!({"share": {"policy": "fixed", "local_permille": 300}}));
        world.nodes.state().lacks_shares = lacks_shares;
        clones(&world, json!({})).await;
        assert_eq!(learnt(&world, 300) == 0, lacks_shares, "{:?}", asked(&world));
        assert!(learnt(&world, 1000) > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_gets_the_share_for_the_call_that_it_starts_for() {
    let world = world(json!({"share": {"policy": "fixed", "local_permille": 300}}));
    let action = world.action("sharing", "code", json!({}));
    world.calls(&action, 40).await;
    settle().await;
    let mut calls = Vec::new();
    // The first takes the instance that rests. The third comes while one starts for the second.
    for bytes in [1, 100, 10_000] {
        calls.push(world.begin(&action, json!({"ms": 50, "text": "x".repeat(bytes)})));
        sleep(Duration::from_millis(1)).await;
    }
    for call in calls {
        answered(call).await;
    }
    let bytes: Vec<u64> =
        asked(&world).iter().map(|facts| facts["payload_bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [128, 16_384], "as bins have them");
}

#[tokio::test(start_paused = true)]
async fn by_default_nothing_is_asked() {
    let world = world(json!({}));
    assert_eq!(clones(&world, json!({})).await, Vec::<u16>::new());
    assert_eq!(asked(&world), Vec::<Value>::new());
}
