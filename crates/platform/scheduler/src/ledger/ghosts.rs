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
use crate::images::ImageId;
use crate::stock::{Stock, guessed_bytes};

/// After ghosts were evicted for an instance, none are made on its node for this long: it is still
/// starting.
const NONE_US: u64 = 1_000_000;

/// What ghosts of a stock are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// They wait with this image.
    Attached(ImageId),
    /// They are empty, with this limit of memory in megabytes.
    Empty(u64),
}

pub(super) type StockKey = (NodeId, Kind);

/// A ghost, from the decision to make it until it is taken or stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost {
    pub key: StockKey,
    /// The image that it is made with.
    pub image: Option<ImageSpec>,
    /// Whether it is made.
    pub waits: bool,
}

/// A ghost that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GhostRef {
    /// Its node.
    pub node: NodeId,
    /// Its number, that of the order to make it.
    pub id: u64,
}

impl Ledger {
    pub(super) fn stocks_on(&self, node: NodeId) -> impl Iterator<Item = (&StockKey, &Stock)> {
        // The least of all kinds.
        let first = (node, Kind::Attached(ImageId::FIRST));
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
    pub fn waiting_with(&self, node: NodeId, image: ImageId) -> u64 {
        self.waiting(&(node, Kind::Attached(image)))
    }

    /// The ghosts that wait on a node, as candidates for eviction.
    pub fn idle_ghosts(&self, node: NodeId, now_us: u64) -> Vec<Idle> {
        let here = &self.nodes[node.index()];
        if here.empty_ghosts + here.attached_ghosts == 0 {
            return Vec::new();
        }
        self.stocks_on(node).flat_map(|(_, stock)| stock.idle(now_us)).collect()
    }

    /// The numbers of the ghosts that wait on a node.
    pub fn ghosts_on(&self, node: NodeId) -> impl Iterator<Item = u64> {
        self.stocks_on(node).flat_map(|(_, stock)| &stock.waiting).copied()
    }

    /// Counts a ghost that waits from now on.
    pub(super) fn waits(&mut self, (node, kind): &StockKey) {
        let here = &mut self.nodes[node.index()];
        match kind {
            Kind::Attached(_) => here.attached_ghosts += 1,
            Kind::Empty(_) => here.empty_ghosts += 1,
        }
        *self.waiting.entry(*kind).or_default().entry(node.index()).or_default() += 1;
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

    /// Removes ghosts, which do not wait any more, from the table; returns those that were made.
    pub(super) fn remove(&mut self, ids: impl IntoIterator<Item = u64>) -> Vec<GhostRef> {
        let mut removed = Vec::new();
        for id in ids {
            let Some(Occupant::Ghost(ghost)) = self.occupants.remove(&id) else { continue };
            if ghost.waits {
                self.waits_no_more(&ghost.key);
                removed.push(GhostRef { node: ghost.key.0, id });
            }
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
    ) -> (Vec<GhostRef>, u64) {
        let (mut withdrawn, mut bytes) = (Vec::new(), 0);
        for id in ids.iter().filter_map(OccupantId::as_ghost) {
            let Some(Occupant::Ghost(ghost)) = self.occupants.get(&id) else { continue };
            if ghost.key.0 != node || !ghost.waits {
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

    /// Takes a waiting empty ghost; returns its number.
    pub fn take_empty(&mut self, node: NodeId, memory_mb: u64, now_us: u64) -> Option<u64> {
        let key = self.empty_stock(node, memory_mb);
        let stock = self.stocks.get_mut(&key)?;
        stock.arrivals.add(now_us);
        let taken = stock.waiting.pop()?;
        self.remove([taken]).pop().map(|ghost| ghost.id)
    }

    /// Takes a waiting ghost with an image; returns its number. Also returns ghosts to be
    /// stopped because the image has changed.
    pub fn take_attached(
        &mut self,
        node: NodeId,
        image: &ImageSpec,
        now_us: u64,
    ) -> (Option<u64>, Vec<GhostRef>) {
        let key = (node, Kind::Attached(image.image));
        let stock = self.stocks.entry(key).or_insert_with(|| Stock::new(Some(image)));
        let mut stale = Vec::new();
        if stock.image.as_ref() != Some(image) {
            stale.append(&mut stock.waiting);
            stock.bytes = guessed_bytes(image);
            stock.image = Some(*image);
        }
        stock.arrivals.add(now_us);
        let taken = stock.waiting.pop();
        let taken = self.remove(taken).pop().map(|ghost| ghost.id);
        (taken, self.remove(stale))
    }

    /// Records the duration of a start, in an attached or an empty ghost.
    pub fn record_start(&mut self, node: NodeId, image: ImageId, took_us: u64, was_attached: bool) {
        if let Some(stock) = self.stocks.get_mut(&(node, Kind::Attached(image))) {
            stock.started(took_us, was_attached);
        }
    }

    /// Forgets an image that is removed; returns its ghosts, to be stopped.
    pub fn forget_image(&mut self, image: ImageId) -> Vec<GhostRef> {
        self.images.forget(image);
        self.forget(|(_, kind)| *kind == Kind::Attached(image))
    }

    /// Forgets the ghosts of a node, which are gone; returns those that waited.
    pub fn forget_ghosts(&mut self, node: NodeId) -> Vec<GhostRef> {
        let mut gone =
            self.forget(|(other, kind)| *other == node && matches!(kind, Kind::Attached(_)));
        let here = self.stocks.iter_mut().filter(|((other, _), _)| *other == node);
        let empty: Vec<u64> = here.flat_map(|(_, stock)| stock.waiting.drain(..)).collect();
        gone.extend(self.remove(empty));
        gone
    }

    /// Forgets stocks with all of their ghosts; returns those that wait.
    fn forget(&mut self, is_it: impl Fn(&StockKey) -> bool) -> Vec<GhostRef> {
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
