//! Updates, deletions, restarts.

use std::time::Duration;

use farfork_platform::api::{ActivationId, Arguments, Outcome, Version};
use farfork_platform::scheduler::{Call, Caller};
use farfork_platform::store::AcceptedCall;
use farfork_platform::trace::Trace;
use farfork_policy::Settings;
use farfork_policy::settings::Requests;
use serde_json::{Map, json};
use tokio::time::sleep;

use crate::nodes::TestNodes;
use crate::world::{World, answered, arguments, call, change, kind, name, settle};

#[tokio::test(start_paused = true)]
async fn an_update_starts_over_and_pending_calls_are_made() {
    let world = World::new();
    let old = world.action("a", "code", json!({}));
    world.calls(&old, 16).await;
    settle().await;
    assert_eq!(world.nodes.state().images.len(), 1);
    let running = world.begin(&old, json!({"ms": 2000}));
    settle().await;
    let exec = json!({"exec": {"kind": "python", "code": "new code"}});
    let new = change(Some(&old), "a", exec, 2);
    world.store.put_action(&new, Some(old.version)).unwrap();
    world.platform.gone(&old);
    let made = world.call(&new.action, json!({})).await;
    assert_eq!(
        (kind(&made), &made.response.result.value()["code"]),
        ("cold".into(), &json!("new code"))
    );
    assert_eq!(made.version, new.action.version);
    let made = answered(running).await;
    assert_eq!((made.response.status, made.version), (Outcome::Success, old.version));
    settle().await;
    assert_eq!(world.nodes.alive(), [2], "that of the old code is gone");
    assert!(world.nodes.state().images.is_empty(), "and so is its image");
}

#[tokio::test(start_paused = true)]
async fn a_late_call_runs_the_current_code() {
    let world = World::new();
    let old = world.action("a", "code", json!({}));
    let exec = json!({"exec": {"kind": "python", "code": "new code", "main": "start"}});
    let new = change(Some(&old), "a", exec, 2);
    world.store.put_action(&new, Some(old.version)).unwrap();
    world.platform.gone(&old);
    // It was looked up before the update, and sent to the platform after it.
    let made = world.call(&old, json!({})).await;
    assert_eq!(made.response.result.value()["code"], "new code");
    assert_eq!(made.version, new.action.version, "its record names the version that ran");
    settle().await;
    assert!(world.nodes.alive().is_empty(), "nothing is kept for a version that is gone");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_old_version_leaves_the_new_one_alone() {
    let world = World::new();
    let old = world.action("a", "code", json!({}));
    let exec = json!({"exec": {"kind": "python", "code": "new code"}});
    let new = change(Some(&old), "a", exec, 2);
    world.store.put_action(&new, Some(old.version)).unwrap();
    world.platform.gone(&old);
    // It runs the new code, and takes longer than the new version needs for its image.
    let late = world.begin(&old, json!({"ms": 30_000}));
    settle().await;
    world.calls(&new.action, 16).await;
    settle().await;
    let images = world.nodes.state().images.clone();
    assert_eq!(images.len(), 1);
    assert_eq!(answered(late).await.response.result.value()["code"], "new code");
    settle().await;
    assert_eq!(world.nodes.state().images, images);
}

#[tokio::test(start_paused = true)]
async fn an_old_version_keeps_its_files_until_its_calls_have_ended() {
    let world = World::with(TestNodes::new(&[("node1", 600)]), Settings::default());
    let old = world.action("a", "code", json!({}));
    world.calls(&old, 16).await;
    settle().await;
    let running: Vec<_> = (0..4).map(|_| world.begin(&old, json!({"ms": 5000}))).collect();
    settle().await;
    let images = world.nodes.state().images.clone();
    assert_eq!(images.len(), 1);
    let exec = json!({"exec": {"kind": "python", "code": "new code"}});
    let new = change(Some(&old), "a", exec, 2);
    world.store.put_action(&new, Some(old.version)).unwrap();
    // A call of the new version arrives before the retirement of the old one.
    let first = world.begin(&new.action, json!({}));
    settle().await;
    world.platform.gone(&old);
    settle().await;
    assert_eq!(world.nodes.state().images, images, "there are calls of it yet");
    for call in running {
        assert_eq!(answered(call).await.response.status, Outcome::Success);
    }
    answered(first).await;
    settle().await;
    assert!(world.nodes.state().images.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_removes_images_and_files_of_old_versions() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let [old, gone, kept] = ["a", "b", "c"].map(|name| world.action(name, "code", json!({})));
    for action in [&old, &gone, &kept] {
        world.calls(action, 16).await;
        settle().await;
    }
    world.nodes.state().images.insert("guest/a:of-another".to_owned());
    assert_eq!(world.nodes.state().images.len(), 4);
    let exec = json!({"exec": {"kind": "python", "code": "new code"}});
    // The platform is killed before it learns of that.
    let new = change(Some(&old), "a", exec, 2);
    world.store.put_action(&new, Some(old.version)).unwrap();
    world.store.delete_action(&gone.namespace, &gone.name).unwrap();
    let World { nodes, store, platform, .. } = world;
    drop(platform);
    let world = World::on(nodes, store, directory, Settings::default());
    settle().await;
    let left: Vec<String> = world.nodes.state().images.iter().cloned().collect();
    assert_eq!((left.len(), &*left[0]), (2, "guest/a:of-another"), "{left:?}");
    assert!(left[1].starts_with("guest/c:"), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_action_leaves_nothing() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    settle().await;
    world.store.delete_action(&action.namespace, &action.name).unwrap();
    world.platform.gone(&action);
    settle().await;
    assert!(world.nodes.alive().is_empty() && world.nodes.state().images.is_empty());
    // Created again under the same name, it is a new action.
    let again = change(None, "a", json!({"exec": {"kind": "python", "code": "other"}}), 9);
    world.store.put_action(&again, None).unwrap();
    let made = world.call(&again.action, json!({})).await;
    assert_eq!(
        (kind(&made), &made.response.result.value()["code"]),
        ("cold".into(), &json!("other"))
    );
}

fn accepted(id: u128, function: &str) -> AcceptedCall {
    AcceptedCall {
        id: ActivationId(id),
        namespace: name("guest"),
        name: name(function),
        version: Version::FIRST,
        args: Arguments::default(),
        accepted_ms: 1,
        trace: Trace::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_running_calls_and_leaves_the_rest_to_the_next_run() {
    // Room for one instance.
    let world = World::with(TestNodes::new(&[("node1", 300)]), Settings::default());
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    let accept_call = |id: u128, ms: u64| {
        world.store.accept(&accepted(id, "a")).unwrap();
        let args = Map::from_iter([("ms".to_owned(), json!(ms))]);
        let call = Call { id: ActivationId(id), ..call(&action, args) };
        drop(world.platform.call(call, world.platform.admit(&name("guest")).unwrap()));
    };
    accept_call(7, 50_000);
    settle().await;
    // It waits for the instance, and no client waits for it.
    accept_call(8, 1);
    settle().await;
    world.platform.end(tokio::spawn(async {})).await;
    let found = |id: u128| world.store.activation(&name("guest"), ActivationId(id)).unwrap();
    assert_eq!(found(7).expect("it was made").response.status, Outcome::Success);
    let left: Vec<_> = world.store.accepted().unwrap().iter().map(|call| call.id).collect();
    assert_eq!((left, found(8)), (vec![ActivationId(8)], None));
    let World { nodes, store, platform, directory, .. } = world;
    drop(platform);
    let runs = |events: Vec<String>| events.iter().filter(|one| one.starts_with("run")).count();
    assert_eq!(runs(nodes.events()), 2);
    // The earlier instances have ended.
    nodes.state().nodes[0].memory.budget_bytes = 600 << 20;
    let world = World::on(nodes, store, directory, Settings::default());
    settle().await;
    sleep(Duration::from_secs(1)).await;
    assert!(world.store.accepted().unwrap().is_empty());
    assert_eq!(runs(world.nodes.events()), 1, "nothing is made twice");
}

#[tokio::test(start_paused = true)]
async fn during_shutdown_calls_with_waiting_clients_begin() {
    let world = World::with(TestNodes::new(&[("node1", 300)]), Settings::default());
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    let calls = [3000, 2000].map(|ms| world.begin(&action, json!({ "ms": ms })));
    settle().await;
    let clients = tokio::spawn(async {
        for call in calls {
            assert_eq!(answered(call).await.response.status, Outcome::Success);
        }
    });
    world.platform.end(clients).await;
    let late = world.begin(&action, json!({}));
    assert!(late.await.is_err(), "nothing begins any more");
}

#[tokio::test(start_paused = true)]
async fn a_restart_makes_accepted_calls_and_reuses_images() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    settle().await;
    world.store.accept(&accepted(7, "a")).unwrap();
    world.store.accept(&accepted(8, "deleted")).unwrap();
    let World { nodes, store, platform, .. } = world;
    drop(platform);
    nodes.events();
    let world = World::on(nodes, store, directory, Settings::default());
    settle().await;
    let found = |id: u128| world.store.activation(&name("guest"), ActivationId(id)).unwrap();
    let made = found(7).expect("it was made");
    assert_eq!((made.response.status, kind(&made)), (Outcome::Success, "clone".into()));
    let gone = found(8).expect("it has a record");
    assert!(gone.response.result.value()["error"].as_str().unwrap().contains("deleted"));
    assert!(world.store.accepted().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn accepted_calls_of_a_burst_are_read_one_by_one() {
    const LIMIT: u64 = 10_000;
    let world = World::new();
    world.action("a", "code", json!({}));
    for id in 0..20 {
        let args = json!({"ms": 5000, "text": "x".repeat(3000)});
        let args = arguments(args.as_object().unwrap().clone());
        world.store.accept(&AcceptedCall { args, ..accepted(id, "a") }).unwrap();
    }
    let World { nodes, store, platform, directory, .. } = world;
    drop(platform);
    let requests = Requests { namespace_bytes: LIMIT, ..Requests::default() };
    let world = World::on(nodes, store, directory, Settings { requests, ..Settings::default() });
    let mut most = 0;
    while !world.store.accepted().unwrap().is_empty() {
        settle().await;
        let used = world.memory.used();
        assert!(used <= LIMIT, "{used}");
        most = most.max(used);
    }
    assert!(most > LIMIT / 2, "several calls are made at once: {most}");
    assert_eq!(world.memory.used(), 0);
}
