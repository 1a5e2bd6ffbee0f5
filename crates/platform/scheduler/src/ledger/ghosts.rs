//! Ghosts: how many wait, which is taken, and which are stopped.
//!
//! ```text
//!              memory set aside ───────────────────────► counted
//!  decided ──► being made ──► waits ──┬─► taken by a start
//!     │             └─► failed        ├─► evicted, surplus, unused, its image changed: to be stopped
//!     └─► its image was forgotten     └─► gone with its node
//! ```
//! A ghost takes one clone, once. So an empty one can serve any user: no user's data is left in it for
//! another. Ghosts with an image wait before their clone's first instruction, and serve that image only.

use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;

use super::{Ledger, NodeId, Occupant};
use crate::claim::ImageSpec;
use crate::stock::{Stock, guessed_bytes};

/// After ghosts were evicted for an instance, none are made on its node for this long: it is still
/// starting.
const NONE_US: u64 = 1_000_000;

/// What ghosts of a stock are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// They wait with the image of this name.
    Attached(String),
    /// They are empty, with this limit of memory in megabytes.
    Empty(u64),
}

pub(super) type StockKey = (NodeId, Kind);

/// A ghost, from the decision to make it until it is taken or stopped.
#[derive(Clone, Debug)]
pub(super) struct Ghost {
    pub key: StockKey,
    /// The image that it is made with.
    pub image: Option<ImageSpec>,
    /// The agent's name of it, once it waits.
    pub name: Option<String>,
}

/// A ghost as its agent knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentGhost {
    /// Its node.
    pub node: NodeId,
    /// The agent's name of it.
    pub name: String,
}

impl Ledger {
    pub(super) fn stocks_on(&self, node: NodeId) -> impl Iterator<Item = (&StockKey, &Stock)> {
        // The least of all kinds.
        let first = (node, Kind::Attached(String::new()));
        self.stocks.range(first..).take_while(move |((other, _), _)| *other == node)
    }

    pub(super) fn waiting(&self, key: &StockKey) -> u64 {
        self.stocks.get(key).map_or(0, |stock| stock.waiting.len() as u64)
    }

    /// How many empty ghosts with this limit wait.
    pub fn waiting_empty(&self, node: NodeId, memory_mb: u64) -> u64 {
        self.waiting(&(node, Kind::Empty(memory_mb)))
    }

    /// How many ghosts with this image wait.
    pub fn waiting_with(&self, node: NodeId, image: &str) -> u64 {
        self.waiting(&(node, Kind::Attached(image.to_owned())))
    }

    /// The ghosts that wait on a node, as candidates for eviction.
    pub fn idle_ghosts(&self, node: NodeId, now_us: u64) -> Vec<Idle> {
        let here = &self.nodes[node.index()];
        if here.empty_ghosts + here.attached_ghosts == 0 {
            return Vec::new();
        }
        self.stocks_on(node).flat_map(|(_, stock)| stock.idle(now_us)).collect()
    }

    /// The agent's names of the ghosts that wait on a node.
    pub fn ghost_names(&self, node: NodeId) -> impl Iterator<Item = &str> {
        let ids = self.stocks_on(node).flat_map(|(_, stock)| &stock.waiting);
        ids.filter_map(|id| match self.occupants.get(id)? {
            Occupant::Ghost(ghost) => ghost.name.as_deref(),
            Occupant::Instance(_) => None,
        })
    }

    /// Counts a ghost that waits from now on.
    pub(super) fn waits(&mut self, (node, kind): &StockKey) {
        let here = &mut self.nodes[node.index()];
        match kind {
            Kind::Attached(_) => here.attached_ghosts += 1,
            Kind::Empty(_) => here.empty_ghosts += 1,
        }
        *self.waiting.entry(kind.clone()).or_default().entry(node.index()).or_default() += 1;
    }

    fn waits_no_more(&mut self, (node, kind): &StockKey) {
        let here = &mut self.nodes[node.index()];
        match kind {
            Kind::Attached(_) => here.attached_ghosts -= 1,
            Kind::Empty(_) => here.empty_ghosts -= 1,
        }
        let Some(nodes) = self.waiting.get_mut(kind) else { return };
        if let Some(count) = nodes.get_mut(&node.index()) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(&node.index());
            }
        }
        if nodes.is_empty() {
            self.waiting.remove(kind);
        }
    }

    /// Removes ghosts, which do not wait any more, from the table; returns those that their agents have.
    pub(super) fn remove(&mut self, ids: impl IntoIterator<Item = u64>) -> Vec<AgentGhost> {
        let mut removed = Vec::new();
        for id in ids {
            let Some(Occupant::Ghost(ghost)) = self.occupants.remove(&id) else { continue };
            let node = ghost.key.0;
            let Some(name) = ghost.name else { continue };
            self.waits_no_more(&ghost.key);
            removed.push(AgentGhost { node, name });
        }
        removed
    }

    /// Removes those of these ghosts that wait on a node, and makes none there for a moment, as the free
    /// memory is meant for an instance. Returns them, to be stopped, and their bytes.
    pub fn withdraw(
        &mut self,
        node: NodeId,
        ids: &[OccupantId],
        now_us: u64,
    ) -> (Vec<AgentGhost>, u64) {
        let (mut withdrawn, mut bytes) = (Vec::new(), 0);
        for id in ids.iter().filter_map(OccupantId::as_ghost) {
            let Some(Occupant::Ghost(ghost)) = self.occupants.get(&id) else { continue };
            if ghost.key.0 != node || ghost.name.is_none() {
                continue;
            }
            if let Some(stock) = self.stocks.get_mut(&ghost.key) {
                stock.waiting.retain(|other| *other != id);
                bytes += stock.bytes;
            }
            withdrawn.extend(self.remove([id]));
        }
        if !withdrawn.is_empty() {
            self.nodes[node.index()].no_ghosts_until_us = now_us + NONE_US;
        }
        (withdrawn, bytes)
    }

    /// Takes a waiting empty ghost; returns the agent's name of it.
    pub fn take_empty(&mut self, node: NodeId, memory_mb: u64, now_us: u64) -> Option<String> {
        let key = self.empty_stock(node, memory_mb);
        let stock = self.stocks.get_mut(&key)?;
        stock.arrivals.add(now_us);
        let taken = stock.waiting.pop()?;
        self.remove([taken]).pop().map(|ghost| ghost.name)
    }

    /// Takes a waiting ghost with an image; returns the agent's name of it. Also returns ghosts to be
    /// stopped because the image has changed.
    pub fn take_attached(
        &mut self,
        node: NodeId,
        image: &ImageSpec,
        now_us: u64,
    ) -> (Option<String>, Vec<AgentGhost>) {
        let key = (node, Kind::Attached(image.name.clone()));
        let stock = self.stocks.entry(key).or_insert_with(|| Stock::new(Some(image)));
        let mut stale = Vec::new();
        if stock.image.as_ref() != Some(image) {
            stale.append(&mut stock.waiting);
            stock.bytes = guessed_bytes(image);
            stock.image = Some(image.clone());
        }
        stock.arrivals.add(now_us);
        let taken = stock.waiting.pop();
        let taken = self.remove(taken).pop().map(|ghost| ghost.name);
        (taken, self.remove(stale))
    }

    /// Records the duration of a start, in an attached or an empty ghost.
    pub fn record_start(&mut self, node: NodeId, image: &str, took_us: u64, was_attached: bool) {
        if let Some(stock) = self.stocks.get_mut(&(node, Kind::Attached(image.to_owned()))) {
            stock.started(took_us, was_attached);
        }
    }

    /// Forgets an image that is removed; returns its ghosts, to be stopped.
    pub fn forget_image(&mut self, image: &str) -> Vec<AgentGhost> {
        self.forget(|(_, kind)| matches!(kind, Kind::Attached(name) if name == image))
    }

    /// Forgets the ghosts of a node, which are gone.
    pub fn forget_ghosts(&mut self, node: NodeId) {
        self.forget(|(other, kind)| *other == node && matches!(kind, Kind::Attached(_)));
        let here = self.stocks.iter_mut().filter(|((other, _), _)| *other == node);
        let gone: Vec<u64> = here.flat_map(|(_, stock)| stock.waiting.drain(..)).collect();
        self.remove(gone);
    }

    /// Forgets stocks with all of their ghosts; returns those that wait.
    fn forget(&mut self, is_it: impl Fn(&StockKey) -> bool) -> Vec<AgentGhost> {
        self.stocks.retain(|key, _| !is_it(key));
        let of_it = self.occupants.iter().filter_map(|(id, occupant)| match occupant {
            Occupant::Ghost(ghost) if is_it(&ghost.key) => Some(*id),
            _ => None,
        });
        let mut ids: Vec<u64> = of_it.collect();
        ids.sort_unstable();
        self.remove(ids)
    }
}
