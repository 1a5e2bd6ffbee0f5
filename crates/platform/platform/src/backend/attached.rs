//! Attached ghosts, by node and image: their clones wait before their first instruction. Their
//! number depends on what they save.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::ghosts::AttachedFacts;
use farfork_policy::placement::NodeFacts;
use farfork_types::{Cid, Tiering};
use tokio::time::{Duration, Instant};

use super::arrivals::{ArrivalWindow, Worth};
use super::ghosts::withdraw;
use crate::scheduler::Advisor;

/// Time of waking a ghost, until one was measured.
const GUESSED_WAKE_US: u64 = 100;
/// Memory of a ghost until one was measured: that of a small function.
const GUESSED_BYTES: u64 = 3 << 20;

/// Memory of a ghost of this image, until one was measured.
fn guessed_bytes(wanted: &ImageSpec) -> u64 {
    match wanted.tiering {
        // All of the image's memory is copied.
        Tiering::Copy => wanted.memory_mb << 20,
        _ => GUESSED_BYTES,
    }
}

/// Period of the check for surplus ghosts while memory is free.
const TRIM: Duration = Duration::from_secs(30);
/// Share of memory in use from which surplus ghosts go at once, in thousandths. By the default
/// policies, none wait above it.
const PRESSURE_PERMILLE: u64 = 900;
/// The weight of earlier measurements against 1 for the last one.
const INERTIA: u64 = 3;

/// An image to attach, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// Its name.
    pub name: String,
    /// Its CID.
    pub cid: Cid,
    /// The tiering policy.
    pub tiering: Tiering,
    /// Memory limit of an instance, in megabytes.
    pub memory_mb: u64,
}

/// A ghost: node and id.
pub type Ghost = (String, String);

/// Waiting attached ghosts.
#[derive(Debug)]
pub struct Attached {
    /// Keyed by node and image name.
    stocks: Mutex<BTreeMap<(String, String), Stock>>,
    trimmed: Mutex<Instant>,
    advisor: Arc<Advisor>,
}

#[derive(Debug)]
struct Stock {
    wanted: ImageSpec,
    ids: Vec<String>,
    /// Number of ghosts being made.
    making: u64,
    arrivals: ArrivalWindow,
    /// Duration of starts in empty ghosts, and in attached ones.
    empty_us: Option<u64>,
    attached_us: Option<u64>,
    /// Memory of one ghost.
    bytes: u64,
}

impl Stock {
    fn new(wanted: &ImageSpec) -> Stock {
        Stock {
            wanted: wanted.clone(),
            ids: Vec::new(),
            making: 0,
            arrivals: ArrivalWindow::default(),
            empty_us: None,
            attached_us: None,
            bytes: guessed_bytes(wanted),
        }
    }

    /// What a start in an attached ghost saves, if known, in microseconds.
    fn saved_us(&self) -> Option<u64> {
        let attached_us = self.attached_us.unwrap_or(GUESSED_WAKE_US);
        self.empty_us.map(|empty_us| empty_us.saturating_sub(attached_us))
    }

    /// How many should wait; none before their saving is known.
    fn wanted(&mut self, advisor: &Advisor, node: &NodeFacts, pool: Memory) -> u64 {
        let Some(saved_us) = self.saved_us() else { return 0 };
        let now = Instant::now();
        let facts = AttachedFacts {
            burst: self.arrivals.burst(now),
            starts_per_hour: self.arrivals.in_last_hour(now),
            saved_us,
            ghost_bytes: self.bytes,
            memory: node.memory,
            pool,
        };
        let about = format!("{} on {}", self.wanted.name, node.name);
        advisor.decide(&*advisor.policies.attached_ghosts, &about, &facts)
    }
}

impl Attached {
    /// No ghosts yet.
    pub fn new(advisor: Arc<Advisor>) -> Attached {
        Attached { stocks: Mutex::default(), trimmed: Mutex::new(Instant::now()), advisor }
    }

    fn stocks(&self) -> MutexGuard<'_, BTreeMap<(String, String), Stock>> {
        // Every step leaves the table valid.
        self.stocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub fn waiting(&self, node: &str, image: &str) -> u64 {
        let key = (node.to_owned(), image.to_owned());
        self.stocks().get(&key).map_or(0, |stock| stock.ids.len() as u64)
    }

    /// How many wait on a node, of all images.
    pub fn all_waiting(&self, node: &str) -> u64 {
        let stocks = self.stocks();
        let own = stocks.iter().filter(|((other, _), _)| other == node);
        own.map(|(_, stock)| stock.ids.len() as u64).sum()
    }

    /// The ghosts of a node as candidates for eviction.
    pub fn idle(&self, node: &str) -> Vec<Idle> {
        let (mut stocks, now) = (self.stocks(), Instant::now());
        let own = stocks.iter_mut().filter(|((other, _), _)| other == node);
        let idle = own.flat_map(|(_, stock)| {
            let saves_us = stock.saved_us().unwrap_or(0);
            stock.arrivals.idle(&stock.ids, Worth { bytes: stock.bytes, saves_us }, now)
        });
        idle.collect()
    }

    /// The ids of the ghosts on a node.
    pub fn ids(&self, node: &str) -> BTreeSet<String> {
        let stocks = self.stocks();
        let here = stocks.iter().filter(|((other, _), _)| other == node);
        here.flat_map(|(_, stock)| stock.ids.iter().cloned()).collect()
    }

    /// Removes those of these ghosts that wait on a node; returns them and their bytes.
    pub fn withdraw(&self, node: &str, ids: &BTreeSet<&str>) -> (Vec<Ghost>, u64) {
        let (mut withdrawn, mut bytes) = (Vec::new(), 0);
        for ((other, _), stock) in &mut *self.stocks() {
            if other == node {
                let taken = withdraw(&mut stock.ids, ids);
                bytes += taken.len() as u64 * stock.bytes;
                withdrawn.extend(taken.into_iter().map(|id| (node.to_owned(), id)));
            }
        }
        (withdrawn, bytes)
    }

    /// Takes a waiting ghost. Also returns ghosts that are useless because the image has changed.
    pub fn take(&self, node: &str, wanted: &ImageSpec) -> (Option<String>, Vec<Ghost>) {
        let mut stocks = self.stocks();
        let key = (node.to_owned(), wanted.name.clone());
        let stock = stocks.entry(key).or_insert_with(|| Stock::new(wanted));
        let mut stale = Vec::new();
        if stock.wanted != *wanted {
            stale.extend(stock.ids.drain(..).map(|id| (node.to_owned(), id)));
            stock.bytes = guessed_bytes(wanted);
            stock.wanted = wanted.clone();
        }
        stock.arrivals.add(Instant::now());
        (stock.ids.pop(), stale)
    }

    /// Records the duration of a start, in an attached or an empty ghost.
    pub fn started(&self, node: &str, image: &str, took: Duration, was_attached: bool) {
        let key = (node.to_owned(), image.to_owned());
        let mut stocks = self.stocks();
        let Some(stock) = stocks.get_mut(&key) else { return };
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let seen = if was_attached { &mut stock.attached_us } else { &mut stock.empty_us };
        *seen = Some(seen.map_or(us, |before| (before * INERTIA + us) / (INERTIA + 1)));
    }

    /// How many ghosts of an image to make. They count as being made from now on.
    pub fn lacking(&self, node: &NodeFacts, image: &str, pool: Memory) -> u64 {
        let mut stocks = self.stocks();
        let key = (node.name.clone(), image.to_owned());
        let Some(stock) = stocks.get_mut(&key) else { return 0 };
        let wanted = stock.wanted(&self.advisor, node, pool);
        let lacking = wanted.saturating_sub(stock.ids.len() as u64 + stock.making);
        stock.making += lacking;
        lacking
    }

    /// Memory of a ghost of an image on a node, estimated if not measured.
    pub fn bytes(&self, node: &str, image: &ImageSpec) -> u64 {
        let stocks = self.stocks();
        let stock = stocks.get(&(node.to_owned(), image.name.clone()));
        stock
            .filter(|stock| stock.wanted == *image)
            .map_or_else(|| guessed_bytes(image), |stock| stock.bytes)
    }

    /// Adds a ghost that was made, with its bytes, or notes that making it failed. Returns the
    /// ghost if it is not wanted any more.
    pub fn made(
        &self,
        node: &str,
        image: &ImageSpec,
        ghost: Option<(String, u64)>,
    ) -> Option<Ghost> {
        let mut stocks = self.stocks();
        let stock = stocks.get_mut(&(node.to_owned(), image.name.clone()));
        let Some(stock) = stock else { return ghost.map(|(id, _)| (node.to_owned(), id)) };
        stock.making = stock.making.saturating_sub(1);
        let (id, bytes) = ghost?;
        if stock.wanted != *image {
            return Some((node.to_owned(), id));
        }
        stock.bytes = bytes;
        stock.ids.push(id);
        None
    }

    /// Removes surplus ghosts: at intervals, and at once where memory is short.
    pub fn surplus(&self, nodes: &[NodeFacts], pool: Memory) -> Vec<Ghost> {
        let is_time = {
            let mut trimmed = self.trimmed.lock().unwrap_or_else(PoisonError::into_inner);
            let is_time = trimmed.elapsed() >= TRIM;
            *trimmed = if is_time { Instant::now() } else { *trimmed };
            is_time
        };
        let is_short = |memory: Memory| memory.used_permille() >= PRESSURE_PERMILLE;
        let mut surplus = Vec::new();
        for ((name, _), stock) in &mut *self.stocks() {
            let Some(node) = nodes.iter().find(|node| node.name == *name) else { continue };
            // Without anything to decide, no decision is recorded.
            if stock.ids.is_empty() || !(is_time || is_short(node.memory) || is_short(pool)) {
                continue;
            }
            let wanted = stock.wanted(&self.advisor, node, pool);
            let kept = usize::try_from(wanted).unwrap_or(usize::MAX).min(stock.ids.len());
            surplus.extend(stock.ids.drain(kept..).map(|id| (name.clone(), id)));
        }
        surplus
    }

    /// Forgets a removed image; returns its ghosts, which are useless.
    pub fn forget_image(&self, image: &str) -> Vec<Ghost> {
        let mut useless = Vec::new();
        self.stocks().retain(|(node, name), stock| {
            let is_it = name == image;
            if is_it {
                useless.extend(stock.ids.drain(..).map(|id| (node.clone(), id)));
            }
            !is_it
        });
        useless
    }

    /// Forgets the ghosts of a node, which are gone.
    pub fn forget_node(&self, node: &str) {
        self.stocks().retain(|(other, _), _| other != node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Memory = Memory { used_bytes: 0, budget_bytes: 1 << 40 };

    fn attached() -> Attached {
        Attached::new(Arc::new(Advisor::new(farfork_policy::Settings::default(), None).unwrap()))
    }

    fn wanted(cid: u128) -> ImageSpec {
        let (name, tiering) = ("guest/f".to_owned(), Tiering::Mow);
        ImageSpec { name, cid: format!("{cid:032x}").parse().unwrap(), tiering, memory_mb: 128 }
    }

    fn node(memory: Memory) -> NodeFacts {
        NodeFacts { name: "a".to_owned(), memory, ..NodeFacts::default() }
    }

    /// Three starts in empty ghosts at once.
    fn used(attached: &Attached, image: &ImageSpec) {
        for _ in 0..3 {
            assert_eq!(attached.take("a", image).0, None);
            attached.started("a", &image.name, Duration::from_millis(100), false);
        }
    }

    fn made(attached: &Attached, image: &ImageSpec, id: &str) -> Option<Ghost> {
        attached.made("a", image, Some((id.to_owned(), 4 << 20)))
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_wait_as_the_last_burst_if_that_saves_enough() {
        let (attached, f) = (attached(), wanted(1));
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0, "it was never started");
        attached.take("a", &f);
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0, "the saving is not known");
        used(&attached, &f);
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 4);
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0, "they are being made");
        assert_eq!((made(&attached, &f, "x"), made(&attached, &f, "y")), (None, None));
        assert_eq!(attached.made("a", &f, None), None);
        assert_eq!(attached.waiting("a", "guest/f"), 2);
        assert_eq!(attached.take("a", &f), (Some("y".to_owned()), vec![]));
        assert_eq!(attached.take("b", &f).0, None, "it is another node's");
        // One is being made, one waits, and five were taken at once.
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 3);
        // If they save nothing, none are made.
        (0..40).for_each(|_| attached.started("a", "guest/f", Duration::from_secs(1), true));
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ghosts_can_be_evicted_by_their_worth() {
        let (attached, f) = (attached(), wanted(1));
        used(&attached, &f);
        attached.lacking(&node(FREE), "guest/f", FREE);
        ["x", "y"].iter().for_each(|id| assert_eq!(made(&attached, &f, id), None));
        let idle = |id: &str| Idle {
            id: id.to_owned(),
            bytes: 4 << 20,
            saves_us: 100_000 - GUESSED_WAKE_US,
            uses_per_hour: 2,
        };
        assert_eq!((attached.idle("a"), attached.idle("b")), (vec![idle("x"), idle("y")], vec![]));
        let withdraw = |node| attached.withdraw(node, &BTreeSet::from(["y", "12"]));
        assert_eq!(withdraw("b"), (vec![], 0));
        assert_eq!(withdraw("a"), (vec![("a".to_owned(), "y".to_owned())], 4 << 20));
        assert_eq!((withdraw("a"), attached.waiting("a", "guest/f")), ((vec![], 0), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn ghosts_with_an_old_image_are_useless() {
        let (attached, f) = (attached(), wanted(1));
        used(&attached, &f);
        attached.lacking(&node(FREE), "guest/f", FREE);
        made(&attached, &f, "x");
        let ghost = |id: &str| ("a".to_owned(), id.to_owned());
        assert_eq!((attached.all_waiting("a"), attached.all_waiting("b")), (1, 0));
        assert_eq!(attached.take("a", &wanted(2)), (None, vec![ghost("x")]));
        assert_eq!(made(&attached, &f, "late"), Some(ghost("late")), "it has the old one");
        assert_eq!(made(&attached, &wanted(2), "new"), None);
        assert_eq!(attached.forget_image("guest/g"), []);
        assert_eq!(attached.forget_image("guest/f"), [ghost("new")]);
        assert_eq!(made(&attached, &wanted(2), "later"), Some(ghost("later")));
    }

    #[tokio::test(start_paused = true)]
    async fn surplus_ghosts_go_after_a_while_and_at_once_where_memory_is_short() {
        let (attached, f) = (attached(), wanted(1));
        used(&attached, &f);
        attached.lacking(&node(FREE), "guest/f", FREE);
        let make_all = || {
            for id in ["x", "y", "z"] {
                assert_eq!(made(&attached, &f, id), None);
            }
        };
        make_all();
        let full = Memory { used_bytes: 95, budget_bytes: 100 };
        assert_eq!(attached.surplus(&[node(FREE)], FREE), []);
        assert_eq!(attached.surplus(&[], full), [], "its node does not answer");
        assert_eq!(
            attached.surplus(&[node(FREE)], full).len(),
            3,
            "pinned images could not be removed"
        );
        make_all();
        assert_eq!(attached.surplus(&[node(full)], FREE).len(), 3);
        make_all();
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(attached.surplus(&[node(FREE)], FREE).len(), 3, "the burst was long ago");
        made(&attached, &f, "x");
        attached.forget_node("a");
        assert_eq!(attached.waiting("a", "guest/f"), 0);
    }
}
