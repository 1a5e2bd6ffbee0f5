//! Simulated nodes whose instances do what the arguments of calls ask for.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_platform::scheduler::nodes::{BoxFuture, Start, StartTimes};
use farfork_platform::simulated::{Durations, Instance, Program, SimulatedNodes};
use serde_json::{Value, json};
use tokio::time::sleep;

pub const END: &str = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX\n";
pub const POOL_BYTES: u64 = 1 << 30;
/// Size of each image.
pub const IMAGE_BYTES: u64 = 64 << 20;
/// Attached ghosts of each node.
pub const ATTACHED_GHOSTS: u64 = 3;
/// Duration of starts and checkpoints.
pub const START: Duration = Duration::from_millis(5);
pub const CHECKPOINT: Duration = Duration::from_millis(100);
/// Duration of a freeze.
pub const FREEZE: Duration = Duration::from_millis(20);
/// Duration of stopping ghosts.
pub const STOP: Duration = Duration::from_millis(1500);

/// What instances have received, and what they are to do.
#[derive(Debug, Default)]
pub struct Script {
    /// The last /init.
    pub init: Value,
    /// The last /launch.
    pub launch: Value,
    /// The error of /launch, if it is to fail.
    pub failing_launch: Option<&'static str>,
}

/// Simulated nodes, and the script of their instances.
#[derive(Clone, Debug)]
pub struct TestNodes {
    pub nodes: SimulatedNodes,
    actor: Actor,
}

impl TestNodes {
    /// Nodes with this many MiB each.
    pub fn new(megabytes: &[(&str, u64)]) -> TestNodes {
        let actor = Actor::default();
        let durations = Durations { checkpoint: CHECKPOINT, freeze: FREEZE, stop: STOP };
        let budgets = megabytes.iter().map(|(name, mb)| ((*name).to_owned(), mb << 20));
        let nodes = SimulatedNodes::new(budgets, POOL_BYTES, durations, Arc::new(actor.clone()));
        let mut state = nodes.state();
        (state.is_verbose, state.image_bytes) = (true, IMAGE_BYTES);
        state.attached_ghosts = ATTACHED_GHOSTS;
        drop(state);
        TestNodes { nodes, actor }
    }

    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.actor.script.lock().unwrap()
    }
}

impl Deref for TestNodes {
    type Target = SimulatedNodes;

    fn deref(&self) -> &SimulatedNodes {
        &self.nodes
    }
}

/// The program of all instances.
#[derive(Clone, Debug, Default)]
struct Actor {
    script: Arc<Mutex<Script>>,
}

impl Program for Actor {
    fn start(&self, _: &Start, _: bool) -> (Duration, StartTimes) {
        (START, StartTimes { whole: 3 * START, container: START, restore: START })
    }

    fn answer(
        &self,
        instance: Arc<Instance>,
        path: String,
        body: Value,
    ) -> BoxFuture<(u16, Value)> {
        let actor = self.clone();
        Box::pin(async move {
            match path.as_str() {
                "/init" => actor.init(&instance, body).await,
                "/launch" => actor.launch(&instance, body).await,
                "/run" => run(&instance, &body).await,
                "/prepare" => {
                    note(&instance, "prepare");
                    (200, json!({"ok": true, "hot": ["1000-2000"]}))
                }
                _ => (404, json!({})),
            }
        })
    }
}

fn note(instance: &Instance, what: &str) {
    instance.nodes.state().note(format!("{what} {}", instance.id));
}

impl Actor {
    async fn init(&self, instance: &Instance, body: Value) -> (u16, Value) {
        note(instance, "init");
        self.script.lock().unwrap().init = body.clone();
        sleep(Duration::from_millis(300)).await;
        let code = body["value"]["code"].as_str().unwrap();
        if code == "load slowly" {
            sleep(Duration::from_secs(30)).await;
        }
        if code == "broken" {
            instance.print(1, "Traceback\n").await;
            return (502, json!({"error": "SyntaxError"}));
        }
        if code == "deadly" {
            instance.end("the kernel killed it");
            sleep(Duration::from_secs(3600)).await;
        }
        instance.load(code);
        (200, json!({"ok": true}))
    }

    /// Executes another program, which closes its connections.
    async fn launch(&self, instance: &Instance, body: Value) -> (u16, Value) {
        note(instance, "launch");
        let failing = {
            let mut script = self.script.lock().unwrap();
            script.launch = body;
            script.failing_launch
        };
        if let Some(why) = failing {
            return (502, json!({ "error": why }));
        }
        instance.launch();
        sleep(Duration::from_secs(3600)).await;
        unreachable!("the connection was closed");
    }
}

async fn run(instance: &Instance, body: &Value) -> (u16, Value) {
    let args = &body["value"];
    let (code, count) = instance.count_call();
    let code = code.expect("code was loaded");
    note(instance, "run");
    assert!(!instance.nodes.state().frozen.contains(&instance.id), "it is frozen");
    sleep(Duration::from_millis(args["ms"].as_u64().unwrap_or(10))).await;
    instance.print(0, &format!("called {count}\n")).await;
    let (status, answer) = match args["do"].as_str() {
        Some("die") => {
            instance.end("it was killed by signal 11");
            sleep(Duration::from_secs(3600)).await;
            unreachable!("it has ended");
        }
        Some("raise") => {
            instance.print(1, "Traceback\n").await;
            (502, json!({"error": "KeyError"}))
        }
        Some("much") => (200, json!({"a": "x".repeat(2 << 20)})),
        Some("number") => (200, json!(1)),
        Some("fail") => (200, json!({"error": "of its own"})),
        Some("chat") => {
            for _ in 0..args["lines"].as_u64().unwrap() {
                instance.print(0, &format!("{}\n", "x".repeat(1023))).await;
            }
            (200, json!({}))
        }
        Some("half") => {
            instance.print(0, "no end of line").await;
            (200, json!({}))
        }
        Some("silent") => return (200, json!({"silent": true})),
        _ => {
            let id = body["activation_id"].clone();
            (200, json!({"instance": instance.id, "count": count, "code": code, "id": id}))
        }
    };
    instance.print(0, END).await;
    instance.print(1, END).await;
    (status, answer)
}
