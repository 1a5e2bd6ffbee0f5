//! The nodes, and what tests may have them do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;
use farfork_policy::placement::NodeFacts;
use farfork_types::Tiering;
use farfork_types::wire::AddressRange;
use tokio::time::sleep;

use super::instance::{Instance, Tie};
use super::{Durations, Footprint, Program, Totals};
use crate::scheduler::nodes::{
    BoxFuture, Claim, NodeGhosts, NodeState, Nodes, NodesError, PoolImage, Start, Started, Usage,
};

/// The state of the nodes, and what they are to do.
#[derive(Debug)]
pub struct State {
    /// The nodes without their instances.
    pub nodes: Vec<NodeFacts>,
    /// How long their work takes.
    pub durations: Durations,
    /// Whether events are recorded, and whether instances print.
    pub is_verbose: bool,
    /// Events since they were last taken.
    pub events: Vec<String>,
    /// Size of the pool.
    pub pool_size_bytes: u64,
    /// Size of an image whose instance has no footprint.
    pub image_bytes: u64,
    /// Images in the pool.
    pub images: BTreeSet<String>,
    /// Images made here.
    pub made: BTreeSet<String>,
    /// The ranges declared hot of the last checkpoint.
    pub hot: Vec<AddressRange>,
    /// Images with living clones, beside those that are counted.
    pub pinned: BTreeSet<String>,
    /// Bytes of the pool in use besides.
    pub pool_bytes: u64,
    /// Number of starts to fail.
    pub failing_starts: u32,
    /// Number of instances that may start without an image at once; any number if not set.
    pub most_cold_starts: Option<usize>,
    /// Number of starts to lose their room.
    pub full_starts: u32,
    /// Number of starts to find their node lost.
    pub lost_starts: u32,
    /// Number of checkpoints to fail.
    pub failing_checkpoints: u32,
    /// Requests to freeze and thaw, if events are recorded.
    pub freezer: Vec<String>,
    /// Frozen instances.
    pub frozen: BTreeSet<u64>,
    /// Number of freezes that succeed but report a failure.
    pub failing_freezes: u32,
    /// Number of thaws to fail.
    pub failing_thaws: u32,
    /// Whether every start finds a ghost with its image attached.
    pub has_attached: bool,
    /// Attached ghosts that each node reports.
    pub attached_ghosts: u64,
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
    /// Tiering policies of the started clones, if events are recorded.
    pub tierings: Vec<Tiering>,
    /// Measured memory of each instance without a footprint.
    pub usage: Option<Usage>,
    /// Number of connections made.
    pub connections: u32,
    /// Number of connections to a launched program to refuse.
    pub deaf_connects: u32,
    next: u64,
    /// Bytes that an idle instance without a footprint holds, if less than its limit.
    pub held_bytes: Option<u64>,
    alive: BTreeMap<u64, Alive>,
    footprints: BTreeMap<String, Footprint>,
    /// Sum of the near memory of all living instances with a footprint.
    near_bytes: u64,
}

/// An instance as the nodes see it.
#[derive(Debug)]
struct Alive {
    node: String,
    most_bytes: u64,
    is_starting: bool,
    is_at_work: bool,
    is_clone: bool,
    image: Option<String>,
    footprint: Option<Footprint>,
}

impl Alive {
    /// Near memory, if known.
    fn near_bytes(&self) -> Option<u64> {
        let footprint = self.footprint?;
        Some(if self.is_clone { footprint.clone_bytes } else { footprint.cold_bytes })
    }

    fn usage(&self) -> Option<Usage> {
        let pool_bytes = self.footprint.filter(|_| self.is_clone).map_or(0, |f| f.mapped_bytes);
        self.near_bytes().map(|local_bytes| Usage { local_bytes, pool_bytes })
    }
}

impl State {
    fn taken(&self, alive: &Alive) -> u64 {
        let held = alive.near_bytes().or(self.held_bytes);
        held.filter(|_| !alive.is_at_work).unwrap_or(alive.most_bytes)
    }

    fn facts(&self) -> Vec<NodeFacts> {
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            for alive in self.alive.values().filter(|alive| alive.node == node.name) {
                node.memory.used_bytes += self.taken(alive);
                node.starting += u64::from(alive.is_starting);
            }
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

    /// Bytes of an image in the pool.
    fn image_size(&self, image: &str) -> u64 {
        self.footprints.get(image).map_or(self.image_bytes, |footprint| footprint.image_bytes)
    }

    fn pool(&self) -> Memory {
        let images = self.images.iter().map(|image| self.image_size(image)).sum::<u64>();
        Memory { used_bytes: self.pool_bytes + images, budget_bytes: self.pool_size_bytes }
    }

    fn totals(&self) -> Totals {
        Totals {
            instances: self.alive.len() as u64,
            near_bytes: self.near_bytes,
            pool_bytes: self.pool().used_bytes,
        }
    }

    /// Records an event.
    pub fn note(&mut self, event: String) {
        if self.is_verbose {
            self.events.push(event);
        }
    }

    /// Makes an image of an instance.
    fn image(&mut self, id: u64, image: String) -> Result<(), NodesError> {
        let footprint = self.alive.get(&id).and_then(|alive| alive.footprint);
        let needed = footprint.map_or(self.image_bytes, |footprint| footprint.image_bytes);
        let free = self.pool().free_below(1000);
        if free < needed {
            // A part was allocated before.
            let given = free / 10 * 9;
            let (asked_bytes, free_bytes) = (needed - given, free - given);
            return Err(NodesError::NoRoom { asked_bytes, free_bytes });
        }
        if let Some(footprint) = footprint {
            self.footprints.insert(image.clone(), footprint);
        }
        self.made.insert(image.clone());
        self.images.insert(image);
        Ok(())
    }
}

/// Simulated nodes.
#[derive(Clone, Debug)]
pub struct SimulatedNodes {
    state: Arc<Mutex<State>>,
    program: Arc<dyn Program>,
}

impl SimulatedNodes {
    /// Nodes with these names and budgets in bytes, and this pool. Their instances run `program`.
    pub fn new(
        budgets: impl IntoIterator<Item = (String, u64)>,
        pool_size_bytes: u64,
        durations: Durations,
        program: Arc<dyn Program>,
    ) -> SimulatedNodes {
        let facts = |(name, budget_bytes)| NodeFacts {
            name,
            memory: Memory { used_bytes: 0, budget_bytes },
            ..NodeFacts::default()
        };
        let nodes = budgets.into_iter().map(facts).collect();
        let state = State::new(nodes, pool_size_bytes, durations);
        SimulatedNodes { state: Arc::new(Mutex::new(state)), program }
    }

    /// The state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the tables valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the events.
    pub fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.state().events)
    }

    /// Ids of living instances.
    pub fn alive(&self) -> Vec<u64> {
        self.state().alive.keys().copied().collect()
    }

    /// Whether a connection to an instance is refused now.
    pub(super) fn refuses_connection(&self, is_launched: bool) -> bool {
        let mut state = self.state();
        let is_deaf = is_launched && state.deaf_connects > 0;
        state.deaf_connects -= u32::from(is_deaf);
        state.connections += u32::from(!is_deaf);
        is_deaf
    }

    /// Sets the footprint of an instance.
    pub(super) fn weigh(&self, id: u64, footprint: Footprint) {
        let mut state = self.state();
        let Some(alive) = state.alive.get_mut(&id) else { return };
        let before = alive.near_bytes().unwrap_or(0);
        alive.footprint = Some(footprint);
        let now = alive.near_bytes().unwrap_or(0);
        state.near_bytes = state.near_bytes - before + now;
        self.program.changed(state.totals());
    }

    /// Forgets an instance, which has ended.
    pub(super) fn ended(&self, id: u64) {
        let mut state = self.state();
        let near = state.alive.remove(&id).and_then(|alive| alive.near_bytes());
        state.near_bytes -= near.unwrap_or(0);
        state.frozen.remove(&id);
        state.note(format!("end {id}"));
        self.program.changed(state.totals());
    }

    /// Takes the room of a start on its node; `None` if there is none.
    fn reserve(&self, start: &Start) -> Result<u64, NodesError> {
        let mut state = self.state();
        if state.full_starts > 0 || !state.has_room(&start.node, start.claim.most_bytes()) {
            state.full_starts = state.full_starts.saturating_sub(1);
            return Err(NodesError::Full { node: start.node.clone() });
        }
        state.next += 1;
        let id = state.next;
        let what = start.image.as_ref().map_or("cold", |_| "clone");
        state.note(format!("{what} {id} on {}", start.node));
        if start.image.is_some() && state.is_verbose {
            state.tierings.push(start.tiering);
        }
        let (node, reason) = (start.node.clone(), "on purpose".to_owned());
        if state.lost_starts > 0 {
            state.lost_starts -= 1;
            return Err(NodesError::Lost { node, reason });
        }
        if state.failing_starts > 0 {
            state.failing_starts -= 1;
            return Err(NodesError::Start { node, reason });
        }
        let footprint = start.image.as_ref().and_then(|image| state.footprints.get(image).copied());
        let alive = Alive {
            node,
            most_bytes: start.claim.most_bytes(),
            is_starting: true,
            is_at_work: true,
            is_clone: start.image.is_some(),
            image: start.image.clone(),
            footprint,
        };
        state.near_bytes += alive.near_bytes().unwrap_or(0);
        state.alive.insert(id, alive);
        self.program.changed(state.totals());
        Ok(id)
    }
}

impl State {
    fn new(nodes: Vec<NodeFacts>, pool_size_bytes: u64, durations: Durations) -> State {
        State {
            nodes,
            durations,
            pool_size_bytes,
            is_verbose: false,
            events: Vec::new(),
            image_bytes: 0,
            images: BTreeSet::new(),
            made: BTreeSet::new(),
            hot: Vec::new(),
            pinned: BTreeSet::new(),
            pool_bytes: 0,
            failing_starts: 0,
            most_cold_starts: None,
            full_starts: 0,
            lost_starts: 0,
            failing_checkpoints: 0,
            freezer: Vec::new(),
            frozen: BTreeSet::new(),
            failing_freezes: 0,
            failing_thaws: 0,
            has_attached: false,
            attached_ghosts: 0,
            watches: false,
            ghosts_on: None,
            ghosts: BTreeMap::new(),
            ending_bytes: 0,
            is_settling: false,
            tierings: Vec::new(),
            usage: None,
            connections: 0,
            deaf_connects: 0,
            next: 0,
            held_bytes: None,
            alive: BTreeMap::new(),
            footprints: BTreeMap::new(),
            near_bytes: 0,
        }
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

impl Nodes for SimulatedNodes {
    fn nodes(&self, _: Claim, _: Option<&str>) -> Vec<NodeFacts> {
        self.state().facts()
    }

    fn pool(&self) -> Memory {
        self.state().pool()
    }

    fn images(&self) -> u64 {
        self.state().images.len() as u64
    }

    fn most_cold_starts(&self) -> Option<usize> {
        self.state().most_cold_starts
    }

    fn survey(&self) -> Vec<NodeState> {
        let state = self.state();
        let attached_ghosts = state.attached_ghosts;
        let seen = |node: NodeFacts| NodeState {
            name: node.name,
            answers: true,
            memory: node.memory,
            starting: node.starting,
            paused: 0,
            ghosts: node.empty_ghosts,
            attached_ghosts,
            pool_read_bytes_per_s: None,
            pool_busy_permille: node.pool_busy_permille,
        };
        state.facts().into_iter().map(seen).collect()
    }

    fn usage(&self, id: u64) -> Option<Usage> {
        let state = self.state();
        state.alive.get(&id).and_then(Alive::usage).or(state.usage)
    }

    fn begin_work(&self, id: u64) -> bool {
        let mut state = self.state();
        let Some(alive) = state.alive.get(&id) else { return true };
        let missing = alive.most_bytes.saturating_sub(state.taken(alive));
        if !alive.is_at_work && !state.has_room(&alive.node, missing) {
            return false;
        }
        if let Some(alive) = state.alive.get_mut(&id) {
            alive.is_at_work = true;
        }
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
            let duration = {
                let mut state = nodes.state();
                if state.is_verbose {
                    state.freezer.push(format!("freeze {id}"));
                }
                state.durations.freeze
            };
            sleep(duration).await;
            let mut state = nodes.state();
            state.frozen.insert(id);
            failing(&mut state.failing_freezes, "freeze")
        })
    }

    fn thaw(&self, id: u64) -> BoxFuture<Result<(), NodesError>> {
        let nodes = self.clone();
        Box::pin(async move {
            let mut state = nodes.state();
            if state.is_verbose {
                state.freezer.push(format!("thaw {id}"));
            }
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
            let (id, bytes, saves_us, uses_per_hour) = (OccupantId::from(&**id), *bytes, 1, 1);
            Idle { id, bytes, saves_us, uses_per_hour }
        };
        let idle = state.ghosts.iter().map(ghost).collect();
        NodeGhosts { idle, is_settling: state.is_settling }
    }

    fn stop_ghosts(&self, _: &str, ids: &[OccupantId]) -> (u64, BoxFuture<()>) {
        let nodes = self.clone();
        let mut state = self.state();
        let bytes = ids.iter().filter_map(|id| state.ghosts.remove(&id.to_string())).sum();
        state.ending_bytes += bytes;
        let duration = state.durations.stop;
        let ending = Box::pin(async move {
            sleep(duration).await;
            nodes.state().ending_bytes -= bytes;
        });
        (bytes, ending)
    }

    fn start(&self, start: Start) -> BoxFuture<Result<Started, NodesError>> {
        let nodes = self.clone();
        let was_attached = start.image.is_some() && self.state().has_attached;
        let (duration, took) = self.program.start(&start, was_attached);
        // At once, before the future is polled.
        let reserved = self.reserve(&start);
        Box::pin(async move {
            let id = match reserved {
                Ok(id) => id,
                Err(full @ NodesError::Full { .. }) => return Err(full),
                Err(error) => {
                    sleep(duration).await;
                    return Err(error);
                }
            };
            sleep(duration).await;
            let (prints, is_watched) = {
                let mut state = nodes.state();
                if let Some(alive) = state.alive.get_mut(&id) {
                    alive.is_starting = false;
                }
                (state.is_verbose, state.watches)
            };
            // A clone has the code and the state of earlier calls.
            let code = start.image.is_some().then(|| "cloned".to_owned());
            let program = Arc::clone(&nodes.program);
            let (instance, output) = Instance::new(id, code, prints, nodes, program);
            let tie = Tie(Arc::clone(&instance));
            let tiering = if is_watched { Tiering::Mow } else { start.tiering };
            Ok(Started {
                id,
                was_attached,
                tiering,
                paused: Arc::new(|| Duration::ZERO),
                took,
                connect: instance.connect(),
                output,
                ended: Box::pin(async move {
                    let tie = tie;
                    tie.0.ended().await
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
        let duration = self.state().durations.checkpoint;
        Box::pin(async move {
            sleep(duration).await;
            let mut state = nodes.state();
            state.note(format!("checkpoint {id}"));
            state.hot = hot;
            if state.failing_checkpoints > 0 {
                state.failing_checkpoints -= 1;
                return Err(NodesError::Checkpoint { reason: "on purpose".to_owned() });
            }
            let made = state.image(id, image);
            nodes.program.changed(state.totals());
            made
        })
    }

    fn promote(&self, id: u64) -> BoxFuture<Result<u64, NodesError>> {
        self.state().note(format!("promote {id}"));
        Box::pin(async { Ok(1) })
    }

    fn list_images(&self) -> BoxFuture<Result<Vec<PoolImage>, NodesError>> {
        let state = self.state();
        let nodes_of = |name: &String| {
            let clones = state.alive.values().filter(|alive| alive.image.as_ref() == Some(name));
            let nodes: BTreeSet<&str> = clones.map(|alive| &*alive.node).collect();
            (nodes.len() as u64).max(u64::from(state.pinned.contains(name)))
        };
        let listed = |name: &String| PoolImage {
            name: name.clone(),
            bytes: state.image_size(name),
            nodes: nodes_of(name),
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
        state.footprints.remove(image);
        self.program.changed(state.totals());
        Box::pin(async { Ok(()) })
    }
}
