//! The agents of simulated nodes: what is due later is a task that sleeps.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use farfork_scheduler::{ImageSpec, NodeId};
use farfork_types::Cid;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};

use super::SimulatedNodes;
use crate::clock::Clock;
use crate::scheduler::Advisor;
use crate::scheduler::nodes::{BoxFuture, NodesError, Paused, Start};
use crate::simulated::agents::{Agents, Ghost, GhostImage, Later, STOP_US};

impl SimulatedNodes {
    /// Nodes with agents that do what the platform's do: they promote instances, pause them if the settings overcommit
    /// memory, and keep ghosts if they are to. Must be called within a Tokio runtime.
    pub fn with_agents(mut self, has_ghosts: bool, advisor: Arc<Advisor>) -> SimulatedNodes {
        let growth = advisor.growth();
        let clock = Clock::default();
        self.ghosts = Some((Arc::clone(&advisor), clock));
        let mut state = self.state();
        let names = state.nodes.iter().map(|node| node.node.name().to_owned());
        let budget_bytes = state.nodes.first().map_or(0, |node| node.memory.budget_bytes);
        let mut agents = Agents::new(names, budget_bytes, growth, has_ghosts);
        agents.begin(clock.now_us(), &*advisor);
        self.wait_for(agents.take_later());
        state.agents = Some(agents);
        drop(state);
        self
    }

    /// The time that ghosts are decided by.
    pub(super) fn now_us(&self) -> u64 {
        self.ghosts.as_ref().map_or(0, |(_, clock)| clock.now_us())
    }

    /// Has what is due later happen then.
    pub(super) fn wait_for(&self, later: Vec<(u64, Later)>) {
        for (us, later) in later {
            let (nodes, due) = (self.clone(), begun(us));
            tokio::spawn(async move {
                due.await;
                nodes.happens(later);
            });
        }
    }

    fn happens(&self, later: Later) {
        let Some((advisor, clock)) = &self.ghosts else { return };
        let mut state = self.state();
        let pool = state.pool();
        let Some(agents) = &mut state.agents else { return };
        agents.happens(later, clock.now_us(), pool, &**advisor);
        self.wait_for(agents.take_later());
        for change in agents.take_pauses() {
            if let Some(paused) = state.pauses.get(&change.id) {
                paused.send_replace(change.paused);
            }
        }
        self.program.changed(state.totals());
    }

    /// In what an instance with reserved memory starts.
    pub(super) fn ghost(&self, start: &Start) -> Ghost {
        let mut state = self.state();
        let has_attached = state.has_attached;
        let (Some((advisor, clock)), Some(agents)) = (&self.ghosts, &mut state.agents) else {
            let is_attached = start.image.is_some() && has_attached;
            return if is_attached { Ghost::Attached } else { Ghost::Empty };
        };
        let Some(node) = agents.ledger.node(&start.node) else { return Ghost::Empty };
        let spec = spec(agents, start);
        let memory_mb = start.claim.memory_mb;
        let ghost = agents.take(node, memory_mb, spec.as_ref(), clock.now_us(), &**advisor);
        self.wait_for(agents.take_later());
        self.program.changed(state.totals());
        ghost
    }

    /// An instance has started, which took so long apart from making a container.
    pub(super) fn has_started(
        &self,
        (id, start): (u64, &Start),
        restore: Duration,
        was_attached: bool,
    ) {
        let mut state = self.state();
        let pool = state.pool();
        let name = start.image.as_deref();
        let ghost_bytes =
            name.and_then(|name| state.footprints.get(name)).map(|one| one.clone_bytes);
        let (Some((advisor, clock)), Some(agents)) = (&self.ghosts, &mut state.agents) else {
            return;
        };
        // The number serves as the pid, which is used nowhere.
        agents.ledger.started(id, i32::try_from(id & 0x7fff_ffff).unwrap_or(0));
        let Some(node) = agents.ledger.node(&start.node) else { return };
        let spec = spec(agents, start);
        let image = spec.map(|spec| GhostImage { spec, ghost_bytes: ghost_bytes.unwrap_or(0) });
        let us = u64::try_from(restore.as_micros()).unwrap_or(u64::MAX);
        let clone = image.as_ref().map(|image| (image, us, was_attached));
        agents.started(node, clone, (clock.now_us(), pool), &**advisor);
        self.wait_for(agents.take_later());
    }

    /// Works for so long, apart from when the instance is paused.
    pub(super) async fn work(&self, id: u64, mut left: Duration) {
        let paused = self.state().pauses.get(&id).map(watch::Sender::subscribe);
        let Some(mut paused) = paused else { return sleep(left).await };
        // A sender that is gone is that of an instance that has ended.
        while paused.wait_for(|paused| !paused).await.is_ok() {
            let begun = Instant::now();
            tokio::select! {
                biased;
                () = sleep(left) => return,
                _ = paused.wait_for(|paused| *paused) => {
                    left = left.saturating_sub(begun.elapsed());
                }
            }
        }
    }

    /// Returns how long an instance was paused in all.
    pub(super) fn paused(&self, id: u64) -> Paused {
        let nodes = self.clone();
        Arc::new(move || {
            let state = nodes.state();
            let paused_us = |agents: &Agents| agents.ledger.paused_us(id, nodes.now_us());
            Duration::from_micros(state.agents.as_ref().map_or(0, paused_us))
        })
    }

    /// An instance is being checkpointed, or not any more.
    pub(super) fn checkpoints(&self, id: u64, is_made: bool) {
        if let Some(agents) = &mut self.state().agents {
            agents.checkpoint(id, is_made);
            self.wait_for(agents.take_later());
        }
    }

    /// Promotes an instance. Without agents, that takes no time and moves nothing.
    pub(super) fn promoting(self, id: u64) -> BoxFuture<Result<u64, NodesError>> {
        let mut state = self.state();
        let Some(agents) = &mut state.agents else { return Box::pin(async { Ok(1) }) };
        let due = agents.promote(id).map(begun);
        self.wait_for(agents.take_later());
        drop(state);
        Box::pin(async move {
            let reason = "its node has no memory left, or it was not measured yet".to_owned();
            due.ok_or(NodesError::Promotion { reason })?.await;
            let mut state = self.state();
            let Some(alive) = state.alive.get_mut(&id) else { return Ok(1) };
            let before = alive.near_bytes().unwrap_or(0);
            alive.is_local = true;
            let (now, usage) = (alive.near_bytes().unwrap_or(0), alive.usage());
            state.near_bytes = state.near_bytes - before + now;
            if let (Some(agents), Some(usage)) = (&mut state.agents, usage) {
                agents.weighed(id, before, usage);
                agents.promoted(id);
                self.wait_for(agents.take_later());
            }
            self.program.changed(state.totals());
            Ok(1)
        })
    }

    /// Waits until ghosts have ended, which begins now.
    pub(super) fn stopping(self, node: NodeId, bytes: u64) -> BoxFuture<()> {
        let due = begun(STOP_US);
        Box::pin(async move {
            due.await;
            let mut state = self.state();
            if let Some(agents) = &mut state.agents {
                agents.stopped(node, bytes);
                self.wait_for(agents.take_later());
            }
            self.program.changed(state.totals());
        })
    }
}

/// A timer that has its place among others now, and not when it is first awaited.
pub(super) fn begun(us: u64) -> Pin<Box<Sleep>> {
    let mut due = Box::pin(sleep(Duration::from_micros(us)));
    // It is not over yet, as no such time is zero.
    let _ = due.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    due
}

/// The image that an instance starts of. It has the name of its function's version, so that no CID is needed.
fn spec(agents: &mut Agents, start: &Start) -> Option<ImageSpec> {
    let image = agents.image(start.image.as_deref()?)?;
    let (tiering, memory_mb) = (start.tiering, start.claim.memory_mb);
    Some(ImageSpec { image, cid: Cid::NIL, tiering, memory_mb })
}
