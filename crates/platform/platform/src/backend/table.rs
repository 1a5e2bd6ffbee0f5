//! All instances, and the memory that they take on their nodes.
//!
//! A busy or starting instance may take all that its limit allows. As much memory stays free as
//! lets all busy instances of a node do so, at once or one after the other
//! ([`farfork_policy::growth`]). An idle instance counts with what it holds. So a node never
//! promises more than it can give, and still holds many more instances than its memory divided by
//! their limits.

mod entry;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_policy::Memory;
use farfork_policy::growth::{Demand, GrowthFacts};
use farfork_policy::placement::NodeFacts;
use farfork_policy::settings::Growth;
use tokio::sync::watch;

use super::MEASURE;
use crate::scheduler::nodes::{Claim, NodeState, Usage};
use entry::Entry;

/// A change of an instance's pause, to be sent to its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseChange {
    /// The instance.
    pub id: u64,
    /// Its pid.
    pub pid: i32,
    /// Whether it is to be paused, or resumed.
    pub paused: bool,
}

/// All instances and nodes.
#[derive(Debug)]
pub struct Table {
    state: Mutex<State>,
    /// Notified when busy instances may take more than is free, so that a node is measured more
    /// often.
    crowded: Condvar,
    /// Notified when a node stops answering, or answers again.
    turned: watch::Sender<()>,
    next: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Whether each node answers.
    nodes: BTreeMap<String, bool>,
    /// Bytes that the kernel has charged to nodes, as last measured.
    measured: BTreeMap<String, u64>,
    /// How fast nodes read from the pool.
    reading: BTreeMap<String, Reading>,
    node_memory_bytes: u64,
    growth: Growth,
    instances: BTreeMap<u64, Entry>,
    /// Node and bytes of memory set aside.
    set_aside: BTreeMap<u64, (String, u64)>,
}

/// How fast a node reads from the pool, in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    last: u64,
    /// The fastest rate so far, when the pool was presumably idle.
    best: u64,
}

impl Reading {
    /// Share of the pool's bandwidth in use, in thousandths. If requests wait in one queue that is
    /// busy a share `r` of the time, each takes `1 / (1 - r)` times as long as alone (M/M/1).
    fn busy_permille(self) -> u64 {
        1000 - self.last * 1000 / self.best.max(1)
    }
}

impl State {
    /// A node's memory, taken and promised.
    fn memory(&self, node: &str) -> Memory {
        let promised = self.growth.least_free(self.demands(node));
        let used_bytes = self.taken(node) + promised;
        Memory { used_bytes, budget_bytes: self.node_memory_bytes }
    }

    fn answers(&self, node: &str) -> bool {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    fn here(&self, node: &str) -> impl Iterator<Item = (&u64, &Entry)> {
        self.instances.iter().filter(move |(_, entry)| entry.node == node)
    }

    /// Bytes of a node's memory that are taken or about to be, without promises to busy instances.
    fn taken(&self, node: &str) -> u64 {
        let here = || self.here(node).map(|(_, entry)| entry);
        let seen = self.measured.get(node).copied();
        let held = seen.unwrap_or_else(|| here().map(Entry::held_if_not_measured).sum());
        let begun: u64 = here().map(|entry| entry.begun_bytes() + entry.promoted_bytes).sum();
        let others = self.set_aside.values().filter(|(other, _)| other == node);
        held + begun + others.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// The demands of a node's busy instances.
    fn demands(&self, node: &str) -> impl Iterator<Item = Demand> {
        self.here(node).filter(|(_, entry)| entry.is_busy).map(|(_, entry)| entry.demand())
    }

    /// Bytes that a node's idle instances hold.
    fn idle_bytes(&self, node: &str) -> u64 {
        let idle = self.here(node).filter(|(_, entry)| !entry.is_busy);
        idle.map(|(_, entry)| entry.held_if_not_measured()).sum()
    }

    /// Bytes that must be free on a node for one more instance.
    fn need(&self, node: &str, claim: Claim) -> u64 {
        let newcomer = Entry::starting(node, claim);
        let before = self.growth.least_free(self.demands(node));
        let after = self.growth.least_free(self.demands(node).chain([newcomer.demand()]));
        (newcomer.begun_bytes() + after).saturating_sub(before)
    }

    /// Makes a change, and takes it back if the node's memory would be exceeded. Returns whether it
    /// fits.
    fn if_it_fits(
        &mut self,
        node: &str,
        make: impl FnOnce(&mut State),
        take_back: impl FnOnce(&mut State),
    ) -> bool {
        make(self);
        let Memory { used_bytes, budget_bytes } = self.memory(node);
        let fits = used_bytes <= budget_bytes;
        if !fits {
            take_back(self);
        }
        fits
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut Entry)) {
        self.instances.entry(id).and_modify(change);
    }

    /// Whether busy instances on a node may take more than is free, or some are paused.
    fn is_crowded(&self, node: &str) -> bool {
        if !self.growth.overcommits() {
            return false;
        }
        if self.here(node).any(|(_, entry)| entry.is_paused()) {
            return true;
        }
        let growth: u64 = self.demands(node).map(|demand| demand.headroom_bytes).sum();
        self.taken(node) + growth > self.node_memory_bytes
    }
}

/// An instance's entry in the table, removed when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    table: Arc<Table>,
    /// The instance's name.
    pub id: u64,
}

impl Table {
    /// A table without instances.
    pub fn new(nodes: &[String], node_memory_bytes: u64, growth: Growth) -> Table {
        let nodes = nodes.iter().map(|node| (node.clone(), true)).collect();
        let (measured, reading, instances, set_aside) = Default::default();
        let state =
            State { nodes, measured, reading, node_memory_bytes, growth, instances, set_aside };
        let (crowded, turned) = (Condvar::new(), watch::Sender::new(()));
        Table { state: Mutex::new(state), crowded, turned, next: AtomicU64::new(1) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the table valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves memory for an instance to be started, which counts as busy; `None` without room.
    pub fn reserve(self: &Arc<Table>, node: &str, claim: Claim) -> Option<Reservation> {
        let (mut state, id) = (self.state(), self.new_id());
        let fits = state.if_it_fits(
            node,
            |state| drop(state.instances.insert(id, Entry::starting(node, claim))),
            |state| drop(state.instances.remove(&id)),
        );
        self.look_closer_if_crowded(&state, node);
        fits.then(|| Reservation { table: Arc::clone(self), id })
    }

    fn new_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Marks an instance busy. Returns false if there is no room for what it may take, or if it is
    /// frozen and no agent answers to thaw it.
    pub fn begin_work(&self, id: u64) -> bool {
        let mut state = self.state();
        let Some(entry) = state.instances.get(&id) else { return false };
        if entry.is_frozen && !state.answers(&entry.node) {
            return false;
        }
        if entry.is_busy {
            return true;
        }
        let node = entry.node.clone();
        let fits = state.if_it_fits(
            &node,
            |state| state.change(id, |entry| entry.is_busy = true),
            |state| state.change(id, |entry| entry.is_busy = false),
        );
        self.look_closer_if_crowded(&state, &node);
        fits
    }

    fn look_closer_if_crowded(&self, state: &State, node: &str) {
        if state.is_crowded(node) {
            self.crowded.notify_all();
        }
    }

    /// Marks an instance idle.
    pub fn end_work(&self, id: u64) {
        self.state().change(id, |entry| entry.is_busy = false);
    }

    /// Waits until any node becomes crowded, at most `longest`; not at all if this node is. Returns
    /// whether this node is crowded.
    pub fn wait_until_crowded(&self, node: &str, longest: Duration) -> bool {
        let state = self.state();
        if state.is_crowded(node) {
            return true;
        }
        let waited = self.crowded.wait_timeout(state, longest);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_crowded(node)
    }

    /// The facts to decide which instances pause; `None` if all may reach their limits at once.
    pub fn growth(&self, node: &str) -> Option<GrowthFacts> {
        let state = self.state();
        state.is_crowded(node).then(|| GrowthFacts {
            memory: Memory { used_bytes: state.taken(node), budget_bytes: state.node_memory_bytes },
            idle_bytes: state.idle_bytes(node),
            workers: state.here(node).filter_map(|(id, entry)| entry.worker(*id)).collect(),
        })
    }

    /// Sets which instances of a node are paused. Returns the changes to send to the agent. A
    /// starting instance cannot be paused.
    pub fn pause(&self, node: &str, ids: &[String]) -> Vec<PauseChange> {
        let mut changes = Vec::new();
        let mut state = self.state();
        for (id, entry) in state.instances.iter_mut().filter(|(_, entry)| entry.node == node) {
            let paused = ids.contains(&id.to_string());
            if let Some(pid) = entry.pid.filter(|_| entry.is_paused() != paused) {
                entry.set_paused(paused);
                changes.push(PauseChange { id: *id, pid, paused });
            }
        }
        changes
    }

    /// Undoes a change that could not be sent to the agent.
    pub fn undo_pause(&self, id: u64, paused: bool) {
        self.state().change(id, |entry| entry.set_paused(!paused));
    }

    /// Marks an idle instance frozen; returns its node and pid. `None` if it is busy, paused or has
    /// ended.
    pub fn freeze(&self, id: u64) -> Option<(String, i32)> {
        let mut state = self.state();
        let entry = state.instances.get_mut(&id)?;
        if entry.is_busy || entry.is_paused() {
            return None;
        }
        entry.is_frozen = true;
        Some((entry.node.clone(), entry.pid?))
    }

    /// Node and pid of an instance, if it has not ended.
    pub fn location(&self, id: u64) -> Option<(String, i32)> {
        let state = self.state();
        let entry = state.instances.get(&id)?;
        Some((entry.node.clone(), entry.pid?))
    }

    /// Marks an instance as thawed.
    pub fn thawed(&self, id: u64) {
        self.state().change(id, |entry| entry.is_frozen = false);
    }

    /// Prevents pauses of an instance until the guard is dropped.
    pub fn prevent_pause(self: &Arc<Table>, id: u64) -> PauseGuard {
        self.state().change(id, |entry| entry.goes_on = true);
        PauseGuard { table: Arc::clone(self), id }
    }

    /// How long an instance was paused in all.
    pub fn paused(&self, id: u64) -> Duration {
        self.state().instances.get(&id).map(Entry::paused).unwrap_or_default()
    }

    /// Sets memory aside, not for an instance, until the guard is dropped; `None` without room.
    pub fn set_aside(self: &Arc<Table>, node: &str, bytes: u64) -> Option<SetAside> {
        let (mut state, id) = (self.state(), self.new_id());
        let fits = state.if_it_fits(
            node,
            |state| drop(state.set_aside.insert(id, (node.to_owned(), bytes))),
            |state| drop(state.set_aside.remove(&id)),
        );
        fits.then(|| SetAside { table: Arc::clone(self), id })
    }

    /// Whether memory of a node is set aside.
    pub fn has_set_aside(&self, node: &str) -> bool {
        self.state().set_aside.values().any(|(other, bytes)| other == node && *bytes > 0)
    }

    /// Reserves memory to promote an instance: as much as it was last seen to map from the pool.
    /// `None` if there is no room, or the instance was not measured yet or has ended.
    pub fn promote(self: &Arc<Table>, id: u64) -> Option<Promoting> {
        let mut state = self.state();
        let entry = state.instances.get(&id)?;
        let (node, pid, bytes) = (entry.node.clone(), entry.pid?, entry.usage?.pool_bytes);
        let before = entry.promoted_bytes;
        let fits = state.if_it_fits(
            &node,
            |state| state.change(id, |entry| entry.promoted_bytes = bytes),
            |state| state.change(id, |entry| entry.promoted_bytes = before),
        );
        fits.then(|| Promoting { table: Arc::clone(self), id, node, pid })
    }

    /// The last measured memory of an instance.
    pub fn usage(&self, id: u64) -> Option<Usage> {
        self.state().instances.get(&id)?.usage
    }

    /// Records the memory of a node's clones by pid, or that the node does not answer. Returns
    /// whether that has changed.
    pub fn record_usage(&self, node: &str, clones: Option<BTreeMap<i32, Usage>>) -> bool {
        let mut state = self.state();
        let before = state.nodes.insert(node.to_owned(), clones.is_some());
        let here = state.instances.values_mut().filter(|entry| entry.node == node);
        for entry in here {
            let seen = clones.as_ref().and_then(|clones| clones.get(&entry.pid?).copied());
            entry.usage = seen.or(entry.usage);
        }
        let has_turned = before != Some(clones.is_some());
        if has_turned {
            self.turned.send_replace(());
        }
        has_turned
    }

    /// Whether a node answers.
    pub fn answers(&self, node: &str) -> bool {
        self.state().answers(node)
    }

    /// Waits until a node does not answer.
    pub async fn until_lost(&self, node: &str) {
        let mut turns = self.turned.subscribe();
        // The channel is never closed: this table holds the sender.
        while self.answers(node) && turns.changed().await.is_ok() {}
    }

    /// Records the bytes that the kernel has charged to a node, if it counts them.
    pub fn record_measured(&self, node: &str, used_bytes: Option<u64>) {
        if let Some(bytes) = used_bytes {
            self.state().measured.insert(node.to_owned(), bytes);
        }
    }

    /// Records how fast a node reads from the pool, in bytes per second, if measured.
    pub fn record_read_rate(&self, node: &str, bytes_per_s: Option<u64>) {
        let mut state = self.state();
        let Some(last) = bytes_per_s else {
            state.reading.remove(node);
            return;
        };
        let best = state.reading.get(node).map_or(last, |before| before.best.max(last));
        state.reading.insert(node.to_owned(), Reading { last, best });
    }

    /// The nodes that answer, as facts for an instance with this claim.
    pub fn nodes(&self, claim: Claim, empty_ghosts: impl Fn(&str) -> u64) -> Vec<NodeFacts> {
        let answering = self.survey(empty_ghosts).into_iter().filter(|node| node.answers);
        let state = self.state();
        let facts = |node: NodeState| NodeFacts {
            need_bytes: Some(state.need(&node.name, claim)),
            name: node.name,
            memory: node.memory,
            attached_ghosts: 0,
            empty_ghosts: node.ghosts,
            starting: node.starting,
            pool_busy_permille: node.pool_busy_permille,
        };
        answering.map(facts).collect()
    }

    /// All nodes, without their attached ghosts, which this table does not know.
    pub fn survey(&self, empty_ghosts: impl Fn(&str) -> u64) -> Vec<NodeState> {
        let state = self.state();
        let starting = |name: &str| {
            let entries = state.instances.values();
            entries.filter(|entry| entry.node == name && entry.pid.is_none()).count()
        };
        let seen = |(name, answers): (&String, &bool)| NodeState {
            name: name.clone(),
            answers: *answers,
            memory: state.memory(name),
            starting: starting(name) as u64,
            paused: state.here(name).filter(|(_, entry)| entry.is_paused()).count() as u64,
            ghosts: empty_ghosts(name),
            attached_ghosts: 0,
            pool_read_bytes_per_s: state.reading.get(name).map(|reading| reading.last),
            pool_busy_permille: state.reading.get(name).copied().map(Reading::busy_permille),
        };
        state.nodes.iter().map(seen).collect()
    }
}

/// Prevents pauses of an instance until it is dropped.
#[derive(Debug)]
pub struct PauseGuard {
    table: Arc<Table>,
    id: u64,
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.table.state().change(self.id, |entry| entry.goes_on = false);
    }
}

/// Memory set aside until this is dropped.
#[derive(Debug)]
pub struct SetAside {
    table: Arc<Table>,
    id: u64,
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.table.state().set_aside.remove(&self.id);
    }
}

/// A promotion in progress; its memory is reserved until this is dropped.
#[derive(Debug)]
pub struct Promoting {
    table: Arc<Table>,
    id: u64,
    /// Its node.
    pub node: String,
    /// Its pid.
    pub pid: i32,
}

impl Drop for Promoting {
    fn drop(&mut self) {
        self.table.state().change(self.id, |entry| entry.promoted_bytes = 0);
    }
}

/// Keeps a reservation until the memory that was taken for it has been measured, and drops it then.
pub fn until_counted(kept: impl Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(2 * MEASURE).await;
        drop(kept);
    });
}

impl Reservation {
    /// Sets the pid of the started instance.
    pub fn started(&self, pid: i32) {
        if let Some(entry) = self.table.state().instances.get_mut(&self.id) {
            entry.pid = Some(pid);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.table.state().instances.remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
