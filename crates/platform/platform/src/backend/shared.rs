//! The ledger of all nodes under one lock, with what the lock itself cannot give: the time, names of
//! nodes, and waits.
//!
//! Invariants: the lock is held for no I/O, and decisions are written down after it is released. What
//! is taken is given back when its guard is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use farfork_policy::growth::GrowthFacts;
use farfork_policy::occupant::OccupantId;
use farfork_policy::placement::NodeFacts;
use farfork_policy::settings::Growth;
use farfork_scheduler::{
    Claim, GhostRef, Ledger, NodeId, NodeLoad, NodeStatus, PauseChange, Promotion, Usage,
};
use farfork_sys::sync::{locked, unpoisoned};
use farfork_types::LocalShare;
use tokio::sync::watch;

use super::MEASURE;
use crate::clock::Clock;
use crate::scheduler::nodes::{NodeGhosts, NodeState};

/// A ghost: node and the agent's name of it.
pub type Ghost = (String, String);

/// The ledger of all nodes.
#[derive(Debug)]
pub struct SharedLedger {
    table: Mutex<Table>,
    clock: Clock,
    /// Notified when busy instances may take more than is free, so that a node is measured more
    /// often.
    crowded: Condvar,
    /// Notified when a node stops answering, or answers again.
    turned: watch::Sender<()>,
}

/// The ledger, which knows nodes and ghosts by number, and the names of what their agents have.
#[derive(Debug)]
pub struct Table {
    /// The ledger.
    pub ledger: Ledger,
    /// The agents' names of the ghosts that wait, by number.
    ghosts: BTreeMap<u64, String>,
}

/// The ledger while it is locked, and the time.
pub struct Locked<'l> {
    table: MutexGuard<'l, Table>,
    /// Microseconds since it was made.
    pub now_us: u64,
}

impl Deref for Locked<'_> {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Table {
        &mut self.table
    }
}

impl SharedLedger {
    /// A ledger of nodes with nothing on them.
    pub fn new(nodes: &[String], node_memory_bytes: u64, growth: Growth) -> SharedLedger {
        let ledger = Ledger::new(nodes.iter().cloned(), node_memory_bytes, growth, 0);
        let (crowded, turned) = (Condvar::new(), watch::Sender::new(()));
        let table = Mutex::new(Table { ledger, ghosts: BTreeMap::new() });
        SharedLedger { table, clock: Clock::default(), crowded, turned }
    }

    /// Locks it.
    pub fn lock(&self) -> Locked<'_> {
        // Every step leaves the ledger valid.
        let table = locked(&self.table);
        // Read under the lock, so that times do not decrease.
        let now_us = self.clock.now_us();
        Locked { table, now_us }
    }

    /// Locks it, for something about a node; `None` if there is no such node.
    pub fn lock_for(&self, node: &str) -> Option<(Locked<'_>, NodeId)> {
        let locked = self.lock();
        let node = locked.ledger.node(node)?;
        Some((locked, node))
    }

    /// Reserves memory for an instance to be started, which counts as busy; `None` without room.
    pub fn reserve(self: &Arc<Self>, node: &str, claim: Claim) -> Option<Reservation> {
        let (mut locked, node) = self.lock_for(node)?;
        let id = locked.ledger.reserve(node, claim);
        self.look_closer_if_crowded(&locked, node);
        drop(locked);
        id.map(|id| Reservation { shared: Arc::clone(self), id })
    }

    /// Marks an instance busy. Returns false if there is no room for what it may take, or if it is
    /// frozen and no agent answers to thaw it.
    pub fn begin_work(&self, id: u64) -> bool {
        let mut locked = self.lock();
        let fits = locked.ledger.begin_work(id);
        if let Some(node) = locked.ledger.node_of(id) {
            self.look_closer_if_crowded(&locked, node);
        }
        fits
    }

    /// Marks an instance idle.
    pub fn end_work(&self, id: u64) {
        self.lock().ledger.end_work(id);
    }

    fn look_closer_if_crowded(&self, locked: &Locked<'_>, node: NodeId) {
        if locked.ledger.is_crowded(node) {
            self.crowded.notify_all();
        }
    }

    /// Waits until any node becomes crowded, at most `longest`; not at all if this node is. Returns
    /// whether this node is crowded.
    pub fn wait_until_crowded(&self, node: &str, longest: Duration) -> bool {
        let Some((locked, node)) = self.lock_for(node) else { return false };
        if locked.ledger.is_crowded(node) {
            return true;
        }
        let waited = self.crowded.wait_timeout(locked.table, longest);
        unpoisoned(waited).0.ledger.is_crowded(node)
    }

    /// The facts to decide which instances pause; `None` if all may reach their limits at once.
    pub fn growth(&self, node: &str) -> Option<GrowthFacts> {
        let (locked, node) = self.lock_for(node)?;
        locked.ledger.growth_facts(node)
    }

    /// Sets which instances of a node are paused. Returns the changes to send to the agent.
    pub fn pause(&self, node: &str, ids: &[OccupantId]) -> Vec<PauseChange> {
        let Some((mut locked, node)) = self.lock_for(node) else { return Vec::new() };
        let now_us = locked.now_us;
        locked.ledger.pause(node, ids, now_us)
    }

    /// Undoes a change that could not be sent to the agent.
    pub fn undo_pause(&self, id: u64, paused: bool) {
        let mut locked = self.lock();
        let now_us = locked.now_us;
        locked.ledger.undo_pause(id, paused, now_us);
    }

    /// Marks an idle instance frozen; returns its node and pid. `None` if it is busy, paused or has
    /// ended.
    pub fn freeze(&self, id: u64) -> Option<(String, i32)> {
        let mut locked = self.lock();
        let (node, pid) = locked.ledger.freeze(id)?;
        Some((locked.ledger.name(node).to_owned(), pid))
    }

    /// Node and pid of an instance, if it has not ended.
    pub fn location(&self, id: u64) -> Option<(String, i32)> {
        let locked = self.lock();
        let (node, pid) = locked.ledger.location(id)?;
        Some((locked.ledger.name(node).to_owned(), pid))
    }

    /// Marks an instance as thawed.
    pub fn thawed(&self, id: u64) {
        self.lock().ledger.thawed(id);
    }

    /// Prevents pauses of an instance until the guard is dropped.
    pub fn prevent_pause(self: &Arc<Self>, id: u64) -> PauseGuard {
        self.lock().ledger.prevent_pause(id, true);
        PauseGuard { shared: Arc::clone(self), id }
    }

    /// How long an instance was paused in all.
    pub fn paused(&self, id: u64) -> Duration {
        let locked = self.lock();
        Duration::from_micros(locked.ledger.paused_us(id, locked.now_us))
    }

    /// Sets memory aside for a ghost until the guard is dropped; `None` without room.
    pub fn set_aside(self: &Arc<Self>, ghost: u64, bytes: u64) -> Option<SetAside> {
        let fits = self.lock().ledger.set_aside(ghost, bytes);
        fits.then(|| SetAside { shared: Arc::clone(self), ghost })
    }

    /// Reserves memory to promote an instance. `None` if there is no room, or the instance was not
    /// measured yet or has ended.
    pub fn promote(self: &Arc<Self>, id: u64) -> Option<Promoting> {
        self.promoting(id, |ledger| ledger.promote(id), Ledger::promoted)
    }

    /// The same to have another share of an instance's memory near, whether it was measured or not.
    pub fn promote_to(
        self: &Arc<Self>,
        id: u64,
        from: Option<LocalShare>,
        to: LocalShare,
    ) -> Option<Promoting> {
        self.promoting(id, |ledger| ledger.promote_to(id, from, to), Ledger::share_changed)
    }

    fn promoting(
        self: &Arc<Self>,
        id: u64,
        promote: impl FnOnce(&mut Ledger) -> Option<Promotion>,
        counted: fn(&mut Ledger, u64),
    ) -> Option<Promoting> {
        let mut locked = self.lock();
        let promotion = promote(&mut locked.ledger)?;
        let node = locked.ledger.name(promotion.node).to_owned();
        drop(locked);
        Some(Promoting { shared: Arc::clone(self), id, node, pid: promotion.pid, counted })
    }

    /// The last measured memory of an instance.
    pub fn usage(&self, id: u64) -> Option<Usage> {
        self.lock().ledger.usage(id)
    }

    /// Records the memory of a node's clones by pid, or that the node does not answer. Returns
    /// whether that has changed.
    pub fn record_usage(&self, node: &str, clones: Option<&BTreeMap<i32, Usage>>) -> bool {
        let Some((mut locked, node)) = self.lock_for(node) else { return false };
        let has_turned = locked.ledger.record_usage(node, clones);
        drop(locked);
        if has_turned {
            self.turned.send_replace(());
        }
        has_turned
    }

    /// Whether a node answers.
    pub fn answers(&self, node: &str) -> bool {
        self.lock_for(node).is_some_and(|(locked, node)| locked.ledger.answers(node))
    }

    /// Waits until a node does not answer.
    pub async fn until_lost(&self, node: &str) {
        let mut turns = self.turned.subscribe();
        // The channel is never closed: this holds the sender.
        while self.answers(node) && turns.changed().await.is_ok() {}
    }

    /// Records the bytes that the kernel has charged to a node, if it counts them.
    pub fn record_measured(&self, node: &str, used_bytes: Option<u64>) {
        if let Some((mut locked, node)) = self.lock_for(node) {
            locked.ledger.record_measured(node, used_bytes);
        }
    }

    /// Records how fast a node reads from the pool, in bytes per second, if measured.
    pub fn record_read_rate(&self, node: &str, bytes_per_s: Option<u64>) {
        if let Some((mut locked, node)) = self.lock_for(node) {
            locked.ledger.record_read_rate(node, bytes_per_s);
        }
    }

    /// The nodes that answer, as facts for an instance with this claim, of this image or the base
    /// image.
    pub fn nodes(&self, claim: Claim, image: Option<&str>) -> Vec<NodeFacts> {
        let locked = self.lock();
        let image = image.and_then(|name| locked.ledger.known_image(name));
        locked.ledger.node_facts(claim, image)
    }

    /// How much a node has to do, if it answers.
    pub fn load(&self, node: &str) -> Option<NodeLoad> {
        let locked = self.lock();
        locked.ledger.node(node).and_then(|node| locked.ledger.load(node))
    }

    /// All nodes.
    pub fn survey(&self) -> Vec<NodeState> {
        let locked = self.lock();
        let ledger = &locked.ledger;
        ledger.ids().map(|node| state(&ledger.status(node))).collect()
    }

    /// The ghosts that wait on a node.
    pub fn idle_ghosts(&self, node: &str) -> NodeGhosts {
        let Some((locked, node)) = self.lock_for(node) else { return NodeGhosts::default() };
        let now_us = locked.now_us;
        let idle = locked.ledger.idle_ghosts(node, now_us);
        NodeGhosts { idle, is_settling: locked.ledger.has_set_aside(node) }
    }

    /// The agent's names of the ghosts that wait on a node.
    pub fn ghost_names(&self, node: &str) -> BTreeSet<String> {
        let Some((locked, node)) = self.lock_for(node) else { return BTreeSet::new() };
        locked.ledger.ghosts_on(node).filter_map(|id| locked.ghosts.get(&id).cloned()).collect()
    }

    /// Forgets an image that is removed; returns its ghosts, to be stopped.
    pub fn forget_image(&self, image: &str) -> Vec<Ghost> {
        let mut locked = self.lock();
        let Some(image) = locked.ledger.known_image(image) else { return Vec::new() };
        let useless = locked.ledger.forget_image(image);
        locked.left(useless)
    }

    /// Records that a ghost was made, with the agent's name of it and its bytes, or not. Returns the
    /// ghost if it is to be stopped because it is not wanted any more.
    pub fn made(&self, node: &str, id: u64, made: Option<(String, u64)>) -> Vec<Ghost> {
        let Some((mut locked, node)) = self.lock_for(node) else { return Vec::new() };
        let (name, bytes) = made.unzip();
        locked.ghosts.extend(name.map(|name| (id, name)));
        let useless = locked.ledger.made(id, bytes).then_some(GhostRef { node, id });
        locked.left(useless)
    }

    /// Removes those of these ghosts that wait on a node, and makes none there for a moment. Returns
    /// them and their bytes.
    pub fn withdraw(&self, node: &str, ids: &[OccupantId]) -> (Vec<Ghost>, u64) {
        let Some((mut locked, node)) = self.lock_for(node) else { return (Vec::new(), 0) };
        let now_us = locked.now_us;
        let (withdrawn, bytes) = locked.ledger.withdraw(node, ids, now_us);
        (locked.left(withdrawn), bytes)
    }
}

impl Table {
    /// The agent's name of a ghost that was taken.
    pub fn taken(&mut self, id: u64) -> Option<String> {
        self.ghosts.remove(&id)
    }

    /// Ghosts that do not wait any more, by names.
    pub fn left(&mut self, ghosts: impl IntoIterator<Item = GhostRef>) -> Vec<Ghost> {
        let named = |ghost: GhostRef| {
            let name = self.ghosts.remove(&ghost.id)?;
            Some((self.ledger.name(ghost.node).to_owned(), name))
        };
        ghosts.into_iter().filter_map(named).collect()
    }
}

fn state(node: &NodeStatus<'_>) -> NodeState {
    NodeState {
        name: node.name.to_owned(),
        answers: node.answers,
        memory: node.memory,
        starting: node.starting,
        paused: node.paused,
        ghosts: node.empty_ghosts,
        attached_ghosts: node.attached_ghosts,
        pool_read_bytes_per_s: node.pool_read_bytes_per_s,
        pool_busy_permille: node.pool_busy_permille,
    }
}

/// An instance's entry in the ledger, removed when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<SharedLedger>,
    /// The instance's name.
    pub id: u64,
}

impl Reservation {
    /// Sets the pid of the started instance.
    pub fn started(&self, pid: i32) {
        self.shared.lock().ledger.started(self.id, pid);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.lock().ledger.end(self.id);
    }
}

/// Prevents pauses of an instance until it is dropped.
#[derive(Debug)]
pub struct PauseGuard {
    shared: Arc<SharedLedger>,
    id: u64,
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.shared.lock().ledger.prevent_pause(self.id, false);
    }
}

/// Memory set aside for a ghost until this is dropped.
#[derive(Debug)]
pub struct SetAside {
    shared: Arc<SharedLedger>,
    ghost: u64,
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.shared.lock().ledger.counted(self.ghost);
    }
}

/// A promotion or a change of a share in progress; its memory is reserved until this is dropped.
#[derive(Debug)]
pub struct Promoting {
    shared: Arc<SharedLedger>,
    id: u64,
    /// Its node.
    pub node: String,
    /// Its pid.
    pub pid: i32,
    /// Gives the memory back. The two kinds may overlap, and neither gives back what the other has reserved.
    counted: fn(&mut Ledger, u64),
}

impl Drop for Promoting {
    fn drop(&mut self) {
        (self.counted)(&mut self.shared.lock().ledger, self.id);
    }
}

/// Keeps a reservation until the memory that was taken for it has been measured, and drops it then.
pub fn until_counted(kept: impl Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(2 * MEASURE).await;
        drop(kept);
    });
}

#[cfg(test)]
mod tests {
    use farfork_policy::Settings;
    use farfork_policy::growth::OneByOne;
    use farfork_scheduler::USUAL_MB;

    use super::*;
    use crate::scheduler::Advisor;

    fn shared() -> Arc<SharedLedger> {
        let growth = Growth::OneByOne(OneByOne { slack_bytes: 10 << 20 });
        Arc::new(SharedLedger::new(&["b".to_owned(), "a".to_owned()], 1000 << 20, growth))
    }

    fn busy(shared: &Arc<SharedLedger>, pid: i32) -> Reservation {
        let claim = Claim { memory_mb: 600, expected_bytes: None };
        let one = shared.reserve("a", claim).expect("there is room");
        one.started(pid);
        let usage = Usage { local_bytes: 10 << 20, pool_bytes: 5 << 20 };
        shared.record_usage("a", Some(&BTreeMap::from([(pid, usage)])));
        one
    }

    fn used_mb(shared: &SharedLedger) -> Vec<u64> {
        let nodes = shared.nodes(Claim::default(), None);
        nodes.iter().map(|node| node.memory.used_bytes >> 20).collect()
    }

    #[test]
    fn what_guards_hold_is_given_back_once() {
        let shared = shared();
        let one = busy(&shared, 7);
        assert_eq!(
            (shared.location(one.id), used_mb(&shared)),
            (Some(("a".to_owned(), 7)), vec![600, 0])
        );
        let promoting = shared.promote(one.id).unwrap();
        assert_eq!((&*promoting.node, promoting.pid), ("a", 7));
        let id = one.id;
        drop(one);
        assert_eq!((used_mb(&shared), shared.location(id)), (vec![0, 0], None));
        drop(promoting);
        assert_eq!(used_mb(&shared), [0, 0]);
        assert!(shared.reserve("unknown", Claim::default()).is_none());
    }

    /// Makes as many empty ghosts on node "a" as should wait, with these names.
    fn make(shared: &SharedLedger, names: &[&str]) {
        let advisor = Advisor::new(Settings::default(), None).unwrap();
        let (mut locked, a) = shared.lock_for("a").unwrap();
        let orders = locked.ledger.order_empty(a, USUAL_MB, 0, &advisor);
        drop(locked);
        assert_eq!(orders.len(), names.len());
        for (order, name) in orders.iter().zip(names) {
            assert_eq!(shared.made("a", order.id, Some(((*name).to_owned(), 1))), []);
        }
    }

    #[test]
    fn the_names_of_ghosts_are_known_while_they_wait() {
        let shared = shared();
        let take = || {
            let (mut locked, a) = shared.lock_for("a").unwrap();
            let taken = locked.ledger.take_empty(a, USUAL_MB, 0)?;
            locked.taken(taken)
        };
        make(&shared, &["x"]);
        assert_eq!(shared.ghost_names("a"), BTreeSet::from(["x".to_owned()]));
        assert_eq!((take().as_deref(), take()), (Some("x"), None));
        make(&shared, &["y", "z", "w"]);
        let evicted = shared.idle_ghosts("a").idle[0].id.clone();
        assert_eq!(shared.withdraw("a", &[evicted]), (vec![("a".to_owned(), "y".to_owned())], 1));
        let (mut locked, a) = shared.lock_for("a").unwrap();
        let gone = locked.ledger.forget_ghosts(a);
        assert_eq!(locked.left(gone), ["z", "w"].map(|name| ("a".to_owned(), name.to_owned())));
        assert!(locked.ghosts.is_empty(), "{:?}", locked.ghosts);
        drop(locked);
        let late = shared.made("a", 99, Some(("late".to_owned(), 1)));
        assert_eq!(late, [("a".to_owned(), "late".to_owned())], "nothing has ordered it");
        assert!(shared.lock().ghosts.is_empty());
    }

    #[test]
    fn a_promotion_that_ends_leaves_the_memory_of_a_changed_share() {
        let shared = shared();
        let one = busy(&shared, 7);
        shared.end_work(one.id);
        let [half, most] = [500, 800].map(|share| LocalShare::from_permille(share).unwrap());
        let changing = shared.promote_to(one.id, Some(half), most).unwrap();
        let promoting = shared.promote(one.id).unwrap();
        assert_eq!(used_mb(&shared), [10 + 180 + 5, 0]);
        drop(promoting);
        assert_eq!(used_mb(&shared), [10 + 180, 0], "the share is still being changed");
        drop(changing);
        assert_eq!(used_mb(&shared), [10, 0]);
    }

    #[test]
    fn a_crowded_node_is_seen_at_once() {
        let shared = shared();
        assert!(!shared.wait_until_crowded("a", Duration::ZERO));
        let (one, other) = (busy(&shared, 7), busy(&shared, 8));
        assert!(shared.wait_until_crowded("a", Duration::MAX), "590 and 590 do not fit");
        let ids = [OccupantId::instance(other.id)];
        assert_eq!(shared.pause("b", &ids), [], "it is not there");
        assert_eq!(shared.pause("a", &ids).len(), 1);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(shared.pause("a", &[]).len(), 1);
        assert!(shared.paused(other.id) >= Duration::from_millis(2));
        assert_eq!(shared.paused(one.id), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_node_ends_waits_for_it() {
        let shared = shared();
        let waits = tokio::time::timeout(Duration::from_secs(1), shared.until_lost("a"));
        assert!(waits.await.is_err(), "it answers");
        let (lost, losing) = (shared.until_lost("a"), async { shared.record_usage("a", None) });
        assert!(tokio::join!(lost, losing).1, "it has answered before");
        assert_eq!(used_mb(&shared).len(), 1);
    }
}
