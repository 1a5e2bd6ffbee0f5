//! All instances, and what can be evicted for others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::Name;

/// After this long the kernel has certainly freed, and the platform has measured, what an instance
/// held that ended or became idle.
const SETTLED: Duration = Duration::from_secs(3);
/// After this long that is mostly so. Until then memory of ended instances is not free, but nothing
/// else needs to be evicted for it either.
const LEAVING: Duration = Duration::from_millis(200);

/// All instances.
#[derive(Debug, Default)]
pub struct Fleet {
    state: Mutex<State>,
    /// Notified when an instance has ended or become idle.
    pub room: Notify,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    /// When an instance of a node last ended or became idle.
    freed: BTreeMap<String, Instant>,
    /// Bytes of ghosts that are ending, by node and number.
    leaving: BTreeMap<(String, u64), u64>,
    /// What has ended recently: node, bytes and time.
    left: Vec<(String, u64, Instant)>,
    next: u64,
}

/// What an instance is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// It serves a call.
    Busy,
    /// It is idle; with its share of its function's calls in the last hour.
    Idle { calls_per_hour: u64 },
    /// It is idle, and was asked at this time to end.
    Ending(Instant),
}

struct Entry {
    function: (Name, Name),
    node: String,
    bytes: u64,
    /// Bytes that it was last seen to hold.
    held_bytes: Option<u64>,
    start_us: u64,
    work: Work,
    /// Asks its function to end it.
    evict: Box<dyn Fn() + Send>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("node", &self.node).field("work", &self.work).finish()
    }
}

impl Work {
    /// Whether it is busy. An instance that was asked to end and has not counts as busy.
    fn is_busy(self) -> bool {
        match self {
            Work::Busy => true,
            Work::Idle { .. } => false,
            Work::Ending(since) => since.elapsed() >= LEAVING,
        }
    }
}

impl State {
    /// Bytes that are not free yet, of what is ending or has ended recently.
    fn leaving_bytes(&self, node: &str) -> u64 {
        let is_late = |since: &Instant| since.elapsed() < LEAVING;
        let left = self.left.iter().filter(|(of, _, since)| of == node && is_late(since));
        let left = left.map(|(_, bytes, _)| bytes);
        let others = self.leaving.iter().filter(|((of, _), _)| of == node).map(|(_, bytes)| bytes);
        let is_ending = |entry: &&Entry| {
            entry.node == node && matches!(entry.work, Work::Ending(_)) && !entry.work.is_busy()
        };
        let ending = self.entries.values().filter(is_ending).filter_map(|entry| entry.held_bytes);
        left.chain(others).copied().chain(ending).sum()
    }

    /// Notes that something has ended or become idle.
    fn freed(&mut self, node: &str, bytes: u64) {
        let now = Instant::now();
        self.freed.insert(node.to_owned(), now);
        if bytes > 0 {
            self.left.retain(|(_, _, since)| since.elapsed() < LEAVING);
            self.left.push((node.to_owned(), bytes, now));
        }
    }
}

/// An instance to be added.
#[derive(Debug)]
pub struct NewInstance<'a> {
    /// Its name.
    pub id: u64,
    /// The namespace and name of its action.
    pub function: (Name, Name),
    /// The node that it is on.
    pub node: &'a str,
    /// Bytes that it is expected to take of the node's memory.
    pub bytes: u64,
    /// Microseconds that starting it took.
    pub start_us: u64,
}

/// What is on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// What is idle and can be evicted.
    pub idle: Vec<Idle>,
    /// Number of busy instances.
    pub busy: u64,
    /// Bytes of what is ending, as far as the kernel may still count them.
    pub leaving_bytes: u64,
    /// Whether more may be free in a moment; see [`AdmissionFacts::is_settling`].
    ///
    /// [`AdmissionFacts::is_settling`]: farfork_policy::admission::AdmissionFacts::is_settling
    pub is_settling: bool,
}

/// An instance, as metrics count it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceInfo {
    /// Its name.
    pub id: u64,
    /// The namespace and name of its action.
    pub function: (Name, Name),
    /// The node that it is on.
    pub node: String,
    /// Whether it is idle.
    pub is_idle: bool,
}

/// An instance's entry in the fleet, removed when this is dropped.
#[derive(Debug)]
pub struct FleetSlot {
    fleet: Arc<Fleet>,
    id: u64,
    /// The node that it is on.
    pub node: String,
}

/// Ghosts that are ending.
#[derive(Debug)]
pub struct Leaving {
    fleet: Arc<Fleet>,
    key: (String, u64),
}

impl Fleet {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the tables valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an instance, which is busy at first.
    pub fn add(
        self: &Arc<Fleet>,
        new: NewInstance<'_>,
        evict: impl Fn() + Send + 'static,
    ) -> FleetSlot {
        let NewInstance { id, function, node, bytes, start_us } = new;
        let (node, evict) = (node.to_owned(), Box::new(evict));
        let place = FleetSlot { fleet: Arc::clone(self), id, node: node.clone() };
        let (held_bytes, work) = (None, Work::Busy);
        let entry = Entry { function, node, bytes, held_bytes, start_us, work, evict };
        self.state().entries.insert(id, entry);
        place
    }

    /// All instances that have started.
    pub fn instances(&self) -> Vec<InstanceInfo> {
        let instance = |(id, entry): (&u64, &Entry)| InstanceInfo {
            id: *id,
            function: entry.function.clone(),
            node: entry.node.clone(),
            is_idle: entry.work != Work::Busy,
        };
        self.state().entries.iter().map(instance).collect()
    }

    /// The instances of a node.
    pub fn on(&self, node: &str) -> Occupancy {
        let state = self.state();
        let leaving_bytes = state.leaving_bytes(node);
        let here = || state.entries.iter().filter(|(_, entry)| entry.node == node);
        let idle = here().filter_map(|(id, entry)| match entry.work {
            Work::Idle { calls_per_hour } => Some(Idle {
                id: OccupantId::instance(*id),
                bytes: entry.bytes,
                saves_us: entry.start_us,
                uses_per_hour: calls_per_hour,
            }),
            Work::Busy | Work::Ending(_) => None,
        });
        let busy = here().filter(|(_, entry)| entry.work.is_busy()).count() as u64;
        let has_freed = state.freed.get(node).is_some_and(|freed| freed.elapsed() < SETTLED);
        let is_settling = has_freed || leaving_bytes > 0;
        Occupancy { idle: idle.collect(), busy, leaving_bytes, is_settling }
    }

    /// Asks the functions of these instances to end them if they are still idle. Ignores ghosts.
    pub fn evict(&self, ids: &[OccupantId]) {
        let mut state = self.state();
        for id in ids {
            let entry = id.as_instance().and_then(|id| state.entries.get_mut(&id));
            if let Some(entry) = entry {
                if entry.work != Work::Busy {
                    entry.work = Work::Ending(Instant::now());
                }
                (entry.evict)();
            }
        }
    }

    /// Counts ghosts as ending, until the returned value is dropped.
    pub fn leaving(self: &Arc<Self>, node: &str, bytes: u64) -> Leaving {
        let mut state = self.state();
        state.next += 1;
        let key = (node.to_owned(), state.next);
        state.leaving.insert(key.clone(), bytes);
        Leaving { fleet: Arc::clone(self), key }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.fleet.state();
        let bytes = state.leaving.remove(&self.key).unwrap_or(0);
        state.freed(&self.key.0, bytes);
        drop(state);
        self.fleet.room.notify_waiters();
    }
}

impl FleetSlot {
    /// Marks the instance idle or busy, with the bytes that it holds if known.
    pub fn set_idle(&self, calls_per_hour: Option<u64>, bytes: Option<u64>) {
        let mut state = self.fleet.state();
        let work =
            calls_per_hour.map_or(Work::Busy, |calls_per_hour| Work::Idle { calls_per_hour });
        if let Some(entry) = state.entries.get_mut(&self.id) {
            entry.work = work;
            entry.held_bytes = bytes.or(entry.held_bytes);
            entry.bytes = bytes.unwrap_or(entry.bytes);
        }
        if work != Work::Busy {
            state.freed(&self.node, 0);
            drop(state);
            self.fleet.room.notify_waiters();
        }
    }
}

impl Drop for FleetSlot {
    fn drop(&mut self) {
        let mut state = self.fleet.state();
        let entry = state.entries.remove(&self.id);
        state.freed(&self.node, entry.and_then(|entry| entry.held_bytes).unwrap_or(0));
        drop(state);
        self.fleet.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn only_idle_instances_can_be_evicted() {
        let fleet = Arc::new(Fleet::default());
        let evicted = Arc::new(AtomicU32::new(0));
        let place = |id: u64, node: &str| {
            let evicted = evicted.clone();
            let evict = move || {
                evicted.fetch_add(1 << (8 * (id - 1)), Ordering::Relaxed);
            };
            let function = ["guest", "a"].map(|name| name.parse().unwrap()).into();
            fleet.add(NewInstance { id, function, node, bytes: 100, start_us: 7 }, evict)
        };
        let (first, second, other) = (place(1, "a"), place(2, "a"), place(3, "b"));
        let busy = |busy, is_settling| Occupancy { busy, is_settling, ..Occupancy::default() };
        assert_eq!(fleet.on("a"), busy(2, false));
        first.set_idle(Some(9), Some(50));
        let idle = Idle { id: OccupantId::instance(1), bytes: 50, saves_us: 7, uses_per_hour: 9 };
        assert_eq!(fleet.on("a"), Occupancy { idle: vec![idle], ..busy(1, true) });
        assert_eq!(fleet.on("b"), busy(1, false));
        let idle = fleet.instances().into_iter().filter(|instance| instance.is_idle);
        assert_eq!(
            idle.map(|instance| (instance.id, instance.node)).collect::<Vec<_>>(),
            [(1, "a".to_owned())]
        );
        first.set_idle(None, None);
        assert_eq!(fleet.on("a"), busy(2, true));
        fleet.evict(&["2", "99", "x"].map(OccupantId::from));
        assert_eq!(evicted.load(Ordering::Relaxed), 1 << 8);
        assert_eq!(fleet.on("a"), busy(2, true), "it is busy");
        drop(second);
        fleet.evict(&[OccupantId::instance(2)]);
        assert_eq!((fleet.on("a").busy, evicted.load(Ordering::Relaxed)), (1, 1 << 8));
        drop((first, other));
        assert_eq!(fleet.on("b"), busy(0, true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_to_end_counts_as_leaving_for_a_moment() {
        let fleet = Arc::new(Fleet::default());
        let place = |id: u64| {
            let function = ["guest", "a"].map(|name| name.parse().unwrap()).into();
            let place = NewInstance { id, function, node: "a", bytes: 100, start_us: 7 };
            let place = fleet.add(place, || ());
            place.set_idle(Some(1), Some(30));
            place
        };
        let leaving = || fleet.on("a").leaving_bytes;
        let (first, second, third) = (place(1), place(2), place(3));
        assert_eq!(leaving(), 0);
        fleet.evict(&[OccupantId::instance(1)]);
        let left: Vec<OccupantId> = fleet.on("a").idle.into_iter().map(|idle| idle.id).collect();
        assert_eq!((leaving(), left), (30, [2, 3].map(OccupantId::instance).to_vec()));
        drop(first);
        let (ghost, other) = (fleet.leaving("a", 5), fleet.leaving("b", 1000));
        assert_eq!((leaving(), fleet.on("b").is_settling), (35, true));
        tokio::time::advance(LEAVING).await;
        assert_eq!(
            (leaving(), fleet.on("b").leaving_bytes),
            (5, 1000),
            "ghosts leave until they have ended"
        );
        drop((ghost, other));
        assert_eq!(leaving(), 5, "it is still counted");
        tokio::time::advance(LEAVING).await;
        assert_eq!((leaving(), fleet.on("b").is_settling), (0, true));
        tokio::time::advance(SETTLED).await;
        assert_eq!(fleet.on("b"), Occupancy::default());
        fleet.evict(&[2, 3].map(OccupantId::instance));
        second.set_idle(None, None);
        assert_eq!((leaving(), fleet.on("a").busy), (30, 1), "a call came first");
        tokio::time::advance(LEAVING).await;
        assert_eq!((leaving(), fleet.on("a").busy), (0, 2), "it does not end");
        drop((second, third));
        assert_eq!(leaving(), 60, "including what it held while busy");
    }
}
