//! Snapshots and decisions for viewers.

use std::time::Duration;

use farfork_platform::api::{Action, StartKind};
use farfork_platform::scheduler::nodes::Usage;
use farfork_platform::scheduler::snapshot::{Function, Image, Instances, Snapshot};
use farfork_platform::scheduler::{Caller, Observable};
use serde_json::json;
use tokio::time::sleep;

use crate::nodes::{ATTACHED_GHOSTS, CHECKPOINT};
use crate::world::{World, answered, settle};

fn seen(world: &World) -> Snapshot {
    world.platform.snapshot()
}

fn of_a(world: &World) -> Function {
    seen(world).functions["guest/a"].clone()
}

async fn checkpointed(world: &World) -> Action {
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    sleep(2 * CHECKPOINT).await;
    action
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_says_whether_functions_are_deployed() {
    let world = World::new();
    let key = farfork_platform::store::Key {
        user: "u".to_owned(),
        secret_sha256: [0; 32],
        namespace: "guest".parse().unwrap(),
        created_ms: 0,
    };
    world.store.put_key(&key).unwrap();
    let first = seen(&world);
    assert_eq!((first.has_functions, first.functions.len(), first.nodes.len()), (false, 0, 2));
    assert!(first.began_ms > 0 && first.at_ms >= first.began_ms);
    assert_eq!(first.starts.len(), StartKind::ALL.len(), "each kind is there");
    let action = world.action("a", "code", json!({}));
    let deployed = seen(&world);
    assert_eq!((deployed.has_functions, deployed.functions.len()), (true, 0));
    world.calls(&action, 1).await;
    assert_eq!(of_a(&world).calls, 1);
    world.store.delete_action(&action.namespace, &action.name).unwrap();
    world.platform.gone(&action);
    settle().await;
    let after = seen(&world);
    assert_eq!((after.has_functions, after.functions.len()), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_are_shown_by_kind_of_start_with_medians() {
    let world = World::new();
    let action = checkpointed(&world).await;
    let calls: Vec<_> = (0..3).map(|_| world.begin(&action, json!({"ms": 50}))).collect();
    for call in calls {
        answered(call).await;
    }
    world.call(&action, json!({"do": "fail"})).await;
    let whole = seen(&world);
    let of = |kind: StartKind| {
        let starts = whole.starts[&kind];
        (starts.calls, starts.wait_ms.map(f64::round), starts.whole_ms.map(f64::round))
    };
    // 5 ms for the instance, 300 for its code, 10 for the call; of a clone only the first.
    assert_eq!(of(StartKind::Cold), (1, Some(305.0), Some(315.0)));
    assert_eq!(of(StartKind::Clone), (2, Some(5.0), Some(55.0)));
    assert_eq!(of(StartKind::Warm), (17, Some(0.0), Some(10.0)));
    assert_eq!(of(StartKind::Ghost), (0, None, None));
    assert_eq!((whole.calls_in_flight, whole.calls_waiting, whole.calls_failed), (0, 0, 1));
    let row = of_a(&world);
    assert_eq!((row.calls, row.failed, row.starts[&StartKind::Clone]), (20, 1, 2));
    assert_eq!((row.recent.calls, row.recent.failed, row.recent.per_s), (20, 1, 2.0));
    assert_eq!((row.recent, row.recent.p50_ms.map(f64::round)), (whole.recent, Some(10.0)));
    sleep(Duration::from_secs(11)).await;
    assert_eq!((of_a(&world).recent.calls, of_a(&world).calls), (0, 20));
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_are_shown() {
    let world = World::new();
    // Room for one instance.
    world.nodes.state().nodes.truncate(1);
    world.nodes.state().nodes[0].memory.budget_bytes = 300 << 20;
    let action = world.action("a", "code", json!({}));
    let calls: Vec<_> = (0..3).map(|_| world.begin(&action, json!({"ms": 1000}))).collect();
    sleep(Duration::from_millis(500)).await;
    let whole = seen(&world);
    assert_eq!((whole.calls_in_flight, whole.calls_waiting, of_a(&world).waiting), (3, 2, 2));
    for call in calls {
        answered(call).await;
    }
    settle().await;
    assert_eq!((seen(&world).calls_in_flight, seen(&world).calls_waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_state_of_an_image_is_shown() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 15).await;
    assert_eq!((of_a(&world).image, seen(&world).pool_images), (Image::None, 0));
    world.calls(&action, 1).await;
    sleep(CHECKPOINT / 2).await;
    assert_eq!(of_a(&world).image, Image::Making);
    sleep(CHECKPOINT).await;
    assert_eq!((of_a(&world).image, seen(&world).pool_images), (Image::Ready, 1));
    let put = json!({"exec": {"kind": "python", "code": "other"}});
    let new = crate::world::change(Some(&action), "a", put, 2);
    world.store.put_action(&new, Some(action.version)).unwrap();
    world.platform.gone(&action);
    world.calls(&new.action, 1).await;
    assert_eq!(of_a(&world).image, Image::None, "the new version has none");
}

#[tokio::test(start_paused = true)]
async fn instances_are_shown_by_node_and_function() {
    let world = World::new();
    let action = checkpointed(&world).await;
    world.nodes.state().usage = Some(Usage { local_bytes: 1 << 20, pool_bytes: 5 << 20 });
    // Four fit on a node.
    let calls: Vec<_> = (0..5).map(|_| world.begin(&action, json!({"ms": 1000}))).collect();
    sleep(Duration::from_millis(500)).await;
    let whole = seen(&world);
    let of = |instances: Instances| {
        let Instances { idle, busy, local_bytes, pool_bytes } = instances;
        assert_eq!((local_bytes, pool_bytes), ((idle + busy) << 20, (5 * (idle + busy)) << 20));
        (idle, busy)
    };
    let row = of_a(&world);
    assert_eq!(of(row.instances), (0, 5));
    for (name, node) in &whole.nodes {
        assert_eq!(node.instances, row.nodes[name]);
        assert!(node.is_up && node.memory_bytes >= node.instances.busy * (256 << 20));
        assert_eq!(node.budget_bytes, 1100 << 20);
        assert_eq!(node.attached_ghosts, ATTACHED_GHOSTS);
    }
    assert_eq!(row.nodes.values().map(|instances| instances.busy).sum::<u64>(), 5);
    assert_eq!(whole.pool_size_bytes, 1 << 30);
    for call in calls {
        answered(call).await;
    }
    settle().await;
    assert_eq!(of(of_a(&world).instances), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn decisions_are_published_as_they_are_made() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    let mut watch = world.platform.subscribe();
    let placed = watch.past.iter().find(|decision| decision.question == "placement").unwrap();
    assert_eq!((placed.about.as_str(), &placed.choice), ("guest/a", &json!("node1")));
    assert!(!placed.why.is_empty() && placed.at_ms > 0);
    world.calls(&action, 15).await;
    let mut asked = Vec::new();
    while let Ok(decision) = watch.upcoming.try_recv() {
        asked.push((decision.question.clone(), decision.choice.clone()));
    }
    assert_eq!(asked.iter().filter(|(question, _)| question == "checkpoint").count(), 15);
    assert!(asked.contains(&("checkpoint".to_owned(), json!("now"))), "{asked:?}");
}
