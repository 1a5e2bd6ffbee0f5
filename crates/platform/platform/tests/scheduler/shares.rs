//! Shares of near memory: which instances get one, and that nothing changes where none is decided.

use std::time::Duration;

use farfork_platform::api::Action;
use farfork_platform::scheduler::nodes::Usage;
use farfork_policy::Settings;
use farfork_types::LocalShare;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

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

#[tokio::test(start_paused = true)]
async fn a_declared_share_is_that_of_all_clones_whatever_the_policy() {
    for policies in [json!({}), json!({"share": {"policy": "fixed", "local_permille": 900}})] {
        let world = world(policies);
        let share = json!([{"key": "local-share", "value": 300}]);
        let shares = clones(&world, json!({"annotations": share})).await;
        assert!(!shares.is_empty() && shares.iter().all(|share| *share == 300), "{shares:?}");
        assert_eq!(asked(&world), Vec::<Value>::new(), "no policy is asked");
        assert_eq!(changes(&world), []);
    }
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
    assert_eq!(changes(&world), []);
}

/// The changes of shares of running instances: the instance, and its shares in thousandths.
fn changes(world: &World) -> Vec<(u64, u16, u16)> {
    let state = world.nodes.state();
    let change =
        |(id, from, to): &(u64, LocalShare, LocalShare)| (*id, from.permille(), to.permille());
    state.share_changes.iter().map(change).collect()
}

/// Learns from four calls at each share, which are multiples of 100 thousandths.
fn learning() -> World {
    let world = world(json!({"share": {
        "policy": "adaptive", "learn_calls": 4, "least_calls": 2, "step_permille": 100,
    }}));
    world.nodes.state().usage = Some(Usage { local_bytes: 7 << 20, pool_bytes: 1 << 20 });
    world
}

/// Two calls at once, as often, which run so long; returns how long both of them took beyond that.
async fn pairs(world: &World, action: &Action, ms: u64, times: usize) -> Vec<Duration> {
    let mut waits = Vec::new();
    for _ in 0..times {
        let begun = Instant::now();
        for call in [0; 2].map(|_| world.begin(action, json!({"ms": ms}))) {
            answered(call).await;
        }
        waits.push(begun.elapsed() - Duration::from_millis(ms));
    }
    waits
}

/// The calls with all memory near of those of 50 and 90 ms so far, as a start that these calls need is decided with.
async fn learnt_by_now(world: &World, action: &Action) -> u64 {
    for call in [0; 3].map(|_| world.begin(action, json!({"ms": 50}))) {
        answered(call).await;
    }
    learnt(world, 1000)
}

/// A function with an instance that has loaded its code, and a clone that has started for calls of 50 ms, of which
/// `known` were made before.
async fn with_clone(world: &World, known: usize) -> (Action, u64) {
    let action = world.action("sharing", "code", json!({}));
    world.calls(&action, 20).await;
    for _ in 0..known {
        world.call(&action, json!({"ms": 50})).await;
    }
    settle().await;
    pairs(world, &action, 50, 1).await;
    let [_, clone] = world.nodes.alive()[..] else { panic!("{:?}", world.nodes.alive()) };
    (action, clone)
}

#[tokio::test(start_paused = true)]
async fn a_share_that_is_too_slow_is_raised_before_the_next_call() {
    let world = learning();
    let (action, clone) = with_clone(&world, 4).await;
    let started = world.nodes.state().shares.clone();
    assert_eq!(started, [LocalShare::from_permille(900).unwrap()]);
    pairs(&world, &action, 50, 1).await;
    assert_eq!(changes(&world), [], "nothing is slower yet");
    // Of the instance without an image, whose share is never changed, most calls were fast.
    pairs(&world, &action, 90, 5).await;
    assert_eq!(changes(&world), [(clone, 900, 1000)]);
    pairs(&world, &action, 50, 10).await;
    assert_eq!(changes(&world).len(), 1, "it has the share by now");
    // Four, and then one of each pair, were made by the other instance.
    let known = learnt_by_now(&world, &action).await;
    assert!(known > 4 + 17, "its calls count for its new share: {known}");
    world.replay();
}

#[tokio::test(start_paused = true)]
async fn a_share_is_lowered_only_where_there_is_far_memory() {
    for has_far_memory in [false, true] {
        let world = learning();
        world.nodes.state().has_far_memory = has_far_memory;
        let (action, clone) = with_clone(&world, 0).await;
        pairs(&world, &action, 50, 6).await;
        let lowered = if has_far_memory { vec![(clone, 1000, 900)] } else { Vec::new() };
        assert_eq!(changes(&world), lowered);
        // Where it is not lowered, calls go on showing what all near memory is worth.
        assert_eq!(learnt_by_now(&world, &action).await > 10, !has_far_memory);
        world.replay();
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_change_delays_no_call_for_long_and_a_failed_one_fails_none() {
    for (result, seconds) in [(Ok(true), 2), (Ok(false), 0), (Err("on purpose"), 0)] {
        let world = learning();
        let (action, clone) = with_clone(&world, 4).await;
        {
            let mut state = world.nodes.state();
            (state.share_change, state.share_duration) = (result, Duration::from_secs(seconds));
        }
        let waits = pairs(&world, &action, 90, 7).await;
        let most = waits.iter().max().unwrap().as_millis();
        // The clone's call waits for a short change, and 100 ms for one that takes longer.
        assert!(if seconds > 0 { (100..120).contains(&most) } else { most < 20 }, "{waits:?}");
        assert_eq!(changes(&world), [(clone, 900, 1000)], "once, whatever comes of it");
        pairs(&world, &action, 50, 4).await;
        sleep(Duration::from_secs(seconds)).await;
        pairs(&world, &action, 50, 8).await;
        // One of each of 20 pairs, and four before them, were made by the other instance.
        let known = learnt_by_now(&world, &action).await;
        assert_eq!(known > 24, result == Ok(true), "{known}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_without_room_is_tried_again() {
    let world = learning();
    let (action, clone) = with_clone(&world, 4).await;
    world.nodes.state().full_shares = 3;
    pairs(&world, &action, 90, 4).await;
    assert_eq!(changes(&world), []);
    pairs(&world, &action, 90, 4).await;
    assert_eq!((changes(&world), world.nodes.state().full_shares), (vec![(clone, 900, 1000)], 0));
}
