//! Simulated nodes: an instance is a small server in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_platform::scheduler::nodes::{
    BoxFuture, Claim, NodeGhosts, NodeState, Nodes, NodesError, PoolImage, Start, StartTimes,
    Started, Stream, Usage,
};
use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::placement::NodeFacts;
use farfork_types::Tiering;
use farfork_types::wire::AddressRange;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
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

/// The state of the nodes, and what they are to do.
#[derive(Debug, Default)]
pub struct State {
    pub nodes: Vec<NodeFacts>,
    /// Events since they were last taken.
    pub events: Vec<String>,
    pub images: BTreeSet<String>,
    /// Images made here.
    pub made: BTreeSet<String>,
    /// Images with living clones.
    pub pinned: BTreeSet<String>,
    /// Bytes of the pool in use besides.
    pub pool_bytes: u64,
    /// Number of starts to fail.
    pub failing_starts: u32,
    /// Number of starts to lose their room.
    pub full_starts: u32,
    /// Number of starts to find their node lost.
    pub lost_starts: u32,
    pub failing_checkpoints: u32,
    /// Requests to freeze and thaw.
    pub freezer: Vec<String>,
    /// Frozen instances.
    pub frozen: BTreeSet<u64>,
    /// Number of freezes that succeed but report a failure.
    pub failing_freezes: u32,
    /// Number of thaws to fail.
    pub failing_thaws: u32,
    /// Whether every start finds a ghost with its image attached.
    pub has_attached: bool,
    /// Whether all clones are profiled.
    pub watches: bool,
    /// The node with ghosts; all nodes if not set.
    pub ghosts_on: Option<String>,
    /// Waiting ghosts and their bytes.
    pub ghosts: BTreeMap<String, u64>,
    /// Bytes of ghosts being stopped.
    ending_bytes: u64,
    /// Whether memory is set aside for a moment.
    pub is_settling: bool,
    /// Tiering policies of the started clones.
    pub tierings: Vec<Tiering>,
    /// Measured memory of each instance.
    pub usage: Option<Usage>,
    /// The last /init.
    pub init: Value,
    /// The last /launch.
    pub launch: Value,
    /// The error of /launch, if it is to fail.
    pub failing_launch: Option<&'static str>,
    /// Number of connections made.
    pub connections: u32,
    /// Number of connections to a launched program to refuse.
    pub deaf_connects: u32,
    next: u64,
    /// Bytes that an idle instance holds, if less than its limit.
    pub held_bytes: Option<u64>,
    alive: BTreeMap<u64, Alive>,
}

/// An instance as the nodes see it.
#[derive(Debug)]
struct Alive {
    node: String,
    most_bytes: u64,
    is_at_work: bool,
}

impl State {
    fn taken(&self, alive: &Alive) -> u64 {
        self.held_bytes.filter(|_| !alive.is_at_work).unwrap_or(alive.most_bytes)
    }

    fn facts(&self) -> Vec<NodeFacts> {
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            let here = self.alive.values().filter(|alive| alive.node == node.name);
            node.memory.used_bytes += here.map(|alive| self.taken(alive)).sum::<u64>();
            if self.has_ghosts(&node.name) {
                node.memory.used_bytes += self.ghosts.values().sum::<u64>() + self.ending_bytes;
            }
        }
        nodes
    }

    fn has_ghosts(&self, node: &str) -> bool {
        self.ghosts_on.as_ref().is_none_or(|only| only == node)
    }

    fn has_room(&self, node: &str, bytes: u64) -> bool {
        let facts = self.facts().into_iter().find(|facts| facts.name == node);
        facts.is_some_and(|facts| facts.memory.free_below(1000) >= bytes)
    }
}

/// Simulated nodes.
#[derive(Clone, Debug, Default)]
pub struct TestNodes {
    state: Arc<Mutex<State>>,
}

impl TestNodes {
    /// Nodes with this many MiB each.
    pub fn new(megabytes: &[(&str, u64)]) -> TestNodes {
        let nodes = TestNodes::default();
        let facts = |(name, megabytes): &(&str, u64)| NodeFacts {
            name: (*name).to_owned(),
            memory: Memory { used_bytes: 0, budget_bytes: megabytes << 20 },
            ..NodeFacts::default()
        };
        nodes.state().nodes = megabytes.iter().map(facts).collect();
        nodes
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Takes the events.
    pub fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.state().events)
    }

    /// Ids of living instances.
    pub fn alive(&self) -> Vec<u64> {
        self.state().alive.keys().copied().collect()
    }
}

/// An instance's server.
struct Inside {
    id: u64,
    kills: watch::Sender<Option<String>>,
    /// Whether it has executed another program.
    launches: watch::Sender<bool>,
    state: Mutex<(Option<String>, u64)>,
    output: tokio::sync::Mutex<[DuplexStream; 2]>,
    nodes: TestNodes,
}

/// Ends an instance, at the latest when dropped.
struct Tie(Arc<Inside>);

impl fmt::Debug for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tie")
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        self.0.kills.send_replace(Some("it was killed by signal 9".to_owned()));
        let mut state = self.0.nodes.state();
        state.alive.remove(&self.0.id);
        state.events.push(format!("end {}", self.0.id));
    }
}

impl Inside {
    fn end(&self, why: &str) {
        self.kills.send_replace(Some(why.to_owned()));
    }

    /// Whether connections are refused now.
    fn refuses_connections(&self) -> bool {
        let mut state = self.nodes.state();
        let is_deaf = *self.launches.borrow() && state.deaf_connects > 0;
        state.deaf_connects -= u32::from(is_deaf);
        is_deaf
    }

    async fn print(&self, stream: usize, text: &str) {
        // The reader may be gone.
        let _ = self.output.lock().await[stream].write_all(text.as_bytes()).await;
    }

    async fn answer(self: Arc<Inside>, request: Request<Incoming>) -> (u16, Value) {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        match path.as_str() {
            "/init" => self.init(&body).await,
            "/launch" => self.launch(body).await,
            "/run" => self.run(&body).await,
            "/prepare" => {
                self.nodes.state().events.push(format!("prepare {}", self.id));
                (200, json!({"ok": true, "hot": ["1000-2000"]}))
            }
            _ => (404, json!({})),
        }
    }

    async fn init(&self, body: &Value) -> (u16, Value) {
        self.nodes.state().events.push(format!("init {}", self.id));
        self.nodes.state().init = body.clone();
        sleep(Duration::from_millis(300)).await;
        let code = body["value"]["code"].as_str().unwrap();
        if code == "broken" {
            self.print(1, "Traceback\n").await;
            return (502, json!({"error": "SyntaxError"}));
        }
        if code == "deadly" {
            self.end("the kernel killed it");
            sleep(Duration::from_secs(3600)).await;
        }
        self.state.lock().unwrap().0 = Some(code.to_owned());
        (200, json!({"ok": true}))
    }

    /// Executes another program, which closes its connections.
    async fn launch(&self, body: Value) -> (u16, Value) {
        let failing = {
            let mut state = self.nodes.state();
            state.events.push(format!("launch {}", self.id));
            state.launch = body;
            state.failing_launch
        };
        if let Some(why) = failing {
            return (502, json!({ "error": why }));
        }
        self.launches.send_replace(true);
        sleep(Duration::from_secs(3600)).await;
        unreachable!("the connection was closed");
    }

    async fn run(&self, body: &Value) -> (u16, Value) {
        let args = &body["value"];
        let (code, count) = {
            let mut state = self.state.lock().unwrap();
            state.1 += 1;
            (state.0.clone().expect("code was loaded"), state.1)
        };
        self.nodes.state().events.push(format!("run {}", self.id));
        assert!(!self.nodes.state().frozen.contains(&self.id), "it is frozen");
        sleep(Duration::from_millis(args["ms"].as_u64().unwrap_or(10))).await;
        self.print(0, &format!("called {count}\n")).await;
        let (status, answer) = match args["do"].as_str() {
            Some("die") => {
                self.end("it was killed by signal 11");
                sleep(Duration::from_secs(3600)).await;
                unreachable!("it has ended");
            }
            Some("raise") => {
                self.print(1, "Traceback\n").await;
                (502, json!({"error": "KeyError"}))
            }
            Some("much") => (200, json!({"a": "x".repeat(2 << 20)})),
            Some("list") => (200, json!([1])),
            Some("fail") => (200, json!({"error": "of its own"})),
            Some("chat") => {
                for _ in 0..args["lines"].as_u64().unwrap() {
                    self.print(0, &format!("{}\n", "x".repeat(1023))).await;
                }
                (200, json!({}))
            }
            Some("half") => {
                self.print(0, "no end of line").await;
                (200, json!({}))
            }
            Some("silent") => return (200, json!({"silent": true})),
            _ => {
                let id = body["activation_id"].clone();
                (200, json!({"instance": self.id, "count": count, "code": code, "id": id}))
            }
        };
        self.print(0, END).await;
        self.print(1, END).await;
        (status, answer)
    }
}

async fn serve(inside: Arc<Inside>, stream: DuplexStream) {
    let mut ended = inside.kills.subscribe();
    let mut launches = inside.launches.subscribe();
    let service = service_fn(|request| {
        let inside = Arc::clone(&inside);
        async move {
            let (status, answer) = inside.answer(request).await;
            let body = Full::new(Bytes::from(answer.to_string()));
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    tokio::select! {
        _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service) => {}
        _ = ended.wait_for(Option::is_some) => {}
        // Later connections go to the program.
        _ = launches.changed() => {}
    }
}

/// Fails as often as counted.
fn failing(count: &mut u32, doing: &'static str) -> Result<(), NodesError> {
    if *count == 0 {
        return Ok(());
    }
    *count -= 1;
    Err(NodesError::Freezer { doing, reason: "on purpose".to_owned() })
}

impl Nodes for TestNodes {
    fn nodes(&self, _: Claim, _: Option<&str>) -> Vec<NodeFacts> {
        self.state().facts()
    }

    fn pool(&self) -> Memory {
        let state = self.state();
        let used_bytes = state.pool_bytes + state.images.len() as u64 * IMAGE_BYTES;
        Memory { used_bytes, budget_bytes: POOL_BYTES }
    }

    fn images(&self) -> u64 {
        self.state().images.len() as u64
    }

    fn survey(&self) -> Vec<NodeState> {
        let nodes = self.nodes(Claim::default(), None).into_iter();
        let seen = |node: NodeFacts| NodeState {
            name: node.name,
            answers: true,
            memory: node.memory,
            starting: node.starting,
            paused: 0,
            ghosts: node.empty_ghosts,
            attached_ghosts: ATTACHED_GHOSTS,
            pool_read_bytes_per_s: None,
            pool_busy_permille: node.pool_busy_permille,
        };
        nodes.map(seen).collect()
    }

    fn usage(&self, _: u64) -> Option<Usage> {
        self.state().usage
    }

    fn begin_work(&self, id: u64) -> bool {
        let mut state = self.state();
        let Some(alive) = state.alive.get(&id) else { return true };
        if !alive.is_at_work && !state.has_room(&alive.node, alive.most_bytes - state.taken(alive))
        {
            return false;
        }
        state.alive.get_mut(&id).unwrap().is_at_work = true;
        true
    }

    fn end_work(&self, id: u64) {
        if let Some(alive) = self.state().alive.get_mut(&id) {
            alive.is_at_work = false;
        }
    }

    fn freeze(&self, id: u64) -> BoxFuture<Result<(), NodesError>> {
        let nodes = self.clone();
        Box::pin(async move {
            nodes.state().freezer.push(format!("freeze {id}"));
            sleep(FREEZE).await;
            let mut state = nodes.state();
            state.frozen.insert(id);
            failing(&mut state.failing_freezes, "freeze")
        })
    }

    fn thaw(&self, id: u64) -> BoxFuture<Result<(), NodesError>> {
        let nodes = self.clone();
        Box::pin(async move {
            let mut state = nodes.state();
            state.freezer.push(format!("thaw {id}"));
            failing(&mut state.failing_thaws, "thaw")?;
            state.frozen.remove(&id);
            Ok(())
        })
    }

    fn ghosts(&self, node: &str) -> NodeGhosts {
        let state = self.state();
        if !state.has_ghosts(node) {
            return NodeGhosts::default();
        }
        let ghost = |(id, bytes): (&String, &u64)| {
            let (id, bytes, saves_us, uses_per_hour) = (id.clone(), *bytes, 1, 1);
            Idle { id, bytes, saves_us, uses_per_hour }
        };
        let idle = state.ghosts.iter().map(ghost).collect();
        NodeGhosts { idle, is_settling: state.is_settling }
    }

    fn stop_ghosts(&self, _: &str, ids: &[String]) -> (u64, BoxFuture<()>) {
        let nodes = self.clone();
        let mut state = self.state();
        let bytes = ids.iter().filter_map(|id| state.ghosts.remove(id)).sum();
        state.ending_bytes += bytes;
        let ending = Box::pin(async move {
            sleep(STOP).await;
            nodes.state().ending_bytes -= bytes;
        });
        (bytes, ending)
    }

    fn start(&self, start: Start) -> BoxFuture<Result<Started, NodesError>> {
        let nodes = self.clone();
        let mut state = self.state();
        if state.full_starts > 0 || !state.has_room(&start.node, start.claim.most_bytes()) {
            state.full_starts = state.full_starts.saturating_sub(1);
            return Box::pin(async { Err(NodesError::Full { node: start.node }) });
        }
        state.next += 1;
        let id = state.next;
        let what = start.image.as_ref().map_or("cold", |_| "clone");
        state.events.push(format!("{what} {id} on {}", start.node));
        if start.image.is_some() {
            state.tierings.push(start.tiering);
        }
        if state.lost_starts > 0 {
            state.lost_starts -= 1;
            let reason = "on purpose".to_owned();
            return Box::pin(async {
                sleep(START).await;
                Err(NodesError::Lost { node: start.node, reason })
            });
        }
        if state.failing_starts > 0 {
            state.failing_starts -= 1;
            return Box::pin(async move {
                sleep(START).await;
                let reason = "on purpose".to_owned();
                Err(NodesError::Start { node: start.node, reason })
            });
        }
        let (node, most_bytes) = (start.node.clone(), start.claim.most_bytes());
        state.alive.insert(id, Alive { node, most_bytes, is_at_work: true });
        drop(state);
        Box::pin(async move {
            sleep(START).await;
            let (out, out_end) = duplex(1 << 16);
            let (err, err_end) = duplex(1 << 16);
            // A clone has the code and the state of earlier calls.
            let code = start.image.is_some().then(|| "cloned".to_owned());
            let inside = Arc::new(Inside {
                id,
                kills: watch::channel(None).0,
                launches: watch::channel(false).0,
                state: Mutex::new((code, 0)),
                output: tokio::sync::Mutex::new([out_end, err_end]),
                nodes,
            });
            let (server, tie) = (Arc::clone(&inside), Tie(Arc::clone(&inside)));
            let was_attached = start.image.is_some() && inside.nodes.state().has_attached;
            let is_watched = inside.nodes.state().watches;
            let tiering = if is_watched { Tiering::Mow } else { start.tiering };
            Ok(Started {
                id,
                was_attached,
                tiering,
                paused: Arc::new(|| Duration::ZERO),
                took: StartTimes { whole: 3 * START, container: START, restore: START },
                connect: Box::new(move || {
                    if server.refuses_connections() {
                        let refused = io::ErrorKind::ConnectionRefused.into();
                        return Box::pin(async { Err(refused) });
                    }
                    server.nodes.state().connections += 1;
                    let (client, stream) = duplex(1 << 16);
                    tokio::spawn(serve(Arc::clone(&server), stream));
                    Box::pin(async { Ok(Box::new(client) as Stream) })
                }),
                output: [Box::new(out), Box::new(err)],
                ended: Box::pin(async move {
                    let tie = tie;
                    let mut ended = tie.0.kills.subscribe();
                    ended.wait_for(Option::is_some).await.unwrap().clone()
                }),
            })
        })
    }

    fn checkpoint(
        &self,
        id: u64,
        image: &str,
        hot: Vec<AddressRange>,
    ) -> BoxFuture<Result<(), NodesError>> {
        let (nodes, image) = (self.clone(), image.to_owned());
        Box::pin(async move {
            sleep(CHECKPOINT).await;
            assert_eq!(hot, [AddressRange { process: None, start: 0x1000, end: 0x2000 }]);
            let mut state = nodes.state();
            state.events.push(format!("checkpoint {id}"));
            if state.failing_checkpoints > 0 {
                state.failing_checkpoints -= 1;
                return Err(NodesError::Checkpoint { reason: "on purpose".to_owned() });
            }
            let used = state.pool_bytes + state.images.len() as u64 * IMAGE_BYTES;
            let free = POOL_BYTES - used;
            if free < IMAGE_BYTES {
                // A part was allocated before.
                let given = free / 10 * 9;
                let (asked_bytes, free_bytes) = (IMAGE_BYTES - given, free - given);
                return Err(NodesError::NoRoom { asked_bytes, free_bytes });
            }
            state.made.insert(image.clone());
            state.images.insert(image);
            Ok(())
        })
    }

    fn promote(&self, id: u64) -> BoxFuture<Result<u64, NodesError>> {
        self.state().events.push(format!("promote {id}"));
        Box::pin(async { Ok(1) })
    }

    fn list_images(&self) -> BoxFuture<Result<Vec<PoolImage>, NodesError>> {
        let state = self.state();
        let listed = |name: &String| PoolImage {
            name: name.clone(),
            bytes: IMAGE_BYTES,
            nodes: u64::from(state.pinned.contains(name)),
        };
        let listed = state.images.iter().map(listed).collect();
        Box::pin(async { Ok(listed) })
    }

    fn made_images(&self) -> Vec<String> {
        self.state().made.iter().cloned().collect()
    }

    fn has_image(&self, image: &str) -> BoxFuture<Result<bool, NodesError>> {
        let has = self.state().images.contains(image);
        Box::pin(async move { Ok(has) })
    }

    fn remove_image(&self, image: &str) -> BoxFuture<Result<(), NodesError>> {
        let mut state = self.state();
        state.images.remove(image);
        state.made.remove(image);
        Box::pin(async { Ok(()) })
    }
}
