//! The nodes, the pool and what lives on them, as the scheduler's own tables have it.

use std::collections::{BTreeMap, BTreeSet};

use farfork_platform::simulated::{Footprint, Totals};
use farfork_policy::Memory;
use farfork_policy::placement::NodeFacts;
use farfork_policy::reclaim::ImageFacts;
use farfork_scheduler::{
    ByNumber, Claim, Fleet, History, ImageStats, ImageUsage, Ledger, NewInstance, NodeId,
    Occupancy, StartOrder, Surroundings, Usage,
};
use farfork_types::Tiering;

use super::StartKind;

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
    /// How long its start took.
    pub took_us: u64,
    /// How long loading its code takes, until it was loaded.
    pub load_us: Option<u64>,
    /// What it holds, once known.
    pub near_bytes: Option<u64>,
    /// The call that it serves.
    pub call: Option<usize>,
}

/// All nodes.
#[derive(Debug)]
pub struct World {
    /// What takes memory.
    pub ledger: Ledger,
    /// What could end for others.
    pub fleet: Fleet,
    /// What images save.
    pub usage: ImageUsage,
    /// The instances.
    pub instances: ByNumber<Instance>,
    /// Bytes of each function's image, if there is one.
    images: BTreeMap<String, u64>,
    pool_bytes: u64,
    /// What all nodes hold.
    pub totals: Totals,
}

impl World {
    /// Nodes with nothing on them.
    pub fn new(settings: &crate::run::Settings) -> World {
        let names = (1..=settings.nodes).map(|node| format!("node{node}"));
        World {
            ledger: Ledger::new(names, settings.node_bytes, settings.policies.growth, 0),
            fleet: Fleet::default(),
            usage: ImageUsage::default(),
            instances: ByNumber::default(),
            images: BTreeMap::new(),
            pool_bytes: settings.pool_bytes,
            totals: Totals::default(),
        }
    }

    /// The pool's use and size.
    pub fn pool(&self) -> Memory {
        Memory { used_bytes: self.totals.pool_bytes, budget_bytes: self.pool_bytes }
    }

    /// Reserves an instance's memory; `None` if its node has no room.
    pub fn reserve(&mut self, order: &StartOrder, one: Instance) -> Option<u64> {
        let id = self.ledger.reserve(one.node, order.claim)?;
        self.instances.insert(id, one);
        self.totals.instances += 1;
        Some(id)
    }

    /// An instance has been seen to hold what its function's instances do.
    pub fn weigh(&mut self, id: u64, footprint: Footprint) {
        let Some(one) = self.instances.get_mut(&id) else { return };
        let (near, mapped) = match one.is_clone {
            true => (footprint.clone_bytes, footprint.mapped_bytes),
            false => (footprint.cold_bytes, 0),
        };
        self.totals.near_bytes = self.totals.near_bytes - one.near_bytes.unwrap_or(0) + near;
        one.near_bytes = Some(near);
        self.ledger.measured(id, Usage { local_bytes: near, pool_bytes: mapped });
    }

    /// A start has ended well. Returns the instance's function.
    pub fn started(&mut self, id: u64) -> Option<u32> {
        let one = self.instances.get(&id)?;
        // Its number serves as its pid, which nothing here uses.
        self.ledger.started(id, i32::try_from(id & 0x7fff_ffff).unwrap_or(0));
        let (node, bytes, start_us) = (self.ledger.name(one.node), one.most_bytes, one.took_us);
        self.fleet.add(NewInstance { id, node, bytes, start_us });
        Some(one.function)
    }

    /// An instance has ended, and its memory is free.
    pub fn ended(&mut self, id: u64) {
        self.ledger.end(id);
        if let Some(one) = self.instances.remove(&id) {
            self.totals.instances -= 1;
            self.totals.near_bytes -= one.near_bytes.unwrap_or(0);
        }
    }

    /// Puts an image into the pool. Returns what was asked for and what was free if there is no room.
    pub fn put_image(&mut self, name: &str, needed: u64) -> Result<(), (u64, u64)> {
        let free = self.pool().free_below(1000);
        if free < needed {
            // A part was allocated before.
            let given = free / 10 * 9;
            return Err((needed - given, free - given));
        }
        self.images.insert(name.to_owned(), needed);
        self.totals.pool_bytes += needed;
        Ok(())
    }

    /// Removes an image, if it exists.
    pub fn remove_image(&mut self, name: &str) {
        self.usage.remove(name);
        self.totals.pool_bytes -= self.images.remove(name).unwrap_or(0);
    }

    /// All images, and what they save. `name` is the name of a function's image.
    pub fn image_facts(&mut self, now_us: u64, name: impl Fn(u32) -> String) -> Vec<ImageFacts> {
        let mut nodes: BTreeMap<String, BTreeSet<NodeId>> = BTreeMap::new();
        for one in self.instances.values().filter(|one| one.is_clone) {
            nodes.entry(name(one.function)).or_default().insert(one.node);
        }
        let images = self.images.iter().map(|(name, bytes)| {
            let ImageStats { starts_per_hour, saved_us } = self.usage.stats(now_us, name);
            let nodes = nodes.get(name).map_or(0, BTreeSet::len) as u64;
            ImageFacts { name: name.clone(), bytes: *bytes, nodes, starts_per_hour, saved_us }
        });
        images.collect()
    }
}

/// The nodes as a function sees them at a moment.
pub struct Around<'a> {
    /// The nodes.
    pub world: &'a World,
    /// The time.
    pub now_us: u64,
}

impl Surroundings for Around<'_> {
    fn nodes(&self, claim: Claim, _: bool) -> Vec<NodeFacts> {
        // No ghosts wait, so it does not matter of which image.
        self.world.ledger.node_facts(claim, None)
    }

    fn occupancy(&self, node: &str) -> Occupancy {
        self.world.fleet.on(self.now_us, node)
    }
}
