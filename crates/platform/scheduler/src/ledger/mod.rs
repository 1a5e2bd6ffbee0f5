//! All that takes memory of the nodes: instances, ghosts, and ghosts that are being made.
//!
//! ```text
//!  occupants   number ─► instance | ghost           the truth
//!  stocks      (node, kind) ─► ghosts that wait     how many are made, and which are taken
//!  waiting     kind ─► nodes where some wait        so that a placement finds them
//!  nodes       sums over the occupants              kept with every change, so nothing is scanned;
//!                                                   and which has least memory in use
//! ```
//! A busy or starting instance may take all that its limit allows. As much memory stays free as
//! lets all busy instances of a node do so, at once or one after the other
//! ([`farfork_policy::growth`]). An idle instance counts with what it holds. So a node never
//! promises more than it can give, and still holds many more instances than its memory divided by
//! their limits.
//!
//! Invariants:
//! - The sums of a node are those of a scan of its occupants.
//! - What is promised, started or made ends once: a reservation by [`Ledger::end`], memory set aside by
//!   [`Ledger::counted`], a ghost by being taken or returned to be stopped.

mod ghosts;
mod instances;
mod making;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};

use farfork_policy::Memory;
use farfork_policy::growth::{Demand, GrowthFacts};
use farfork_policy::node::NodeRef;
use farfork_policy::placement::NodeFacts;
use farfork_policy::settings::Growth;

use crate::claim::{Claim, Usage};
use crate::images::{ImageId, Images};
use crate::instance::Instance;
use crate::node::{Node, NodeLoad, Reading};
use crate::numbers::ByNumber;
use crate::stock::Stock;
pub use ghosts::GhostRef;
use ghosts::{Ghost, Kind, StockKey};
pub use instances::{PauseChange, Promotion};
pub use making::{GhostOrder, USUAL_MB};
use nodes::Nodes;

/// A node of a ledger. Their order is that of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// Its place among all nodes by name, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The same as a number.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// What takes memory of a node.
#[derive(Clone, Debug)]
enum Occupant {
    /// An instance, from its reservation on.
    Instance(Instance),
    /// A ghost, from the decision to make it on.
    Ghost(Ghost),
}

/// All nodes, and what is on them.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// By name.
    nodes: Nodes,
    node_memory_bytes: u64,
    growth: Growth,
    occupants: ByNumber<Occupant>,
    images: Images,
    stocks: BTreeMap<StockKey, Stock>,
    /// How many ghosts of a kind wait on which nodes, by their index.
    waiting: BTreeMap<Kind, BTreeMap<usize, u64>>,
    /// The stocks of empty ghosts with another limit than the usual one.
    unusual: BTreeSet<StockKey>,
    /// Bytes set aside for ghosts that are being made, by their number, and the node.
    set_aside: BTreeMap<u64, (NodeId, u64)>,
    /// When surplus ghosts were last looked for.
    trimmed_us: u64,
    next: u64,
}

/// A node, whether it answers or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it answers.
    pub answers: bool,
    /// Its memory, taken and promised.
    pub memory: Memory,
    /// Instances that are being started.
    pub starting: u64,
    /// Instances that are paused.
    pub paused: u64,
    /// Empty ghosts that wait.
    pub empty_ghosts: u64,
    /// Ghosts that wait with an image.
    pub attached_ghosts: u64,
    /// Bytes per second that one processor reads from the pool, if measured.
    pub pool_read_bytes_per_s: Option<u64>,
    /// Share of the pool's bandwidth in use, estimated from that, in thousandths.
    pub pool_busy_permille: Option<u64>,
}

impl Ledger {
    /// Nodes with nothing on them.
    pub fn new(
        names: impl IntoIterator<Item = String>,
        node_memory_bytes: u64,
        growth: Growth,
        now_us: u64,
    ) -> Ledger {
        let nodes = names.into_iter().map(Node::new).collect();
        Ledger {
            nodes: Nodes::new(nodes),
            node_memory_bytes,
            growth,
            occupants: ByNumber::default(),
            images: Images::default(),
            stocks: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unusual: BTreeSet::new(),
            set_aside: BTreeMap::new(),
            trimmed_us: now_us,
            next: 1,
        }
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        let found = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()?;
        u32::try_from(found).ok().map(NodeId)
    }

    /// The node of this number, which facts of this ledger have.
    pub fn numbered(&self, number: u32) -> Option<NodeId> {
        ((number as usize) < self.nodes.len()).then_some(NodeId(number))
    }

    /// Grows with every change of a node, and of what is on it.
    pub fn changes(&self) -> u64 {
        self.nodes.changes
    }

    /// The name of a node.
    pub fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.index()].name
    }

    /// The image of this name, until it is [forgotten](Ledger::forget_image).
    pub fn image(&mut self, name: &str) -> ImageId {
        self.images.add(name)
    }

    /// The image of this name, if anything is known of it.
    pub fn known_image(&self, name: &str) -> Option<ImageId> {
        self.images.find(name)
    }

    /// All nodes, by name.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    fn new_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// A node's memory, taken and promised.
    pub fn memory(&self, node: NodeId) -> Memory {
        let promised = self.least_free(node, None);
        let used_bytes = self.nodes[node.index()].taken_bytes() + promised;
        Memory { used_bytes, budget_bytes: self.node_memory_bytes }
    }

    /// Bytes that must be free for what a node's busy instances may still take, and `more`.
    fn least_free(&self, node: NodeId, more: Option<Demand>) -> u64 {
        match self.growth {
            Growth::AllAtOnce(_) => {
                let more = more.map_or(0, |demand| demand.headroom_bytes);
                self.nodes[node.index()].sums.headroom_bytes + more
            }
            Growth::OneByOne(policy) => policy.least_free(self.demands(node).chain(more)),
        }
    }

    /// The instances of a node.
    fn here(&self, node: NodeId) -> impl Iterator<Item = (u64, &Instance)> {
        let here = self.nodes[node.index()].instances.iter();
        here.filter_map(|id| Some((*id, self.instance(*id)?)))
    }

    /// The demands of a node's busy instances.
    fn demands(&self, node: NodeId) -> impl Iterator<Item = Demand> {
        self.here(node).filter(|(_, one)| one.is_busy).map(|(_, one)| one.demand())
    }

    /// Bytes that must be free on a node for one more instance.
    fn need_bytes(&self, node: NodeId, claim: Claim) -> u64 {
        let newcomer = Instance::starting(node.index(), claim);
        let before = self.least_free(node, None);
        let after = self.least_free(node, Some(newcomer.demand()));
        (newcomer.begun_bytes() + after).saturating_sub(before)
    }

    /// Makes a change, and takes it back if the node's memory would be exceeded. Returns whether it
    /// fits.
    fn if_it_fits(
        &mut self,
        node: NodeId,
        make: impl FnOnce(&mut Ledger),
        take_back: impl FnOnce(&mut Ledger),
    ) -> bool {
        make(self);
        let Memory { used_bytes, budget_bytes } = self.memory(node);
        let fits = used_bytes <= budget_bytes;
        if !fits {
            take_back(self);
        }
        fits
    }

    /// Whether busy instances on a node may take more than is free, or some are paused.
    pub fn is_crowded(&self, node: NodeId) -> bool {
        if !self.growth.overcommits() {
            return false;
        }
        let here = &self.nodes[node.index()];
        let most = here.taken_bytes() + here.sums.headroom_bytes;
        here.sums.paused > 0 || most > self.node_memory_bytes
    }

    /// The facts to decide which instances pause; `None` if all may reach their limits at once. Waiting
    /// ghosts count as idle.
    pub fn growth_facts(&self, node: NodeId) -> Option<GrowthFacts> {
        let here = &self.nodes[node.index()];
        let ghosts =
            self.stocks_on(node).map(|(_, stock)| stock.waiting.len() as u64 * stock.bytes);
        self.is_crowded(node).then(|| GrowthFacts {
            memory: Memory { used_bytes: here.taken_bytes(), budget_bytes: self.node_memory_bytes },
            idle_bytes: here.sums.idle_bytes + ghosts.sum::<u64>(),
            workers: self.here(node).filter_map(|(id, one)| one.worker(id)).collect(),
        })
    }

    /// Records the memory of a node's clones by pid, or that the node does not answer. Returns
    /// whether that has changed.
    pub fn record_usage(&mut self, node: NodeId, clones: Option<&BTreeMap<i32, Usage>>) -> bool {
        let here = &mut self.nodes[node.index()];
        let has_turned = std::mem::replace(&mut here.answers, clones.is_some()) != clones.is_some();
        let ids: Vec<u64> = here.instances.iter().copied().collect();
        for id in ids {
            self.change(id, |one| {
                let seen = one.pid.and_then(|pid| clones?.get(&pid).copied());
                one.usage = seen.or(one.usage);
            });
        }
        has_turned
    }

    /// How much a node has to do, if it answers.
    pub fn load(&self, node: NodeId) -> Option<NodeLoad> {
        let reading = self.nodes[node.index()].reading;
        self.answers(node).then(|| NodeLoad {
            memory: self.memory(node),
            pool_busy_permille: reading.map(Reading::busy_permille),
        })
    }

    /// Whether a node answers.
    pub fn answers(&self, node: NodeId) -> bool {
        self.nodes[node.index()].answers
    }

    /// Records the bytes that the kernel has charged to a node, if it counts them.
    pub fn record_measured(&mut self, node: NodeId, used_bytes: Option<u64>) {
        let measured = &mut self.nodes[node.index()].measured_bytes;
        *measured = used_bytes.or(*measured);
    }

    /// Records how fast a node reads from the pool, in bytes per second, if measured.
    pub fn record_read_rate(&mut self, node: NodeId, bytes_per_s: Option<u64>) {
        let reading = &mut self.nodes[node.index()].reading;
        *reading = bytes_per_s.map(|last| {
            let best = reading.map_or(last, |before| before.best.max(last));
            Reading { last, best }
        });
    }

    /// The nodes that answer, as facts for an instance with this claim, of this image or the base
    /// image.
    pub fn node_facts(&self, claim: Claim, image: Option<ImageId>) -> Vec<NodeFacts> {
        let named = |facts: NodeFacts| {
            let number = facts.node.number();
            let name = &self.nodes[number as usize].name;
            NodeFacts { node: NodeRef::named(number, name), ..facts }
        };
        self.numbered_facts(claim, image).into_iter().map(named).collect()
    }

    /// The same without names, where decisions are not written down.
    pub fn numbered_facts(&self, claim: Claim, image: Option<ImageId>) -> Vec<NodeFacts> {
        let answering = self.ids().filter(|node| self.answers(*node));
        answering.map(|node| self.facts(node, claim, image)).collect()
    }

    /// The same, but only the nodes of which [`NearestGhost`] chooses one, if any has room: the one with least memory in use
    /// of those where a ghost with the image waits, of those with an empty one, and of all. If it has no room, no other of
    /// its kind has. None if no node answers. `None` if all have to be compared: what an instance needs depends on the node.
    ///
    /// [`NearestGhost`]: farfork_policy::placement::NearestGhost
    pub fn likeliest(&self, claim: Claim, image: Option<ImageId>) -> Option<Vec<NodeFacts>> {
        if self.growth.overcommits() {
            return None;
        }
        let best_with = |kind| self.nodes.best_of(self.waiting.get(&kind)?);
        let attached = image.and_then(|image| best_with(Kind::Attached(image)));
        let empty = best_with(Kind::Empty(claim.memory_mb));
        let mut best: Vec<usize> =
            [attached, empty, self.nodes.best()].into_iter().flatten().collect();
        best.sort_unstable();
        best.dedup();
        let facts = |node: usize| {
            u32::try_from(node).ok().map(|node| self.facts(NodeId(node), claim, image))
        };
        best.into_iter().map(facts).collect()
    }

    fn facts(&self, node: NodeId, claim: Claim, image: Option<ImageId>) -> NodeFacts {
        let here = &self.nodes[node.index()];
        // Most nodes have no ghosts of most kinds, and need not be looked up.
        let attached = image.filter(|_| here.attached_ghosts > 0);
        let has_empty = here.empty_ghosts > 0;
        NodeFacts {
            node: NodeRef::numbered(node.number()),
            memory: self.memory(node),
            need_bytes: Some(self.need_bytes(node, claim)),
            attached_ghosts: attached.map_or(0, |image| self.waiting_with(node, image)),
            empty_ghosts: if has_empty { self.waiting_empty(node, claim.memory_mb) } else { 0 },
            starting: here.sums.starting,
            pool_busy_permille: here.reading.map(Reading::busy_permille),
        }
    }

    /// A node.
    pub fn status(&self, node: NodeId) -> NodeStatus<'_> {
        let here = &self.nodes[node.index()];
        NodeStatus {
            name: &here.name,
            answers: here.answers,
            memory: self.memory(node),
            starting: here.sums.starting,
            paused: here.sums.paused,
            empty_ghosts: here.empty_ghosts,
            attached_ghosts: here.attached_ghosts,
            pool_read_bytes_per_s: here.reading.map(|reading| reading.last),
            pool_busy_permille: here.reading.map(Reading::busy_permille),
        }
    }
}
