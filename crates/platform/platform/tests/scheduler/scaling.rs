//! How many instances run, of which kind, and how long.

use std::time::Duration;

use farfork_platform::api::{Action, Activation, Outcome};
use farfork_platform::scheduler::{Caller, Observable};
use farfork_policy::Settings;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::KeepAlive;
use farfork_types::Tiering;
use farfork_types::wire::AddressRange;
use serde_json::{Map, json};
use tokio::time::{Instant, sleep};

use crate::nodes::{CHECKPOINT, TestNodes};
use crate::world::{World, answered, call, kind, settle};

async fn burst(world: &World, action: &Action, count: usize) -> Vec<Activation> {
    let all = burst_of_any_outcome(world, action, count).await;
    assert!(all.iter().all(|made| made.response.status == Outcome::Success), "{all:?}");
    all
}

async fn burst_of_any_outcome(world: &World, action: &Action, count: usize) -> Vec<Activation> {
    let calls: Vec<_> = (0..count).map(|_| world.begin(action, json!({"ms": 50}))).collect();
    let mut all = Vec::new();
    for call in calls {
        all.push(answered(call).await);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_get_their_own_instances() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    let kinds: Vec<String> = burst(&world, &action, 3).await.iter().map(kind).collect();
    assert_eq!(kinds, ["cold"; 3]);
    assert_eq!(world.nodes.alive(), [1, 2, 3]);
    let events = world.nodes.events();
    assert!(events.iter().any(|event| event.ends_with("on node2")), "{events:?}");
    let kinds: Vec<String> = burst(&world, &action, 3).await.iter().map(kind).collect();
    assert_eq!(kinds, ["warm"; 3]);
    // One is enough for sequential calls: the most recently used.
    let used = [world.call(&action, json!({})).await, world.call(&action, json!({})).await];
    assert_eq!(
        used[0].response.result.value()["instance"],
        used[1].response.result.value()["instance"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_an_empty_window_makes_its_first_call() {
    let at_once = ByPressure { long_ms: 0, short_ms: 0, ..ByPressure::default() };
    let keep_alive = KeepAlive::ByPressure(at_once);
    let settings = Settings { keep_alive, ..Settings::default() };
    let world = World::with(TestNodes::new(&[("node1", 1100), ("node2", 1100)]), settings);
    let action = world.action("a", "code", json!({}));
    for started in 1..=2 {
        let made = world.call(&action, json!({})).await;
        assert_eq!((made.response.status, &*kind(&made)), (Outcome::Success, "cold"));
        settle().await;
        assert_eq!(world.nodes.alive(), [0; 0], "it ends with its call");
        let cold = world.nodes.events().iter().filter(|event| event.starts_with("cold")).count();
        assert_eq!(cold, 1, "instance {started}");
    }
}

/// The next call comes as soon as the response of the one before is visible.
#[tokio::test(start_paused = true)]
async fn an_immediate_next_call_finds_the_instance_idle() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    let platform = world.platform.clone();
    let calls = tokio::spawn(async move {
        for _ in 0..15 {
            let place = platform.admit(&action.namespace).unwrap();
            let made = answered(platform.call(call(&action, Map::new()), place)).await;
            assert_eq!(made.response.status, Outcome::Success);
        }
    });
    calls.await.unwrap();
    assert_eq!(world.nodes.alive(), [1]);
}

#[tokio::test(start_paused = true)]
async fn after_the_sixteenth_call_instances_are_clones() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 15).await;
    settle().await;
    assert!(!world.nodes.events().iter().any(|event| event.starts_with("prepare")));
    world.calls(&action, 1).await;
    settle().await;
    assert_eq!(world.nodes.events(), ["run 1", "prepare 1", "checkpoint 1"]);
    let hot = AddressRange { process: None, start: 0x1000, end: 0x2000 };
    assert_eq!(world.nodes.state().hot, [hot]);
    assert_eq!(world.nodes.state().images.len(), 1);
    let mut kinds: Vec<String> = burst(&world, &action, 3).await.iter().map(kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["clone", "clone", "warm"]);
    let events = world.nodes.events();
    assert!(!events.iter().any(|event| event.starts_with("init")), "{events:?}");
    world.calls(&action, 40).await;
    settle().await;
    let again = world.nodes.events().iter().filter(|event| event.starts_with("prep")).count();
    assert_eq!(again, 0, "once is enough");
    assert!(world.replay() > 60);
}

#[tokio::test(start_paused = true)]
async fn starts_in_attached_ghosts_are_counted_separately() {
    let world = World::new();
    world.nodes.state().has_attached = true;
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    settle().await;
    world.nodes.events();
    let mut kinds: Vec<String> = burst(&world, &action, 3).await.iter().map(kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["ghost", "ghost", "warm"]);
    let events = world.nodes.events();
    assert!(!events.iter().any(|event| event.starts_with("init")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_during_the_checkpoint_waits_for_the_image() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    sleep(CHECKPOINT / 2).await;
    world.nodes.events();
    let made = burst(&world, &action, 2).await;
    let mut kinds: Vec<String> = made.iter().map(kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["clone", "warm"]);
    assert!(!world.nodes.events().iter().any(|event| event.starts_with("cold")));
}

#[tokio::test(start_paused = true)]
async fn a_function_whose_images_fail_stays_cold_and_reports_why() {
    let world = World::new();
    world.nodes.state().failing_checkpoints = u32::MAX;
    let action = world.action("a", "code", json!({}));
    for _ in 0..64 {
        world.calls(&action, 16).await;
        settle().await;
    }
    let tried = |events: Vec<String>| events.iter().filter(|e| e.starts_with("checkpoint")).count();
    assert_eq!(tried(world.nodes.events()), 4, "after 16, 32, 64 and 128 calls, and no more");
    let snapshot = world.platform.snapshot();
    let function = &snapshot.functions["guest/a"];
    let reported = function.image_error.as_deref().unwrap_or_default();
    assert!(reported.contains("on purpose"), "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_checkpoint_calls_go_on_and_it_is_retried_later() {
    let world = World::new();
    world.nodes.state().failing_checkpoints = 1;
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    settle().await;
    world.nodes.events();
    world.calls(&action, 15).await;
    settle().await;
    assert!(!world.nodes.events().iter().any(|event| event.starts_with("prep")));
    world.calls(&action, 1).await;
    settle().await;
    assert_eq!(world.nodes.events(), ["run 1", "prepare 1", "checkpoint 1"]);
    assert_eq!(world.nodes.state().images.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_image_of_which_no_clone_starts_is_given_up() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    settle().await;
    world.nodes.events();
    world.nodes.state().failing_starts = 1;
    world.nodes.state().lost_starts = 1;
    // One failure is not enough, and a lost node does not count.
    let mut kinds: Vec<String> = burst(&world, &action, 2).await.iter().map(kind).collect();
    kinds.sort();
    assert_eq!((kinds, world.nodes.state().images.len()), (vec!["clone".into(), "warm".into()], 1));
    world.nodes.state().failing_starts = 2;
    let mut kinds: Vec<String> = burst(&world, &action, 3).await.iter().map(kind).collect();
    kinds.sort();
    assert_eq!((kinds[0].as_str(), world.nodes.state().images.len()), ("cold", 0));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_lost_with_many_starts_costs_no_call() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    settle().await;
    world.nodes.state().lost_starts = 6;
    burst(&world, &action, 6).await;
    // A call that waits long enough fails.
    world.nodes.state().lost_starts = u32::MAX;
    let other = world.action("b", "code", json!({}));
    for made in burst_of_any_outcome(&world, &other, 2).await {
        assert_eq!(made.response.status, Outcome::InternalError);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_instances_end_after_a_while() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    burst(&world, &action, 2).await;
    sleep(Duration::from_secs(300)).await;
    world.calls(&action, 1).await;
    sleep(Duration::from_secs(299)).await;
    assert_eq!(world.nodes.alive().len(), 2);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.nodes.alive().len(), 1, "the other was used meanwhile");
    sleep(Duration::from_secs(300)).await;
    assert!(world.nodes.alive().is_empty());
    assert_eq!(kind(&world.call(&action, json!({})).await), "cold");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_exits_while_idle_fails_no_call() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    // It answers its call, and then exits.
    let died = world.call(&action, json!({"do": "die"})).await;
    assert_eq!(died.response.status, Outcome::DeveloperError);
    settle().await;
    assert!(world.nodes.alive().is_empty());
    world.calls(&action, 2).await;
}

#[tokio::test(start_paused = true)]
async fn windows_follow_the_gaps_between_calls() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    for _ in 0..18 {
        world.calls(&action, 1).await;
        sleep(Duration::from_secs(100)).await;
    }
    // A tenth longer than the gaps between its calls; figures are right within one in ten.
    assert_eq!(world.nodes.alive().len(), 1);
    sleep(Duration::from_secs(25)).await;
    assert!(world.nodes.alive().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_function_near_its_objective_gets_local_copies_unless_the_pool_is_slow() {
    let world = World::new();
    for (name, objective_ms, pool_busy_permille, tiering) in [
        ("near", 11, None, Tiering::Hybrid),
        ("far", 20, None, Tiering::Mow),
        ("at-ease", 11, Some(700), Tiering::Hybrid),
        ("waiting", 11, Some(800), Tiering::Mow),
    ] {
        for node in &mut world.nodes.state().nodes {
            node.pool_busy_permille = pool_busy_permille;
        }
        let slo = json!([{"key": "slo-p99-ms", "value": objective_ms}]);
        let action = world.action(name, "code", json!({ "annotations": slo }));
        world.calls(&action, 40).await;
        settle().await;
        burst(&world, &action, 2).await;
        assert_eq!(std::mem::take(&mut world.nodes.state().tierings), [tiering], "{name}");
    }
}

fn promoted(world: &World) -> Vec<String> {
    world.nodes.events().into_iter().filter(|event| event.starts_with("promote")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_profiled_clone_is_promoted_after_its_call() {
    for (watches, expected) in [(false, &[][..]), (true, &["promote 2"])] {
        let world = World::new();
        world.nodes.state().watches = watches;
        let slo = json!([{"key": "slo-p99-ms", "value": 11}]);
        let action = world.action("near", "code", json!({ "annotations": slo }));
        world.calls(&action, 40).await;
        settle().await;
        burst(&world, &action, 2).await;
        settle().await;
        assert_eq!(world.nodes.state().tierings, [Tiering::Hybrid]);
        assert_eq!(promoted(&world), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn running_clones_are_promoted_when_their_function_comes_near_its_objective() {
    let world = World::new();
    let slo = json!([{"key": "slo-p99-ms", "value": 100}]);
    let action = world.action("slower", "code", json!({ "annotations": slo }));
    world.calls(&action, 40).await;
    settle().await;
    // The first, which was started without an image, makes the other call.
    burst(&world, &action, 2).await;
    assert_eq!(promoted(&world), [""; 0], "it is far from its objective");
    for _ in 0..32 {
        let slow = || world.begin(&action, json!({"ms": 95}));
        for made in [slow(), slow()] {
            answered(made).await;
        }
    }
    assert_eq!(promoted(&world), ["promote 2"], "once, and none but the clone");
    assert_eq!(world.nodes.state().tierings, [Tiering::Mow]);
}

/// The number of the instance that made a call, which is the number of its start.
fn instance(made: &Activation) -> u64 {
    made.response.result.value()["instance"].as_u64().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_new_functions_delays_no_other() {
    let nodes = TestNodes::new(&[("node1", 16_384)]);
    nodes.state().most_cold_starts = Some(2);
    let world = World::with(nodes, Settings::default());
    let begun: Vec<_> = (0..30)
        .map(|at| world.begin(&world.action(&format!("many{at}"), "code", json!({})), json!({})))
        .collect();
    let other = world.foreign_action("other");
    let made = answered(world.begin(&other, json!({}))).await;
    assert_eq!((kind(&made).as_str(), made.response.status), ("cold", Outcome::Success));
    assert!(instance(&made) <= 4, "two were started before, and one got its turn first: {made:?}");
    let mut last = 0;
    for call in begun {
        last = last.max(instance(&answered(call).await));
    }
    assert_eq!(last, 31, "all get their turn");
}

#[tokio::test(start_paused = true)]
async fn code_that_loads_for_long_keeps_no_turn() {
    let nodes = TestNodes::new(&[("node1", 16_384)]);
    nodes.state().most_cold_starts = Some(1);
    let world = World::with(nodes, Settings::default());
    let slow = world.begin(&world.action("slow", "load slowly", json!({})), json!({}));
    let begun = Instant::now();
    let other = world.foreign_action("other");
    let made = answered(world.begin(&other, json!({}))).await;
    assert_eq!(made.response.status, Outcome::Success);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(answered(slow).await.response.status, Outcome::Success);
    assert!(begun.elapsed() > Duration::from_secs(20), "it was slow");
}

#[tokio::test(start_paused = true)]
async fn turns_that_calls_do_not_need_any_more_go_to_others() {
    let nodes = TestNodes::new(&[("node1", 16_384)]);
    nodes.state().most_cold_starts = Some(1);
    let world = World::with(nodes, Settings::default());
    let slow = world.begin(&world.action("slow", "load slowly", json!({})), json!({}));
    let forsaken = world.action("forsaken", "code", json!({}));
    drop((0..50).map(|_| world.begin(&forsaken, json!({}))).collect::<Vec<_>>());
    let begun = Instant::now();
    let last = world.call(&world.action("last", "code", json!({})), json!({})).await;
    assert_eq!(last.response.status, Outcome::Success);
    assert!(begun.elapsed() < Duration::from_secs(3), "the others were held");
    drop(slow);
}
