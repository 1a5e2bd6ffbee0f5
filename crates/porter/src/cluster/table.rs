//! Which instances there are, and what memory of their nodes they take.
//!
//! What is at work, or about to be, may come to take all that its limit lets it: that much is set
//! aside. What has nothing to do takes what it holds. So a node is never promised to more than can
//! grow in it, and still holds many more instances than its memory divided by their limits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_policy::Memory;
use farfork_policy::placement::NodeFacts;

use super::MEASURE;
use crate::life::nodes::{NodeState, Usage};

/// All instances and nodes.
#[derive(Debug)]
pub struct Table {
    state: Mutex<State>,
    next: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Whether they answer.
    nodes: BTreeMap<String, bool>,
    /// Bytes that the kernel had charged to nodes when it was last looked at.
    measured: BTreeMap<String, u64>,
    /// How fast nodes read from the pool.
    reading: BTreeMap<String, Reading>,
    node_memory_bytes: u64,
    instances: BTreeMap<u64, Entry>,
    /// Nodes and bytes of what else is about to take some.
    set_aside: BTreeMap<u64, (String, u64)>,
}

/// How fast a node reads from the pool, in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    last: u64,
    /// The fastest that was seen: nobody else will have used the pool then, or few.
    best: u64,
}

impl Reading {
    /// Share of the pool's bandwidth in use, in thousandths. If its requests wait in one queue, which a
    /// share `r` of the time is not empty, each takes `1 / (1 - r)` of what it takes alone (M/M/1).
    fn busy_permille(self) -> u64 {
        1000 - self.last * 1000 / self.best.max(1)
    }
}

#[derive(Debug)]
struct Entry {
    node: String,
    /// As seen here, once it has started.
    pid: Option<i32>,
    /// What it may take.
    most_bytes: u64,
    /// What it was last seen to take.
    usage: Option<Usage>,
    is_at_work: bool,
    /// What of it is becoming local, in bytes.
    promoted_bytes: u64,
}

impl Entry {
    /// What is promised to it beyond what it holds. What it is promoted by it could have taken itself.
    fn promised(&self) -> u64 {
        let growth = if self.is_at_work { self.headroom() } else { 0 };
        growth.max(self.promoted_bytes)
    }

    fn local_bytes(&self) -> Option<u64> {
        self.usage.map(|usage| usage.local_bytes)
    }

    /// What it may take beyond what it holds.
    fn headroom(&self) -> u64 {
        self.most_bytes.saturating_sub(self.local_bytes().unwrap_or(0))
    }
}

impl State {
    /// What a node's memory is taken by or promised to.
    fn memory(&self, node: &str) -> Memory {
        let here = || self.instances.values().filter(|entry| entry.node == node);
        // One that has not been looked at yet counts as if it held all that it may.
        let held = |entry: &Entry| match entry.is_at_work {
            true => entry.local_bytes().unwrap_or(0),
            false => entry.local_bytes().unwrap_or(entry.most_bytes),
        };
        let held = self.measured.get(node).copied().unwrap_or_else(|| here().map(held).sum());
        let growth: u64 = here().map(Entry::promised).sum();
        let others = self.set_aside.values().filter(|(of, _)| of == node);
        let others: u64 = others.map(|(_, bytes)| bytes).sum();
        Memory { used_bytes: held + growth + others, budget_bytes: self.node_memory_bytes }
    }

    fn has_room(&self, node: &str, bytes: u64) -> bool {
        self.memory(node).free_below(1000) >= bytes
    }
}

/// An instance's place in the table, given up when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    table: Arc<Table>,
    /// The instance's name.
    pub id: u64,
}

impl Table {
    /// One without instances.
    pub fn of(nodes: &[String], node_memory_bytes: u64) -> Table {
        let nodes = nodes.iter().map(|node| (node.clone(), true)).collect();
        let (measured, reading, instances, set_aside) = Default::default();
        let state = State { nodes, measured, reading, node_memory_bytes, instances, set_aside };
        Table { state: Mutex::new(state), next: AtomicU64::new(1) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the table valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets memory aside for an instance that is to be started, which counts as one at work; none if
    /// there is no room.
    pub fn reserve(self: &Arc<Table>, node: &str, most_bytes: u64) -> Option<Reservation> {
        let mut state = self.state();
        if !state.has_room(node, most_bytes) {
            return None;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let node = node.to_owned();
        let (pid, usage, is_at_work, promoted_bytes) = (None, None, true, 0);
        let entry = Entry { node, pid, most_bytes, usage, is_at_work, promoted_bytes };
        state.instances.insert(id, entry);
        Some(Reservation { table: Arc::clone(self), id })
    }

    /// An instance is to have something to do: sets aside what it may come to take. Whether there is
    /// room for that.
    pub fn begin_work(&self, id: u64) -> bool {
        let mut state = self.state();
        let Some(entry) = state.instances.get(&id) else { return false };
        let more = entry.headroom().saturating_sub(entry.promised());
        if !entry.is_at_work && !state.has_room(&entry.node, more) {
            return false;
        }
        state.instances.entry(id).and_modify(|entry| entry.is_at_work = true);
        true
    }

    /// An instance has nothing to do.
    pub fn end_work(&self, id: u64) {
        self.state().instances.entry(id).and_modify(|entry| entry.is_at_work = false);
    }

    /// Sets memory aside for what is no instance, until this is dropped; none if there is no room.
    pub fn set_aside(self: &Arc<Table>, node: &str, bytes: u64) -> Option<SetAside> {
        let mut state = self.state();
        if !state.has_room(node, bytes) {
            return None;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        state.set_aside.insert(id, (node.to_owned(), bytes));
        Some(SetAside { table: Arc::clone(self), id })
    }

    /// Whether memory of a node is set aside for what is no instance.
    pub fn has_set_aside(&self, node: &str) -> bool {
        self.state().set_aside.values().any(|(of, bytes)| of == node && *bytes > 0)
    }

    /// Memory of an instance is to become local, as much as it was last seen to map of the pool. None if
    /// there is no room, it was not looked at yet, or has ended.
    pub fn promote(self: &Arc<Table>, id: u64) -> Option<Promoting> {
        let mut state = self.state();
        let entry = state.instances.get(&id)?;
        let (node, pid, bytes) = (entry.node.clone(), entry.pid?, entry.usage?.pool_bytes);
        if !state.has_room(&node, bytes.saturating_sub(entry.promised())) {
            return None;
        }
        state.instances.entry(id).and_modify(|entry| entry.promoted_bytes = bytes);
        Some(Promoting { table: Arc::clone(self), id, node, pid })
    }

    /// The pid of an instance, as seen here.
    pub fn pid(&self, id: u64) -> Option<i32> {
        self.state().instances.get(&id)?.pid
    }

    /// What an instance was last seen to take.
    pub fn usage(&self, id: u64) -> Option<Usage> {
        self.state().instances.get(&id)?.usage
    }

    /// Takes in what the clones of a node take, by pid; nothing if it does not answer. Whether that
    /// is another answer than before.
    pub fn seen(&self, node: &str, clones: Option<BTreeMap<i32, Usage>>) -> bool {
        let mut state = self.state();
        let before = state.nodes.insert(node.to_owned(), clones.is_some());
        let of_node = state.instances.values_mut().filter(|entry| entry.node == node);
        for entry in of_node {
            let seen = clones.as_ref().and_then(|clones| clones.get(&entry.pid?).copied());
            entry.usage = seen.or(entry.usage);
        }
        before != Some(clones.is_some())
    }

    /// Takes in what the kernel has charged to a node, if it counts that.
    pub fn measured(&self, node: &str, used_bytes: Option<u64>) {
        if let Some(bytes) = used_bytes {
            self.state().measured.insert(node.to_owned(), bytes);
        }
    }

    /// Takes in how fast a node reads from the pool, in bytes per second, if it could be measured.
    pub fn reads(&self, node: &str, bytes_per_s: Option<u64>) {
        let mut state = self.state();
        let Some(last) = bytes_per_s else {
            state.reading.remove(node);
            return;
        };
        let best = state.reading.get(node).map_or(last, |before| before.best.max(last));
        state.reading.insert(node.to_owned(), Reading { last, best });
    }

    /// The nodes that answer.
    pub fn nodes(&self, empty_ghosts: impl Fn(&str) -> u64) -> Vec<NodeFacts> {
        let answering = self.survey(empty_ghosts).into_iter().filter(|node| node.answers);
        let facts = |node: NodeState| NodeFacts {
            name: node.name,
            memory: node.memory,
            attached_ghosts: 0,
            empty_ghosts: node.ghosts,
            starting: node.starting,
            pool_busy_permille: node.pool_busy_permille,
        };
        answering.map(facts).collect()
    }

    /// All nodes; of ghosts with images it knows nothing.
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
            ghosts: empty_ghosts(name),
            attached_ghosts: 0,
            pool_read_bytes_per_s: state.reading.get(name).map(|reading| reading.last),
            pool_busy_permille: state.reading.get(name).copied().map(Reading::busy_permille),
        };
        state.nodes.iter().map(seen).collect()
    }
}

/// Memory that is set aside.
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

/// An instance whose memory becomes local, until this is dropped.
#[derive(Debug)]
pub struct Promoting {
    table: Arc<Table>,
    id: u64,
    /// Its node.
    pub node: String,
    /// Its pid, as seen here.
    pub pid: i32,
}

impl Drop for Promoting {
    fn drop(&mut self) {
        self.table.state().instances.entry(self.id).and_modify(|entry| entry.promoted_bytes = 0);
    }
}

/// Something has taken what this keeps by now: drops it as soon as that is measured.
pub fn until_counted(kept: impl Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(2 * MEASURE).await;
        drop(kept);
    });
}

impl Reservation {
    /// The instance has started.
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
mod tests {
    use super::*;

    fn used(table: &Table) -> Vec<u64> {
        table.nodes(|_| 0).iter().map(|node| node.memory.used_bytes).collect()
    }

    #[test]
    fn what_is_set_aside_counts_until_it_is_not() {
        let table = Arc::new(Table::of(&["a".to_owned(), "b".to_owned()], 1000));
        let idle = table.reserve("a", 300).unwrap();
        idle.started(7);
        table.end_work(idle.id);
        assert!(table.promote(idle.id).is_none(), "nobody knows what it may come to take");
        let seen = Usage { local_bytes: 20, pool_bytes: 150 };
        table.seen("a", Some(BTreeMap::from([(7, seen)])));
        assert_eq!(used(&table), [20, 0]);
        let promoting = table.promote(idle.id).unwrap();
        assert_eq!((&*promoting.node, promoting.pid, used(&table)), ("a", 7, vec![170, 0]));
        let ghost = table.set_aside("a", 700).unwrap();
        assert!(table.set_aside("a", 200).is_none() && table.set_aside("b", 200).is_some());
        assert_eq!(["a", "b"].map(|node| table.has_set_aside(node)), [true, false]);
        assert!(table.begin_work(idle.id), "of its 280 more, 150 are promised to it already");
        assert_eq!(used(&table), [1000, 0]);
        drop(promoting);
        let promoting = table.promote(idle.id).expect("it may take as much itself");
        assert_eq!(used(&table), [1000, 0]);
        table.end_work(idle.id);
        assert_eq!(used(&table), [870, 0]);
        drop(promoting);
        assert_eq!(used(&table), [720, 0]);
        let _other = table.reserve("a", 200).unwrap();
        assert!(table.promote(idle.id).is_none(), "there is no room");
        drop(ghost);
        assert_eq!(used(&table), [220, 0]);
    }

    #[test]
    fn what_is_at_work_counts_at_its_limit_and_what_is_not_at_what_it_holds() {
        let table = Arc::new(Table::of(&["a".to_owned(), "b".to_owned()], 1000));
        let first = table.reserve("a", 300).unwrap();
        let second = table.reserve("a", 300).unwrap();
        assert_eq!(used(&table), [600, 0]);
        first.started(7);
        assert_eq!(table.pid(first.id), Some(7));
        assert_eq!(table.nodes(|_| 2)[0].starting, 1);
        assert!(!table.seen("a", Some(BTreeMap::from([(7, usage(20)), (8, usage(1))]))));
        assert_eq!((used(&table), table.usage(first.id)), (vec![600, 0], Some(usage(20))));
        table.end_work(first.id);
        assert_eq!(used(&table), [320, 0]);
        assert!(table.begin_work(first.id) && table.begin_work(first.id));
        assert_eq!(used(&table), [600, 0]);
        drop(second);
        assert!(table.seen("a", None));
        assert_eq!(used(&table), [0], "only b answers");
        let answers = table.survey(|_| 0).into_iter().map(|node| node.answers);
        assert_eq!(answers.collect::<Vec<_>>(), [false, true]);
        drop(first);
    }

    fn usage(local_bytes: u64) -> Usage {
        Usage { local_bytes, pool_bytes: 5 }
    }

    #[test]
    fn what_the_kernel_has_charged_counts_before_what_is_known_of_instances() {
        let table = Arc::new(Table::of(&["a".to_owned()], 1000));
        let only = table.reserve("a", 300).unwrap();
        table.measured("a", Some(50));
        table.measured("a", None);
        assert_eq!(used(&table), [350]);
        only.started(7);
        table.seen("a", Some(BTreeMap::from([(7, usage(40))])));
        table.measured("a", Some(90));
        assert_eq!(used(&table), [350], "of its 300 it has 40, which are among the 90");
        table.end_work(only.id);
        assert_eq!(used(&table), [90]);
    }

    #[test]
    fn the_pool_is_busy_as_far_as_it_is_slower_than_it_was() {
        let table = Table::of(&["a".to_owned(), "b".to_owned()], 1000);
        let busy = || table.nodes(|_| 0).iter().map(|node| node.pool_busy_permille).collect();
        let expect = |expected: [Option<u64>; 2]| {
            let seen: Vec<_> = busy();
            assert_eq!(seen, expected);
        };
        expect([None, None]);
        table.reads("a", Some(8_000));
        expect([Some(0), None]);
        table.reads("a", Some(2_000));
        expect([Some(750), None]);
        assert_eq!(table.survey(|_| 0)[0].pool_read_bytes_per_s, Some(2_000));
        table.reads("a", Some(20_000));
        table.reads("b", Some(0));
        expect([Some(0), Some(1000)]);
        table.reads("a", Some(15_000));
        table.reads("b", None);
        expect([Some(250), None]);
    }

    #[test]
    fn nobody_is_promised_what_is_not_there() {
        let table = Arc::new(Table::of(&["a".to_owned()], 1000));
        let [first, second] = [600, 400].map(|bytes| table.reserve("a", bytes).unwrap());
        assert!(table.reserve("a", 1).is_none());
        first.started(7);
        table.seen("a", Some(BTreeMap::from([(7, usage(100))])));
        table.end_work(first.id);
        let third = table.reserve("a", 300).unwrap();
        assert!(!table.begin_work(first.id), "it may want 500 more, and 200 are left");
        drop(second);
        assert!(table.begin_work(first.id));
        drop((first, third));
        assert!(!table.begin_work(1), "it is gone");
    }
}
