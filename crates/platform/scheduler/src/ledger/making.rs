//! Making ghosts in advance, and stopping those that are not wanted any more.

use std::collections::btree_map::Entry;
use std::fmt;

use farfork_policy::Memory;

use super::ghosts::{Ghost, GhostRef, Kind, StockKey};
use super::{Ledger, NodeId, Occupant};
use crate::advice::Advice;
use crate::claim::ImageSpec;
use crate::images::Images;
use crate::stock::Stock;

/// The default memory limit of actions, in megabytes. Empty ghosts with it always wait.
pub const USUAL_MB: u64 = 256;
/// Empty ghosts with another limit are stopped if none was taken for this long.
const UNUSED_US: u64 = 600_000_000;
/// Period of the check for surplus ghosts while memory is free.
const TRIM_US: u64 = 30_000_000;
/// Share of memory in use from which surplus attached ghosts go at once, in thousandths. By the default
/// policies, none wait above it.
const PRESSURE_PERMILLE: u64 = 900;

/// A ghost to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GhostOrder {
    /// Its number.
    pub id: u64,
    /// Bytes to set aside for it first, by [`Ledger::set_aside`].
    pub bytes: Option<u64>,
}

/// What a decision about a stock is about.
struct About<'a> {
    node: &'a str,
    kind: Kind,
    images: &'a Images,
}

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Attached(image) => write!(f, "{} on {}", self.images.name(image), self.node),
            Kind::Empty(memory_mb) => write!(f, "{}/{memory_mb}", self.node),
        }
    }
}

impl Ledger {
    /// Whether ghosts may be made on a node now.
    fn may_make(&self, node: NodeId, now_us: u64) -> bool {
        let here = &self.nodes[node.index()];
        here.answers && here.no_ghosts_until_us <= now_us
    }

    /// Decides how many ghosts of a stock should wait.
    fn wanted(&self, key: &StockKey, pool: Memory, now_us: u64, advice: &impl Advice) -> usize {
        let (node, kind) = *key;
        let memory = self.memory(node);
        let about = About { node: &self.nodes[node.index()].name, kind, images: &self.images };
        let Some(stock) = self.stocks.get(key) else { return 0 };
        let wanted = match kind {
            Kind::Empty(_) => advice.decide(&about, &stock.empty_facts(memory, now_us)),
            Kind::Attached(_) => match stock.attached_facts(memory, pool, now_us) {
                Some(facts) => advice.decide(&about, &facts),
                None => 0,
            },
        };
        usize::try_from(wanted).unwrap_or(usize::MAX)
    }

    fn order(
        &mut self,
        key: &StockKey,
        pool: Memory,
        now_us: u64,
        advice: &impl Advice,
    ) -> Vec<GhostOrder> {
        let wanted = self.wanted(key, pool, now_us, advice);
        let Some(stock) = self.stocks.get_mut(key) else { return Vec::new() };
        let lacking = (wanted as u64).saturating_sub(stock.waiting.len() as u64 + stock.making);
        stock.making += lacking;
        let (image, bytes) = (stock.image, stock.bytes);
        let bytes = image.is_some().then_some(bytes);
        let one = |ledger: &mut Ledger| {
            let id = ledger.new_number();
            let ghost = Ghost { key: *key, image, waits: false };
            ledger.occupants.insert(id, Occupant::Ghost(ghost));
            GhostOrder { id, bytes }
        };
        (0..lacking).map(|_| one(self)).collect()
    }

    /// The stock of empty ghosts with this limit, which exists from now on.
    pub(super) fn empty_stock(&mut self, node: NodeId, memory_mb: u64) -> StockKey {
        let key = (node, Kind::Empty(memory_mb));
        if let Entry::Vacant(vacant) = self.stocks.entry(key) {
            vacant.insert(Stock::new(None));
            if memory_mb != USUAL_MB {
                self.unusual.insert(key);
            }
        }
        key
    }

    /// Decides how many empty ghosts to make. They count as being made from now on.
    pub fn order_empty(
        &mut self,
        node: NodeId,
        memory_mb: u64,
        now_us: u64,
        advice: &impl Advice,
    ) -> Vec<GhostOrder> {
        if !self.may_make(node, now_us) {
            return Vec::new();
        }
        let key = self.empty_stock(node, memory_mb);
        self.order(&key, Memory::default(), now_us, advice)
    }

    /// Decides how many ghosts to make with an image that instances were started of. They count as being
    /// made from now on.
    pub fn order_attached(
        &mut self,
        node: NodeId,
        image: &ImageSpec,
        pool: Memory,
        now_us: u64,
        advice: &impl Advice,
    ) -> Vec<GhostOrder> {
        let key = (node, Kind::Attached(image.image));
        // A change of the image is seen at the next start.
        let is_it = self.stocks.get(&key).is_some_and(|stock| stock.image.as_ref() == Some(image));
        if !is_it || !self.may_make(node, now_us) {
            return Vec::new();
        }
        self.order(&key, pool, now_us, advice)
    }

    /// Sets memory aside for a ghost that is about to be made, until [`Ledger::counted`]. Returns false
    /// if there is no room, or if it is not wanted any more.
    pub fn set_aside(&mut self, id: u64, bytes: u64) -> bool {
        let Some(Occupant::Ghost(ghost)) = self.occupants.get(&id) else { return false };
        let node = ghost.key.0;
        if self.set_aside.contains_key(&id) {
            return false;
        }
        self.if_it_fits(
            node,
            |ledger| {
                ledger.set_aside.insert(id, (node, bytes));
                ledger.nodes[node.index()].set_aside_bytes += bytes;
            },
            |ledger| {
                ledger.counted(id);
            },
        )
    }

    /// What was set aside for a ghost is counted as taken by now, or was not taken. Returns whether
    /// something was set aside.
    pub fn counted(&mut self, id: u64) -> bool {
        let Some((node, bytes)) = self.set_aside.remove(&id) else { return false };
        self.nodes[node.index()].set_aside_bytes -= bytes;
        true
    }

    /// Whether memory of a node is set aside.
    pub fn has_set_aside(&self, node: NodeId) -> bool {
        self.nodes[node.index()].set_aside_bytes > 0
    }

    /// A ghost was made, of so many bytes, or not. Returns whether it is to be stopped, because it is not wanted any
    /// more.
    pub fn made(&mut self, id: u64, bytes: Option<u64>) -> bool {
        let Some(Occupant::Ghost(ghost)) = self.occupants.get_mut(&id) else {
            return bytes.is_some();
        };
        let Some(stock) = self.stocks.get_mut(&ghost.key) else { return bytes.is_some() };
        stock.making = stock.making.saturating_sub(1);
        let is_wanted = stock.image == ghost.image;
        let Some(seen_bytes) = bytes.filter(|_| is_wanted) else {
            self.occupants.remove(&id);
            return bytes.is_some();
        };
        ghost.waits = true;
        stock.bytes = seen_bytes;
        stock.waiting.push(id);
        let key = ghost.key;
        self.waits(&key);
        false
    }

    /// Removes ghosts that are not wanted any more: those of unused kinds, and surplus ones at intervals
    /// and, with an image, at once where memory is short. Returns them, to be stopped.
    pub fn surplus(&mut self, pool: Memory, now_us: u64, advice: &impl Advice) -> Vec<GhostRef> {
        let mut ids = self.unused(now_us);
        let is_time = now_us.saturating_sub(self.trimmed_us) >= TRIM_US;
        if is_time {
            self.trimmed_us = now_us;
        }
        // Between the intervals only ghosts with images go.
        let empty = if is_time { self.empty_stocks() } else { Vec::new() };
        for key in empty.into_iter().chain(self.waiting_attached()) {
            if !self.answers(key.0) || !self.is_to_trim(&key, is_time, pool) {
                continue;
            }
            let wanted = self.wanted(&key, pool, now_us, advice);
            if let Some(stock) = self.stocks.get_mut(&key) {
                let kept = wanted.min(stock.waiting.len());
                ids.extend(stock.waiting.drain(kept..));
            }
        }
        self.remove(ids)
    }

    /// The stocks of empty ghosts, in the order of nodes.
    fn empty_stocks(&self) -> Vec<StockKey> {
        let on = |node| self.stocks.range((node, Kind::Empty(0))..=(node, Kind::Empty(u64::MAX)));
        self.ids().flat_map(on).map(|(key, _)| *key).collect()
    }

    /// The stocks with an image of which ghosts wait, in the order of nodes. For others, of which there may be very many,
    /// nothing is to be decided.
    fn waiting_attached(&self) -> Vec<StockKey> {
        // Those with images are first.
        let kinds = self.waiting.range(..Kind::Empty(0));
        let nodes = kinds.flat_map(|(kind, nodes)| nodes.keys().map(move |node| (*node, *kind)));
        let mut nodes: Vec<(usize, Kind)> = nodes.collect();
        nodes.sort_unstable();
        let key = |(node, kind): (usize, Kind)| Some((NodeId(u32::try_from(node).ok()?), kind));
        nodes.into_iter().filter_map(key).collect()
    }

    /// Whether surplus ghosts of a stock go now.
    fn is_to_trim(&self, key: &StockKey, is_time: bool, pool: Memory) -> bool {
        let is_short = |memory: Memory| memory.used_permille() >= PRESSURE_PERMILLE;
        match key.1 {
            Kind::Empty(_) => is_time,
            Kind::Attached(_) => is_time || is_short(pool) || is_short(self.memory(key.0)),
        }
    }

    /// Forgets empty ghosts with unusual limits that were not taken for long; returns those that wait.
    fn unused(&mut self, now_us: u64) -> Vec<u64> {
        let mut unused = Vec::new();
        let stocks = &mut self.stocks;
        self.unusual.retain(|key| {
            let Some(stock) = stocks.get_mut(key) else { return false };
            let last_us = stock.arrivals.last_us();
            let is_used = stock.making > 0
                || last_us.is_some_and(|last| now_us.saturating_sub(last) < UNUSED_US);
            if !is_used {
                unused.append(&mut stock.waiting);
                stocks.remove(key);
            }
            is_used
        });
        unused
    }
}
