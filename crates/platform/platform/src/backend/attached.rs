//! Ghosts that have a function's image already, by node and image: their clones wait for their first
//! instruction. How many there are is decided by what they save.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::ghosts::AttachedFacts;
use farfork_policy::placement::NodeFacts;
use farfork_types::{Cid, Tiering};
use tokio::time::{Duration, Instant};

use super::arrivals::ArrivalWindow;
use super::ghosts::withdraw;
use crate::scheduler::Advisor;

/// What waking one takes, a guess until one was woken.
const GUESSED_WAKE_US: u64 = 100;
/// What one takes, a guess until one was made: that of a small function.
const GUESSED_BYTES: u64 = 3 << 20;

/// What a ghost takes, until one was made.
fn guessed_bytes(wanted: &ImageSpec) -> u64 {
    match wanted.tiering {
        // It has all of the image's memory.
        Tiering::Copy => wanted.memory_mb << 20,
        _ => GUESSED_BYTES,
    }
}

/// How often it is looked at whether too many wait where there is room.
const TRIM: Duration = Duration::from_secs(30);
/// Without delay where more is used, in thousandths: by default, none are to wait there.
const PRESSURE_PERMILLE: u64 = 900;
/// The weight of what was seen before, against one for the last.
const INERTIA: u64 = 3;

/// An image as ghosts have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// Its name.
    pub name: String,
    /// It.
    pub cid: Cid,
    /// When its pages become local.
    pub tiering: Tiering,
    /// Limit of an instance's memory, in megabytes.
    pub memory_mb: u64,
}

/// A ghost: its node and its id.
pub type Ghost = (String, String);

/// Ghosts with images that wait.
#[derive(Debug)]
pub struct Attached {
    /// By node and name of the image.
    stocks: Mutex<BTreeMap<(String, String), Stock>>,
    trimmed: Mutex<Instant>,
    advisor: Arc<Advisor>,
}

#[derive(Debug)]
struct Stock {
    wanted: ImageSpec,
    ids: Vec<String>,
    /// Ghosts that are being made.
    making: u64,
    arrivals: ArrivalWindow,
    /// What starts took in empty ghosts, and in such as these.
    empty_us: Option<u64>,
    attached_us: Option<u64>,
    /// What one takes.
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

    /// What a start in one saves, as far as that is known, in microseconds.
    fn saved_us(&self) -> Option<u64> {
        let attached_us = self.attached_us.unwrap_or(GUESSED_WAKE_US);
        self.empty_us.map(|empty_us| empty_us.saturating_sub(attached_us))
    }

    /// How many should wait; none before it is known what they would save.
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
    /// None wait yet.
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

    /// How many wait on a node, with any image.
    pub fn all_waiting(&self, node: &str) -> u64 {
        let stocks = self.stocks();
        let own = stocks.iter().filter(|((of, _), _)| of == node);
        own.map(|(_, stock)| stock.ids.len() as u64).sum()
    }

    /// Those that wait on a node, as those see them who need room.
    pub fn idle(&self, node: &str) -> Vec<Idle> {
        let (mut stocks, now) = (self.stocks(), Instant::now());
        let own = stocks.iter_mut().filter(|((of, _), _)| of == node);
        let idle = own.flat_map(|(_, stock)| {
            let worth = (stock.bytes, stock.saved_us().unwrap_or(0));
            stock.arrivals.idle(&stock.ids, worth, now)
        });
        idle.collect()
    }

    /// The names of those that wait on a node.
    pub fn ids(&self, node: &str) -> BTreeSet<String> {
        let stocks = self.stocks();
        let here = stocks.iter().filter(|((of, _), _)| of == node);
        here.flat_map(|(_, stock)| stock.ids.iter().cloned()).collect()
    }

    /// Takes out those of these that wait on a node; with it, what they take, in bytes.
    pub fn withdraw(&self, node: &str, ids: &BTreeSet<&str>) -> (Vec<Ghost>, u64) {
        let (mut withdrawn, mut bytes) = (Vec::new(), 0);
        for ((of, _), stock) in &mut *self.stocks() {
            if of == node {
                bytes += withdraw(&mut stock.ids, ids, (node, &mut withdrawn)) * stock.bytes;
            }
        }
        (withdrawn, bytes)
    }

    /// Takes one that waits. With it, those that have become of no use, as the image is another.
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

    /// A clone was started, in a ghost that had the image or in an empty one.
    pub fn started(&self, node: &str, image: &str, took: Duration, was_attached: bool) {
        let key = (node.to_owned(), image.to_owned());
        let mut stocks = self.stocks();
        let Some(stock) = stocks.get_mut(&key) else { return };
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let seen = if was_attached { &mut stock.attached_us } else { &mut stock.empty_us };
        *seen = Some(seen.map_or(us, |before| (before * INERTIA + us) / (INERTIA + 1)));
    }

    /// How many are to be made of an image, which count as being made from here on.
    pub fn lacking(&self, node: &NodeFacts, image: &str, pool: Memory) -> u64 {
        let mut stocks = self.stocks();
        let key = (node.name.clone(), image.to_owned());
        let Some(stock) = stocks.get_mut(&key) else { return 0 };
        let wanted = stock.wanted(&self.advisor, node, pool);
        let lacking = wanted.saturating_sub(stock.ids.len() as u64 + stock.making);
        stock.making += lacking;
        lacking
    }

    /// What one of an image takes on a node, as far as that is known.
    pub fn bytes(&self, node: &str, of: &ImageSpec) -> u64 {
        let stocks = self.stocks();
        let stock = stocks.get(&(node.to_owned(), of.name.clone()));
        stock
            .filter(|stock| stock.wanted == *of)
            .map_or_else(|| guessed_bytes(of), |stock| stock.bytes)
    }

    /// One was made, or not: its id, and what it takes in bytes. It is given back if nobody wants such
    /// a one any more.
    pub fn made(&self, node: &str, of: &ImageSpec, ghost: Option<(String, u64)>) -> Option<Ghost> {
        let mut stocks = self.stocks();
        let stock = stocks.get_mut(&(node.to_owned(), of.name.clone()));
        let Some(stock) = stock else { return ghost.map(|(id, _)| (node.to_owned(), id)) };
        stock.making = stock.making.saturating_sub(1);
        let (id, bytes) = ghost?;
        if stock.wanted != *of {
            return Some((node.to_owned(), id));
        }
        stock.bytes = bytes;
        stock.ids.push(id);
        None
    }

    /// Takes out those that are more than should wait: now and then, and at once where room is short.
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
            // Nothing to decide is nothing to keep on record.
            if stock.ids.is_empty() || !(is_time || is_short(node.memory) || is_short(pool)) {
                continue;
            }
            let wanted = stock.wanted(&self.advisor, node, pool);
            let kept = usize::try_from(wanted).unwrap_or(usize::MAX).min(stock.ids.len());
            surplus.extend(stock.ids.drain(kept..).map(|id| (name.clone(), id)));
        }
        surplus
    }

    /// An image is no more: those that have it, which are of no use.
    pub fn forget_image(&self, image: &str) -> Vec<Ghost> {
        let mut theirs = Vec::new();
        self.stocks().retain(|(node, name), stock| {
            let is_it = name == image;
            if is_it {
                theirs.extend(stock.ids.drain(..).map(|id| (node.clone(), id)));
            }
            !is_it
        });
        theirs
    }

    /// Those of a node have gone.
    pub fn forget_node(&self, node: &str) {
        self.stocks().retain(|(of, _), _| of != node);
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

    /// Many starts in empty ghosts, three at a time.
    fn used(attached: &Attached, of: &ImageSpec) {
        for _ in 0..3 {
            assert_eq!(attached.take("a", of).0, None);
            attached.started("a", &of.name, Duration::from_millis(100), false);
        }
    }

    fn made(attached: &Attached, of: &ImageSpec, id: &str) -> Option<Ghost> {
        attached.made("a", of, Some((id.to_owned(), 4 << 20)))
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_wait_as_started_at_once_if_that_saves_enough() {
        let (attached, f) = (attached(), wanted(1));
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0, "nobody has started it");
        attached.take("a", &f);
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0, "what it saves is not known");
        used(&attached, &f);
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 4);
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0, "they are being made");
        assert_eq!((made(&attached, &f, "x"), made(&attached, &f, "y")), (None, None));
        assert_eq!(attached.made("a", &f, None), None);
        assert_eq!(attached.waiting("a", "guest/f"), 2);
        assert_eq!(attached.take("a", &f), (Some("y".to_owned()), vec![]));
        assert_eq!(attached.take("b", &f).0, None, "it is another node's");
        // One is made yet, one waits, and five were taken at once.
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 3);
        // If they save nothing, none are made.
        (0..40).for_each(|_| attached.started("a", "guest/f", Duration::from_secs(1), true));
        assert_eq!(attached.lacking(&node(FREE), "guest/f", FREE), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_need_room_see_what_each_is_worth_and_may_have_it_go() {
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
    async fn those_with_another_image_go() {
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
    async fn what_is_too_much_goes_after_a_while_and_at_once_where_room_is_short() {
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
        assert_eq!(attached.surplus(&[node(FREE)], full).len(), 3, "images have to be free to go");
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
