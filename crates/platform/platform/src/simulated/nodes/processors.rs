//! Processors of simulated nodes, which starts and calls share: what has had enough of them is woken.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

use super::SimulatedNodes;
use super::agents::begun;
use crate::simulated::processors::{NO_LIMIT, Processors};

/// The processors of all nodes, by the index of a node.
#[derive(Debug)]
pub(super) struct Shared {
    nodes: Vec<Processors>,
    /// What wakes those that work when they have had what they need.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// An instance's work on the processors of a node, which it leaves when this is dropped.
struct OnProcessors<'a> {
    nodes: &'a SimulatedNodes,
    node: usize,
    id: u64,
}

impl SimulatedNodes {
    /// Nodes with so many processors each, which starts and calls share. Their agents must be simulated.
    pub fn with_processors(self, count: u32) -> SimulatedNodes {
        let mut state = self.state();
        let nodes = vec![Processors::new(count); state.nodes.len()];
        state.processors = Some(Shared { nodes, waiting: BTreeMap::new() });
        drop(state);
        self
    }

    /// The index of an instance's node, if processors are shared.
    fn shared_node(&self, id: u64) -> Option<usize> {
        let state = self.state();
        state.processors.as_ref()?;
        let agents = state.agents.as_ref()?;
        agents.ledger.node_of(id).map(|node| node.index())
    }

    /// A start, for a part of which a processor is needed. Returns how long it took if processors are shared.
    pub(super) async fn starts(
        &self,
        id: u64,
        whole: Duration,
        busy: Duration,
    ) -> Option<Duration> {
        let Some(node) = self.shared_node(id) else {
            sleep(whole).await;
            return None;
        };
        let begun = Instant::now();
        if !busy.is_zero() {
            let (_on, over) = self.begin_on(node, id, NO_LIMIT, busy);
            // The sender is kept until then.
            let _ = over.await;
        }
        let rest = whole.saturating_sub(busy);
        if !rest.is_zero() {
            sleep(rest).await;
        }
        Some(begun.elapsed())
    }

    /// Works for so long, `busy` of which needs a processor where they are shared, apart from when the instance is paused.
    pub(super) async fn works(&self, id: u64, busy: Duration, rest: Duration) {
        let Some(node) = self.shared_node(id).filter(|_| !busy.is_zero()) else {
            return self.work(id, busy + rest).await;
        };
        let paused = self.state().pauses.get(&id).map(watch::Sender::subscribe);
        let Some(mut paused) = paused else { return sleep(busy + rest).await };
        let mut left = busy;
        while paused.wait_for(|paused| !paused).await.is_ok() {
            let (on, mut over) = self.begin_on(node, id, self.now_us(), left);
            tokio::select! {
                biased;
                _ = &mut over => break,
                _ = paused.wait_for(|paused| *paused) => {}
            }
            let Some(later) = on.pause() else {
                // It is over at this moment, as it is about to be announced.
                let _ = over.await;
                break;
            };
            left = later;
        }
        if !rest.is_zero() {
            self.work(id, rest).await;
        }
    }

    /// Begins what needs a processor for so long. What is returned is ready when it had it.
    fn begin_on(
        &self,
        node: usize,
        id: u64,
        since_us: u64,
        busy: Duration,
    ) -> (OnProcessors<'_>, oneshot::Receiver<()>) {
        let (wakes, over) = oneshot::channel();
        let now_us = self.now_us();
        let busy_us = u64::try_from(busy.as_micros()).unwrap_or(u64::MAX);
        if let Some(shared) = &mut self.state().processors {
            shared.nodes[node].begin((now_us, since_us), id, busy_us);
            shared.waiting.insert(id, wakes);
            self.wait_for_processors(shared, node);
        }
        (OnProcessors { nodes: self, node, id }, over)
    }

    /// Looks at a node's processors again when the next work has had enough of them.
    fn wait_for_processors(&self, shared: &Shared, node: usize) {
        let Some((at_us, change)) = shared.nodes[node].due(NO_LIMIT) else { return };
        let nodes = self.clone();
        // What is over already has no timer.
        let timer = at_us.checked_sub(self.now_us()).filter(|us| *us > 0).map(begun);
        tokio::spawn(async move {
            if let Some(timer) = timer {
                timer.await;
            }
            nodes.processors_are_due(node, change);
        });
    }

    fn processors_are_due(&self, node: usize, change: u64) {
        let now_us = self.now_us();
        let Some(shared) = &mut self.state().processors else { return };
        if !shared.nodes[node].is_current(change) {
            return;
        }
        for ended in shared.nodes[node].ended(now_us, NO_LIMIT) {
            if let Some(wakes) = shared.waiting.remove(&ended.instance) {
                // It may have ended meanwhile.
                let _ = wakes.send(());
            }
        }
        self.wait_for_processors(shared, node);
    }
}

impl OnProcessors<'_> {
    /// Leaves the processors. Returns how long they are needed still; `None` if they are not.
    fn pause(self) -> Option<Duration> {
        let now_us = self.nodes.now_us();
        let is_over = match &mut self.nodes.state().processors {
            Some(shared) => shared.nodes[self.node].is_over(now_us, self.id),
            None => true,
        };
        if is_over {
            std::mem::forget(self);
            return None;
        }
        self.leave().map(Duration::from_micros)
    }

    fn leave(&self) -> Option<u64> {
        let now_us = self.nodes.now_us();
        let mut state = self.nodes.state();
        let shared = state.processors.as_mut()?;
        let left_us = shared.nodes[self.node].leave(now_us, self.id)?;
        shared.waiting.remove(&self.id);
        self.nodes.wait_for_processors(shared, self.node);
        Some(left_us)
    }
}

impl Drop for OnProcessors<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
