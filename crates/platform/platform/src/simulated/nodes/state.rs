//! The state of simulated nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farfork_policy::Memory;
use farfork_policy::placement::NodeFacts;
use farfork_types::wire::AddressRange;
use farfork_types::{LocalShare, Tiering};
use tokio::sync::watch;

use super::processors::Shared;
use crate::scheduler::nodes::{NodesError, Start, Usage};
use crate::simulated::agents::Agents;
use crate::simulated::{Durations, Footprint, Totals};

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
    pub(super) ending_bytes: u64,
    /// Whether memory is set aside for a moment.
    pub is_settling: bool,
    /// Tiering policies of the started clones, if events are recorded.
    pub tierings: Vec<Tiering>,
    /// Shares of near memory of the started clones that got one, if events are recorded.
    pub shares: Vec<LocalShare>,
    /// Whether clones start without the share that was decided, as there is no room for it.
    pub lacks_shares: bool,
    /// Changes of shares of running instances, with the share before, if events are recorded.
    pub share_changes: Vec<(u64, LocalShare, LocalShare)>,
    /// Whether a change of a share is met, or why it fails.
    pub share_change: Result<bool, &'static str>,
    /// How long a change of a share takes.
    pub share_duration: Duration,
    /// Number of changes of shares to find no room.
    pub full_shares: u32,
    /// Whether shares of running instances can be lowered.
    pub has_far_memory: bool,
    /// Measured memory of each instance without a footprint.
    pub usage: Option<Usage>,
    /// Number of connections made.
    pub connections: u32,
    /// Number of connections to a launched program to refuse.
    pub deaf_connects: u32,
    pub(super) next: u64,
    /// Bytes that an idle instance without a footprint holds, if less than its limit.
    pub held_bytes: Option<u64>,
    pub(super) alive: BTreeMap<u64, Alive>,
    pub(super) footprints: BTreeMap<String, Footprint>,
    /// Sum of the near memory of all living instances with a footprint.
    pub(super) near_bytes: u64,
    /// The agents, if they are simulated: then what is on the nodes is in their ledger.
    pub(super) agents: Option<Agents>,
    /// The processors, if starts and calls share them.
    pub(super) processors: Option<Shared>,
    /// Which instances are paused.
    pub(super) pauses: BTreeMap<u64, watch::Sender<bool>>,
}

/// An instance as the nodes see it.
#[derive(Debug)]
pub struct Alive {
    pub node: String,
    pub most_bytes: u64,
    pub is_starting: bool,
    pub is_at_work: bool,
    pub is_clone: bool,
    pub image: Option<String>,
    pub footprint: Option<Footprint>,
    /// Whether its pages were promoted.
    pub is_local: bool,
}

impl Alive {
    /// Near memory, if known.
    pub(super) fn near_bytes(&self) -> Option<u64> {
        let footprint = self.footprint?;
        let mapped = if self.is_local { footprint.mapped_bytes } else { 0 };
        Some(if self.is_clone { footprint.clone_bytes + mapped } else { footprint.cold_bytes })
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        let maps = self.is_clone && !self.is_local;
        let pool_bytes = self.footprint.filter(|_| maps).map_or(0, |f| f.mapped_bytes);
        self.near_bytes().map(|local_bytes| Usage { local_bytes, pool_bytes })
    }
}

impl State {
    pub(super) fn taken(&self, alive: &Alive) -> u64 {
        let held = alive.near_bytes().or(self.held_bytes);
        held.filter(|_| !alive.is_at_work).unwrap_or(alive.most_bytes)
    }

    pub(super) fn facts(&self) -> Vec<NodeFacts> {
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            for alive in self.alive.values().filter(|alive| alive.node == node.node.name()) {
                node.memory.used_bytes += self.taken(alive);
                node.starting += u64::from(alive.is_starting);
            }
            if self.has_ghosts(node.node.name()) {
                node.memory.used_bytes += self.ghosts.values().sum::<u64>() + self.ending_bytes;
            }
        }
        nodes
    }

    pub(super) fn has_ghosts(&self, node: &str) -> bool {
        self.ghosts_on.as_ref().is_none_or(|only| only == node)
    }

    pub(super) fn has_room(&self, node: &str, bytes: u64) -> bool {
        let facts = self.facts().into_iter().find(|facts| facts.node.name() == node);
        facts.is_some_and(|facts| facts.memory.free_below(1000) >= bytes)
    }

    /// Bytes of an image in the pool.
    pub(super) fn image_size(&self, image: &str) -> u64 {
        self.footprints.get(image).map_or(self.image_bytes, |footprint| footprint.image_bytes)
    }

    pub(super) fn pool(&self) -> Memory {
        let images = self.images.iter().map(|image| self.image_size(image)).sum::<u64>();
        Memory { used_bytes: self.pool_bytes + images, budget_bytes: self.pool_size_bytes }
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            instances: self.alive.len() as u64,
            near_bytes: self.near_bytes + self.agents.as_ref().map_or(0, Agents::ghost_bytes),
            pool_bytes: self.pool().used_bytes,
            far_bytes: 0,
        }
    }

    /// Records an event.
    pub fn note(&mut self, event: String) {
        if self.is_verbose {
            self.events.push(event);
        }
    }

    /// Makes an image of an instance.
    pub(super) fn image(&mut self, id: u64, image: String) -> Result<(), NodesError> {
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

impl State {
    /// The number of an instance for which its node has room.
    pub(super) fn number(&mut self, start: &Start) -> Option<u64> {
        if let Some(agents) = &mut self.agents {
            let node = agents.ledger.node(&start.node)?;
            let id = agents.reserve(node, start.claim)?;
            self.pauses.insert(id, watch::Sender::new(false));
            return Some(id);
        }
        if self.full_starts > 0 || !self.has_room(&start.node, start.claim.most_bytes()) {
            self.full_starts = self.full_starts.saturating_sub(1);
            return None;
        }
        self.next += 1;
        Some(self.next)
    }

    pub(super) fn new(nodes: Vec<NodeFacts>, pool_size_bytes: u64, durations: Durations) -> State {
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
            shares: Vec::new(),
            lacks_shares: false,
            share_changes: Vec::new(),
            share_change: Ok(true),
            share_duration: Duration::ZERO,
            full_shares: 0,
            has_far_memory: false,
            usage: None,
            connections: 0,
            deaf_connects: 0,
            next: 0,
            held_bytes: None,
            alive: BTreeMap::new(),
            footprints: BTreeMap::new(),
            near_bytes: 0,
            agents: None,
            processors: None,
            pauses: BTreeMap::new(),
        }
    }
}
