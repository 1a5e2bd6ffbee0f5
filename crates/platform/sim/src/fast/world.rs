//! The nodes, the pool and what lives on them, as the scheduler's own tables have it.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, HashSet};

use farfork_platform::simulated::Totals;
use farfork_platform::simulated::agents::Agents;
use farfork_policy::Memory;
use farfork_policy::admission::Asker;
use farfork_policy::node::NodeRef;
use farfork_policy::placement::NodeFacts;
use farfork_policy::reclaim::ImageFacts;
use farfork_policy::share::ALL;
use farfork_scheduler::{
    ByNumber, Claim, Fleet, History, ImageId, ImageStats, ImageUsage, NewInstance, NodeId,
    Occupancy, StartOrder, Surroundings, Usage,
};
use farfork_types::{LocalShare, Tiering};

use super::StartKind;
use super::agenda::Event;
use crate::shares::Held;

/// An instance, from the order to start it on.
#[derive(Debug)]
pub struct Instance {
    /// Its function.
    pub function: u32,
    /// Its node.
    pub node: NodeId,
    /// How its next call gets it.
    pub kind: StartKind,
    /// Whether it is a clone of its function's image.
    pub is_clone: bool,
    /// Its tiering policy, if it is a clone and was not promoted.
    pub tiering: Option<Tiering>,
    /// Its calls.
    pub history: History,
    /// Most bytes that it may take.
    pub most_bytes: u64,
    /// How long its start took, apart from making a container.
    pub restore_us: u64,
    /// How long its start took.
    pub took_us: u64,
    /// How long loading its code takes, until it was loaded.
    pub load_us: Option<u64>,
    /// How long loading it took, until its first call has ended.
    pub loaded_us: Option<u64>,
    /// Since when it starts, if starts share processors.
    pub start_since_us: Option<u64>,
    /// Since when its call runs.
    pub run_since_us: Option<u64>,
    /// Its share of near memory, if shares are decided.
    pub share: Option<LocalShare>,
    /// Bytes of the arguments that it started for.
    pub payload_bytes: u64,
    /// What it holds, once known.
    pub held: Held,
    /// The call that it serves.
    pub call: Option<usize>,
    /// What it does, for its start or the call.
    pub work: Option<Work>,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Whether its pages were promoted.
    pub is_local: bool,
}

/// What an instance does: it starts on processors that it shares, loads its code, or runs.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What happens at its end.
    pub event: Event,
    /// When it began.
    pub began_us: u64,
    /// When it ends, if it is not paused before.
    pub due_us: u64,
    /// What is left of it while it is paused.
    pub left_us: Option<u64>,
    /// How long the rest takes after what it needs a processor for.
    pub rest_us: u64,
}

/// All nodes.
#[derive(Debug)]
pub struct World {
    /// What takes memory, and ghosts.
    pub agents: Agents,
    /// What could end for others.
    pub fleet: Fleet,
    /// What images save.
    pub usage: ImageUsage<u32>,
    /// The instances.
    pub instances: ByNumber<Instance>,
    /// Bytes of each function's image, if there is one.
    images: BTreeMap<u32, u64>,
    pool_bytes: u64,
    /// Size of far memory, if it is limited.
    far_bytes: Option<u64>,
    /// What all nodes hold, without ghosts.
    pub totals: Totals,
    /// Which functions have to wait for room, as was answered in one state of the nodes at one moment.
    waiting: RefCell<Waiting>,
}

/// A state: the moment, and changes of the ledger and the fleet until then.
type State = (u64, u64, u64);

#[derive(Debug, Default)]
struct Waiting {
    state: State,
    askers: HashSet<Asker>,
}

impl World {
    /// Nodes with nothing on them.
    pub fn new(settings: &crate::settings::Settings) -> World {
        let names = (1..=settings.nodes).map(|node| format!("node{node}"));
        World {
            agents: Agents::new(
                names,
                settings.node_bytes,
                settings.policies.growth,
                settings.ghosts,
            ),
            fleet: Fleet::default(),
            usage: ImageUsage::default(),
            instances: ByNumber::default(),
            images: BTreeMap::new(),
            pool_bytes: settings.pool_bytes,
            far_bytes: settings.far_bytes,
            totals: Totals::default(),
            waiting: RefCell::default(),
        }
    }

    /// What all nodes hold, with ghosts.
    pub fn held(&self) -> Totals {
        let near_bytes = self.totals.near_bytes + self.agents.ghost_bytes();
        Totals { near_bytes, ..self.totals }
    }

    /// The pool's use and size.
    pub fn pool(&self) -> Memory {
        Memory { used_bytes: self.totals.pool_bytes, budget_bytes: self.pool_bytes }
    }

    /// Reserves an instance's memory; `None` if its node has no room.
    pub fn reserve(&mut self, order: &StartOrder, one: Instance) -> Option<u64> {
        let id = self.agents.reserve(one.node, order.claim)?;
        self.instances.insert(id, one);
        self.totals.instances += 1;
        Some(id)
    }

    /// An instance has been seen to hold this.
    pub fn weigh(&mut self, id: u64, mut held: Held) {
        let Some(one) = self.instances.get_mut(&id) else { return };
        if one.is_local {
            held.near_bytes += std::mem::take(&mut held.pool_bytes);
        }
        // Where far memory is full, all of it is near.
        let others = self.totals.far_bytes - one.held.far_bytes;
        if self.far_bytes.is_some_and(|most| others + held.far_bytes > most) {
            held.near_bytes += std::mem::take(&mut held.far_bytes);
            one.share = one.share.map(|_| ALL);
        }
        self.totals.near_bytes = self.totals.near_bytes - one.held.near_bytes + held.near_bytes;
        self.totals.far_bytes = others + held.far_bytes;
        let before_bytes = std::mem::replace(&mut one.held, held).near_bytes;
        let usage = Usage { local_bytes: held.near_bytes, pool_bytes: held.pool_bytes };
        self.agents.weighed(id, before_bytes, usage);
    }

    /// A start has ended well. Returns the instance's function.
    pub fn started(&mut self, id: u64) -> Option<u32> {
        let one = self.instances.get(&id)?;
        // Its number serves as its pid, which nothing here uses.
        self.agents.ledger.started(id, i32::try_from(id & 0x7fff_ffff).unwrap_or(0));
        let (node, bytes, start_us) = (one.node.number(), one.most_bytes, one.took_us);
        self.fleet.add(NewInstance { id, node, bytes, start_us });
        Some(one.function)
    }

    /// An instance has ended, and its memory is free.
    pub fn ended(&mut self, id: u64) {
        let one = self.instances.remove(&id);
        self.agents.ended(id, one.as_ref().map_or(0, |one| one.held.near_bytes));
        if let Some(one) = one {
            self.totals.instances -= 1;
            self.totals.near_bytes -= one.held.near_bytes;
            self.totals.far_bytes -= one.held.far_bytes;
        }
    }

    /// What is on a node: instances, and ghosts, which count as idle.
    pub fn occupancy(&self, now_us: u64, node: NodeId) -> Occupancy {
        let ledger = &self.agents.ledger;
        let mut occupancy = self.fleet.on(now_us, node.number());
        occupancy.idle.extend(ledger.idle_ghosts(node, now_us));
        occupancy.is_settling |= ledger.has_set_aside(node);
        occupancy
    }

    /// Bytes of that which could become free.
    fn could_free(&self, now_us: u64, node: NodeId) -> u64 {
        let ledger = &self.agents.ledger;
        let ghosts = ledger.idle_ghosts(node, now_us);
        let bytes: u64 = ghosts.iter().map(|ghost| ghost.bytes).sum();
        self.fleet.could_free(now_us, node.number()) + bytes
    }

    /// Puts a function's image into the pool. Returns what was asked for and what was free if there is no room.
    pub fn put_image(&mut self, function: u32, needed: u64) -> Result<(), (u64, u64)> {
        let free = self.pool().free_below(1000);
        if free < needed {
            // A part was allocated before.
            let given = free / 10 * 9;
            return Err((needed - given, free - given));
        }
        self.images.insert(function, needed);
        self.totals.pool_bytes += needed;
        Ok(())
    }

    /// Removes a function's image, if it exists, and what the ledger knows of it.
    pub fn remove_image(&mut self, function: u32, image: Option<ImageId>) {
        self.agents.forget_image(image);
        self.usage.remove(&function);
        self.totals.pool_bytes -= self.images.remove(&function).unwrap_or(0);
    }

    /// All images, and what they save, in the order of their names. `name` is the name of a function's image.
    pub fn image_facts(&mut self, now_us: u64, name: impl Fn(u32) -> String) -> Vec<ImageFacts> {
        let mut nodes: BTreeMap<u32, BTreeSet<NodeId>> = BTreeMap::new();
        for one in self.instances.values().filter(|one| one.is_clone) {
            nodes.entry(one.function).or_default().insert(one.node);
        }
        let images = self.images.iter().map(|(function, bytes)| {
            let ImageStats { starts_per_hour, saved_us } = self.usage.stats(now_us, function);
            let nodes = nodes.get(function).map_or(0, BTreeSet::len) as u64;
            ImageFacts { name: name(*function), bytes: *bytes, nodes, starts_per_hour, saved_us }
        });
        let mut images: Vec<ImageFacts> = images.collect();
        images.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        images
    }
}

/// The nodes as a function sees them at a moment.
pub struct Around<'a> {
    /// The nodes.
    pub world: &'a World,
    /// The time.
    pub now_us: u64,
    /// The function's image, once a clone of it has started.
    pub image: Option<ImageId>,
}

impl Around<'_> {
    /// The answers in this state.
    fn waiting(&self) -> RefMut<'_, Waiting> {
        let state = (self.now_us, self.world.agents.ledger.changes(), self.world.fleet.changes());
        let mut waiting = self.world.waiting.borrow_mut();
        if waiting.state != state {
            waiting.askers.clear();
            waiting.state = state;
        }
        waiting
    }
}

impl Surroundings for Around<'_> {
    fn nodes(&self, claim: Claim, has_image: bool) -> Vec<NodeFacts> {
        self.world.agents.ledger.node_facts(claim, self.image.filter(|_| has_image))
    }

    fn numbered(&self, claim: Claim, has_image: bool) -> Vec<NodeFacts> {
        self.world.agents.ledger.numbered_facts(claim, self.image.filter(|_| has_image))
    }

    fn likeliest(&self, claim: Claim, has_image: bool) -> Option<Vec<NodeFacts>> {
        self.world.agents.ledger.likeliest(claim, self.image.filter(|_| has_image))
    }

    fn has_to_wait(&self, asker: &Asker) -> bool {
        self.waiting().askers.contains(asker)
    }

    fn waits(&self, asker: Asker) {
        self.waiting().askers.insert(asker);
    }

    fn occupancy(&self, node: &NodeRef) -> Occupancy {
        let node = self.world.agents.ledger.numbered(node.number());
        node.map_or_else(Occupancy::default, |node| self.world.occupancy(self.now_us, node))
    }

    fn could_free(&self, node: &NodeRef) -> u64 {
        let node = self.world.agents.ledger.numbered(node.number());
        node.map_or(0, |node| self.world.could_free(self.now_us, node))
    }
}
