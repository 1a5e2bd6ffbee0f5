//! The nodes, and what tests may have them do.

mod agents;
mod instance;
mod processors;
mod state;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;
use farfork_policy::placement::NodeFacts;
use farfork_sys::sync::locked;
use farfork_types::wire::AddressRange;
use farfork_types::{LocalShare, Tiering};
use tokio::time::sleep;

use super::agents::{Ghost, MAKE_US};
use super::{Durations, Footprint, Program};
use crate::clock::Clock;
use crate::scheduler::Advisor;
use crate::scheduler::near_share::NearShare;
use crate::scheduler::nodes::{
    BoxFuture, Claim, NodeGhosts, NodeLoad, NodeState, Nodes, NodesError, PoolImage, Start,
    Started, Usage,
};
pub use instance::Instance;
use instance::Tie;
use state::Alive;
pub use state::State;

/// Simulated nodes.
#[derive(Clone, Debug)]
pub struct SimulatedNodes {
    state: Arc<Mutex<State>>,
    program: Arc<dyn Program>,
    /// What decides about ghosts, and since when.
    ghosts: Option<(Arc<Advisor>, Clock)>,
}

impl SimulatedNodes {
    /// Nodes with these names and budgets in bytes, and this pool. Their instances run `program`.
    pub fn new(
        budgets: impl IntoIterator<Item = (String, u64)>,
        pool_size_bytes: u64,
        durations: Durations,
        program: Arc<dyn Program>,
    ) -> SimulatedNodes {
        let facts = |(name, budget_bytes): (String, u64)| NodeFacts {
            node: name.as_str().into(),
            memory: Memory { used_bytes: 0, budget_bytes },
            ..NodeFacts::default()
        };
        let nodes = budgets.into_iter().map(facts).collect();
        let state = State::new(nodes, pool_size_bytes, durations);
        SimulatedNodes { state: Arc::new(Mutex::new(state)), program, ghosts: None }
    }

    /// The state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the tables valid.
        locked(&self.state)
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
        let (now, usage) = (alive.near_bytes().unwrap_or(0), alive.usage());
        state.near_bytes = state.near_bytes - before + now;
        if let (Some(agents), Some(usage)) = (&mut state.agents, usage) {
            agents.weighed(id, before, usage);
            self.wait_for(agents.take_later());
        }
        self.program.changed(state.totals());
    }

    /// Forgets an instance, which has ended.
    pub(super) fn ended(&self, id: u64) {
        let mut state = self.state();
        let near = state.alive.remove(&id).and_then(|alive| alive.near_bytes()).unwrap_or(0);
        state.near_bytes -= near;
        if let Some(agents) = &mut state.agents {
            agents.ended(id, near);
            self.wait_for(agents.take_later());
        }
        state.pauses.remove(&id);
        state.frozen.remove(&id);
        state.note(format!("end {id}"));
        self.program.changed(state.totals());
    }

    /// Takes the room of a start on its node; `None` if there is none.
    fn reserve(&self, start: &Start) -> Result<u64, NodesError> {
        let mut state = self.state();
        let Some(id) = state.number(start) else {
            return Err(NodesError::Full { node: start.node.clone() });
        };
        let what = start.image.as_ref().map_or("cold", |_| "clone");
        state.note(format!("{what} {id} on {}", start.node));
        if start.image.is_some() && state.is_verbose {
            state.tierings.push(start.tiering);
            state.shares.extend(start.local_share);
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
            is_local: false,
        };
        state.near_bytes += alive.near_bytes().unwrap_or(0);
        let usage = alive.usage();
        state.alive.insert(id, alive);
        if let (Some(agents), Some(usage)) = (&mut state.agents, usage) {
            agents.weighed(id, 0, usage);
        }
        self.program.changed(state.totals());
        Ok(id)
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
    fn nodes(&self, claim: Claim, image: Option<&str>) -> Vec<NodeFacts> {
        let state = self.state();
        match &state.agents {
            Some(agents) => {
                let image = image.and_then(|name| agents.ledger.known_image(name));
                agents.ledger.node_facts(claim, image)
            }
            None => state.facts(),
        }
    }

    fn load(&self, node: &str) -> Option<NodeLoad> {
        let state = self.state();
        let Some(agents) = &state.agents else {
            return state
                .facts()
                .iter()
                .find(|found| found.node.name() == node)
                .map(NodeLoad::from);
        };
        agents.ledger.node(node).and_then(|node| agents.ledger.load(node))
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
            name: node.node.name().to_owned(),
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
        if let Some(agents) = &mut state.agents {
            let fits = agents.begin_work(id);
            self.wait_for(agents.take_later());
            return fits;
        }
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
        let mut state = self.state();
        if let Some(agents) = &mut state.agents {
            agents.end_work(id);
            self.wait_for(agents.take_later());
        }
        if let Some(alive) = state.alive.get_mut(&id) {
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
                if let Some(agents) = &mut state.agents {
                    agents.ledger.freeze(id);
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
            if let Some(agents) = &mut state.agents {
                agents.ledger.thawed(id);
            }
            Ok(())
        })
    }

    fn ghosts(&self, node: &str) -> NodeGhosts {
        let state = self.state();
        if let Some(agents) = &state.agents {
            let Some(node) = agents.ledger.node(node) else { return NodeGhosts::default() };
            let idle = agents.ledger.idle_ghosts(node, self.now_us());
            return NodeGhosts { idle, is_settling: agents.ledger.has_set_aside(node) };
        }
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

    fn stop_ghosts(&self, node: &str, ids: &[OccupantId]) -> (u64, BoxFuture<()>) {
        let nodes = self.clone();
        let mut state = self.state();
        if let Some(agents) = &mut state.agents {
            let Some(node) = agents.ledger.node(node) else { return (0, Box::pin(async {})) };
            let (bytes, held) = agents.withdraw(node, ids, self.now_us());
            return (bytes, nodes.stopping(node, held));
        }
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
        // At once, before the future is polled.
        let reserved = self.reserve(&start);
        let ghost = match &reserved {
            Ok(_) => self.ghost(&start),
            Err(_) => Ghost::Empty,
        };
        let was_attached = ghost == Ghost::Attached;
        let busy = self.program.start_busy(&start, was_attached);
        let (mut duration, mut took) = self.program.start(&start, was_attached);
        if ghost == Ghost::New {
            took.container = Duration::from_micros(MAKE_US);
            (duration, took.whole) = (duration + took.container, took.whole + took.container);
        }
        Box::pin(async move {
            let id = match reserved {
                Ok(id) => id,
                Err(full @ NodesError::Full { .. }) => return Err(full),
                Err(error) => {
                    sleep(duration).await;
                    return Err(error);
                }
            };
            if let Some(whole) = nodes.starts(id, duration, busy).await {
                (took.whole, took.restore) = (whole, whole.saturating_sub(took.container));
            }
            nodes.has_started((id, &start), took.restore, was_attached);
            let (prints, is_watched, lacks_share) = {
                let mut state = nodes.state();
                if let Some(alive) = state.alive.get_mut(&id) {
                    alive.is_starting = false;
                }
                (state.is_verbose, state.watches, state.lacks_shares)
            };
            // A clone has the code and the state of earlier calls.
            let code = start.image.is_some().then(|| "cloned".to_owned());
            let (program, paused) = (Arc::clone(&nodes.program), nodes.paused(id));
            let (instance, output) = Instance::new(id, code, prints, nodes, program);
            let tie = Tie(Arc::clone(&instance));
            let tiering = if is_watched { Tiering::Mow } else { start.tiering };
            let share = start.local_share.filter(|_| !lacks_share);
            Ok(Started {
                id,
                share: share.map_or_else(NearShare::default, NearShare::started_with),
                was_attached,
                tiering,
                paused,
                took,
                region_bytes: start.region.as_ref().map(|_| 1 << 20),
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
        _has_region: bool,
    ) -> BoxFuture<Result<(), NodesError>> {
        let (nodes, image) = (self.clone(), image.to_owned());
        let duration = self.program.checkpoint(&image).unwrap_or(self.state().durations.checkpoint);
        self.checkpoints(id, true);
        Box::pin(async move {
            sleep(duration).await;
            nodes.checkpoints(id, false);
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
        self.clone().promoting(id)
    }

    fn has_far_memory(&self) -> bool {
        self.state().has_far_memory
    }

    fn set_share(
        &self,
        id: u64,
        from: LocalShare,
        to: LocalShare,
    ) -> Option<BoxFuture<Result<bool, NodesError>>> {
        let mut state = self.state();
        if state.full_shares > 0 {
            state.full_shares -= 1;
            return None;
        }
        if state.is_verbose {
            state.share_changes.push((id, from, to));
        }
        let (duration, change) = (state.share_duration, state.share_change);
        Some(Box::pin(async move {
            sleep(duration).await;
            change.map_err(|reason| NodesError::Share { reason: reason.to_owned() })
        }))
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
        if let Some(agents) = &mut state.agents {
            agents.forget_image(agents.ledger.known_image(image));
            self.wait_for(agents.take_later());
        }
        state.images.remove(image);
        state.made.remove(image);
        state.footprints.remove(image);
        self.program.changed(state.totals());
        Box::pin(async { Ok(()) })
    }
}
