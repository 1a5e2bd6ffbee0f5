//! Metrics.

use farfork_platform::api::{Action, Outcome, Version};
use farfork_platform::scheduler::Caller;
use farfork_platform::scheduler::nodes::Usage;
use serde_json::json;
use tokio::time::sleep;

use crate::nodes::{ATTACHED_GHOSTS, CHECKPOINT};
use crate::world::{World, answered, change, name, settle};

/// The series of a family: labels and value of each, without histogram buckets.
fn series(world: &World, family: &str) -> Vec<String> {
    let text = world.platform.metrics();
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let of = text.lines().filter_map(|line| line.strip_prefix(family));
    let of = of.filter(|rest| rest.starts_with(['{', ' ']));
    let mut lines: Vec<String> = of.map(str::to_owned).collect();
    lines.sort();
    lines
}

fn of(action: &str, more: &str) -> String {
    format!(r#"{{namespace="guest",initiator="guest",action="{action}"{more}}}"#)
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_function_as_openwhisk_does() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.action("never-called", "code", json!({}));
    assert!(!world.platform.metrics().contains("openwhisk_action"));
    world.calls(&action, 1).await;
    for what in ["fail", "raise"] {
        world.call(&action, json!({ "do": what })).await;
    }
    // The instance that raised has ended.
    world.calls(&action, 1).await;
    assert_eq!(
        series(&world, "openwhisk_action_activations_total"),
        [of("a", r#",kind="python:3.11",memory="256""#) + " 4"]
    );
    assert_eq!(series(&world, "openwhisk_action_coldStarts_total"), [of("a", "") + " 2"]);
    assert_eq!(series(&world, "openwhisk_action_initTime_seconds_count"), [of("a", "") + " 2"]);
    assert_eq!(series(&world, "openwhisk_action_initTime_seconds_sum"), [of("a", "") + " 0.6"]);
    assert_eq!(series(&world, "openwhisk_action_waitTime_seconds_count"), [of("a", "") + " 4"]);
    assert_eq!(series(&world, "openwhisk_action_duration_seconds_count"), [of("a", "") + " 4"]);
    assert_eq!(series(&world, "openwhisk_action_memory"), [of("a", "") + " 256"]);
    let status = |status: &str, count: u64| {
        of("a", &format!(r#",status="{status}""#)) + &format!(" {count}")
    };
    assert_eq!(
        series(&world, "openwhisk_action_status"),
        [
            status("action_developer_error", 1),
            status("application_error", 1),
            status("success", 2),
            status("whisk_internal_error", 0),
        ]
    );
    assert!(!world.platform.metrics().contains("never-called"));
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_kind_of_start() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    sleep(2 * CHECKPOINT).await;
    let calls: Vec<_> = (0..3).map(|_| world.begin(&action, json!({"ms": 50}))).collect();
    for call in calls {
        answered(call).await;
    }
    let start = |start: &str, count: u64| {
        format!(r#"{{namespace="guest",action="a",start="{start}"}} {count}"#)
    };
    assert_eq!(
        series(&world, "farfork_action_starts_total"),
        [start("clone", 2), start("cold", 1), start("ghost", 0), start("warm", 16),]
    );
    assert_eq!(
        series(&world, "farfork_instance_starts_total"),
        [r#"{start="clone",result="done"} 2"#, r#"{start="cold",result="done"} 1"#,]
    );
    assert_eq!(series(&world, "farfork_checkpoints_total"), [r#"{result="done"} 1"#]);
    assert_eq!(series(&world, "farfork_calls_in_flight"), [" 0"]);
}

#[tokio::test(start_paused = true)]
async fn starts_are_measured_by_phase() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    // The second waits for the first: there is room for one instance.
    world.nodes.state().nodes.truncate(1);
    world.nodes.state().nodes[0].memory.budget_bytes = 300 << 20;
    let calls = [world.begin(&action, json!({})), world.begin(&action, json!({}))];
    for call in calls {
        assert_eq!(answered(call).await.response.status, Outcome::Success);
    }
    let phase = |start: &str, phase: &str, value: &str| {
        format!(r#"{{start="{start}",phase="{phase}"}} {value}"#)
    };
    // A start takes 5 ms, which the nodes split into phases.
    assert_eq!(
        series(&world, "farfork_call_phase_seconds_sum"),
        [
            phase("cold", "container", "0.005"),
            phase("cold", "init", "0.3"),
            phase("cold", "platform", "0.005"),
            phase("cold", "queue", "0.0"),
            phase("cold", "restore", "0.005"),
            phase("cold", "run", "0.01"),
            phase("warm", "queue", "0.315"),
            phase("warm", "run", "0.01"),
        ]
    );
    let counts = series(&world, "farfork_call_phase_seconds_count");
    assert!(counts.len() == 8 && counts.iter().all(|count| count.ends_with("} 1")), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn extra_time_of_first_calls_counts_as_faults() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 16).await;
    sleep(2 * CHECKPOINT).await;
    // The first is the warm instance's. Failed calls do not count.
    let calls = [json!({"ms": 50}), json!({"ms": 50}), json!({"ms": 500, "do": "raise"})];
    for call in calls.map(|args| world.begin(&action, args)) {
        answered(call).await;
    }
    // Times of other code do not count.
    let exec = json!({"exec": {"kind": "python", "code": "new code"}});
    let new = change(Some(&action), "a", exec, 2);
    world.store.put_action(&new, Some(action.version)).unwrap();
    world.platform.gone(&action);
    world.call(&new.action, json!({"ms": 50})).await;
    let sums = series(&world, "farfork_call_phase_seconds_sum");
    let faults: Vec<&String> = sums.iter().filter(|sum| sum.contains("faults")).collect();
    // Warm ones took 10 ms.
    assert_eq!(faults, [r#"{start="clone",phase="faults"} 0.04"#]);
    let run = r#"{start="clone",phase="run"} 0.51"#;
    assert!(sums.iter().any(|sum| sum == run), "{sums:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_too() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.nodes.state().failing_starts = 3;
    let failed = world.call(&action, json!({})).await;
    assert_eq!(failed.response.status, Outcome::InternalError);
    assert_eq!(
        series(&world, "farfork_instance_starts_total"),
        [r#"{start="cold",result="failed"} 3"#]
    );
    let status = of("a", r#",status="whisk_internal_error""#) + " 1";
    assert!(series(&world, "openwhisk_action_status").contains(&status));
    // It got no instance.
    let starts = series(&world, "farfork_action_starts_total");
    assert!(starts.iter().all(|start| start.ends_with("} 0")), "{starts:?}");
    world.nodes.state().failing_checkpoints = 1;
    world.calls(&action, 16).await;
    settle().await;
    assert_eq!(series(&world, "farfork_checkpoints_total"), [r#"{result="failed"} 1"#]);
    let waiting: Vec<_> = (0..1000).map(|_| world.begin(&action, json!({}))).collect();
    assert_eq!(series(&world, "farfork_calls_in_flight"), [" 1000"]);
    assert!(world.platform.admit(&name("guest")).is_err());
    assert_eq!(
        series(&world, "openwhisk_action_limit_concurrent_total"),
        [r#"{namespace="guest"} 1"#]
    );
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn gauges_are_read_at_each_request() {
    let world = World::new();
    let action = world.action("a", "code", json!({}));
    world.nodes.state().usage = Some(Usage { local_bytes: 1 << 20, pool_bytes: 5 << 20 });
    world.calls(&action, 1).await;
    let running = world.begin(&action, json!({"ms": 1000}));
    settle().await;
    let here = |more: &str| format!(r#"{{namespace="guest",action="a",node="node1",{more}"#);
    assert_eq!(
        series(&world, "farfork_instances"),
        [here(r#"state="busy"} 1"#), here(r#"state="idle"} 0"#),]
    );
    assert_eq!(
        series(&world, "farfork_instance_memory_bytes"),
        [here(r#"tier="local"} 1048576"#), here(r#"tier="pool"} 5242880"#),]
    );
    answered(running).await;
    settle().await;
    assert_eq!(
        series(&world, "farfork_instances"),
        [here(r#"state="busy"} 0"#), here(r#"state="idle"} 1"#),]
    );
    let nodes = [r#"{node="node1"}"#, r#"{node="node2"}"#];
    assert_eq!(series(&world, "farfork_node_up"), nodes.map(|node| format!("{node} 1")));
    let attached = nodes.map(|node| format!("{node} {ATTACHED_GHOSTS}"));
    assert_eq!(series(&world, "farfork_node_attached_ghosts"), attached);
    let budgets = nodes.map(|node| format!("{node} 1153433600"));
    assert_eq!(series(&world, "farfork_node_memory_budget_bytes"), budgets);
    let used = series(&world, "farfork_node_memory_bytes");
    assert_eq!(used, [format!("{} 268435456", nodes[0]), format!("{} 0", nodes[1])]);
    assert_eq!(series(&world, "farfork_pool_size_bytes"), [" 1073741824"]);
    let decisions = series(&world, "farfork_decisions_total");
    for decision in [
        r#"{policy="placement",choice="node1"} 1"#,
        r#"{policy="checkpoint",choice="not-yet"} 2"#,
        r#"{policy="keep-alive",choice=""} 3"#,
    ] {
        assert!(decisions.iter().any(|one| one == decision), "{decision}: {decisions:?}");
    }
}

fn updated(world: &World, old: &Action, memory_mb: u64, now_ms: u64) -> Action {
    let put = json!({"limits": {"memory": memory_mb}});
    let new = change(Some(old), old.name.as_str(), put, now_ms);
    world.store.put_action(&new, Some(old.version)).unwrap();
    world.platform.gone(old);
    new.action
}

fn delete(world: &World, action: &Action) {
    world.store.delete_action(&action.namespace, &action.name).unwrap();
    world.platform.gone(action);
}

#[tokio::test(start_paused = true)]
async fn metrics_continue_across_an_update() {
    let world = World::new();
    let old = world.action("a", "code", json!({}));
    world.calls(&old, 2).await;
    let new = updated(&world, &old, 512, 2);
    settle().await;
    let memory = |memory: u64, count: u64| {
        of("a", &format!(r#",kind="python:3.11",memory="{memory}""#)) + &format!(" {count}")
    };
    let calls = || series(&world, "openwhisk_action_activations_total");
    assert_eq!(calls(), [memory(256, 2)], "before it is called, too");
    world.calls(&new, 3).await;
    settle().await;
    assert_eq!(calls(), [memory(256, 2), memory(512, 3)]);
    assert_eq!(series(&world, "openwhisk_action_coldStarts_total"), [of("a", "") + " 2"]);
    // A late call that was looked up before the update changes nothing.
    world.call(&old, json!({})).await;
    settle().await;
    assert_eq!(series(&world, "openwhisk_action_coldStarts_total").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_function_has_no_metrics() {
    let world = World::new();
    let of_a = || world.platform.metrics().matches(r#"action="a""#).count();
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    let running = world.begin(&action, json!({"ms": 1000}));
    settle().await;
    delete(&world, &action);
    answered(running).await;
    settle().await;
    assert_eq!(of_a(), 0);
    // Updated, and deleted before it was called again.
    let old = world.action("a", "code", json!({}));
    world.calls(&old, 1).await;
    let new = updated(&world, &old, 512, 2);
    settle().await;
    assert!(of_a() > 0);
    delete(&world, &new);
    settle().await;
    assert_eq!(of_a(), 0);
    // A late call finds nothing, and leaves nothing.
    world.call(&old, json!({})).await;
    settle().await;
    assert_eq!(of_a(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_function_created_again_has_new_metrics() {
    let world = World::new();
    let first = world.action("a", "code", json!({}));
    world.calls(&first, 3).await;
    let running = world.begin(&first, json!({"ms": 1000}));
    settle().await;
    delete(&world, &first);
    let put = json!({"exec": {"kind": "python", "code": "code"}});
    let again = change(None, "a", put, 5);
    world.store.put_action(&again, None).unwrap();
    assert_eq!(again.action.version, Version::FIRST);
    world.calls(&again.action, 2).await;
    let counted = || {
        series(&world, "openwhisk_action_status").iter().any(|one| one.ends_with("\"success\"} 2"))
    };
    assert!(counted());
    answered(running).await;
    settle().await;
    assert!(counted(), "what was deleted is not counted here");
}
