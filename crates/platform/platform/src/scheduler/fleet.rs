//! All instances, as those see them who need room.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_policy::admission::Idle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::Name;

/// After so long the kernel has taken back, and the platform has seen, what an instance held that has
/// ended or has come to have nothing to do.
const SETTLED: Duration = Duration::from_secs(3);
/// Mostly the kernel has taken it back, and the platform has seen it, after so long: until then what has ended
/// held is neither free nor anything that others would have to make room for.
const LEAVING: Duration = Duration::from_millis(200);

/// All instances.
#[derive(Debug, Default)]
pub struct Fleet {
    state: Mutex<State>,
    /// Rung when an instance has ended or has nothing to do.
    pub room: Notify,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    /// When an instance of a node has ended last, or has come to have nothing to do.
    freed: BTreeMap<String, Instant>,
    /// What is ending that is no instance, by node and number.
    leaving: BTreeMap<(String, u64), u64>,
    /// What has ended of late: its node, its bytes, and when.
    left: Vec<(String, u64, Instant)>,
    next: u64,
}

/// What an instance does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Something.
    Busy,
    /// Nothing; with it, calls of its function in the last hour for each of its idle instances.
    Idle { calls_per_hour: u64 },
    /// Nothing, and since then it is to end.
    Ending(Instant),
}

struct Entry {
    function: (Name, Name),
    node: String,
    bytes: u64,
    /// What it was last known to hold, in bytes.
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
    /// Whether it has something to do. What is told to end and does not is as good as at work.
    fn is_busy(self) -> bool {
        match self {
            Work::Busy => true,
            Work::Idle { .. } => false,
            Work::Ending(since) => since.elapsed() >= LEAVING,
        }
    }
}

impl State {
    /// What is told to end, or has ended of late: bytes that are not free yet.
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

    /// Something has ended.
    fn freed(&mut self, node: &str, bytes: u64) {
        let now = Instant::now();
        self.freed.insert(node.to_owned(), now);
        if bytes > 0 {
            self.left.retain(|(_, _, since)| since.elapsed() < LEAVING);
            self.left.push((node.to_owned(), bytes, now));
        }
    }
}

/// An instance that is added.
#[derive(Debug)]
pub struct NewInstance<'a> {
    /// Its name.
    pub id: u64,
    /// The namespace and name of its action.
    pub function: (Name, Name),
    /// The node that it is on.
    pub node: &'a str,
    /// What it is expected to take of the node's memory.
    pub bytes: u64,
    /// Microseconds that starting it took.
    pub start_us: u64,
}

/// What is on a node, as those see it who need room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// What has nothing to do.
    pub idle: Vec<Idle>,
    /// How many instances have something to do.
    pub busy: u64,
    /// What those take that were told to end, as far as the kernel may still count it, in bytes.
    pub leaving_bytes: u64,
    /// Whether more may be free in a moment, as [`AdmissionFacts::is_settling`] has it.
    ///
    /// [`AdmissionFacts::is_settling`]: farfork_policy::admission::AdmissionFacts::is_settling
    pub is_settling: bool,
}

/// An instance, as those see it who count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceInfo {
    /// Its name.
    pub id: u64,
    /// The namespace and name of its action.
    pub function: (Name, Name),
    /// The node that it is on.
    pub node: String,
    /// Whether it has nothing to do.
    pub is_idle: bool,
}

/// An instance's place among all, given up when this is dropped.
#[derive(Debug)]
pub struct FleetSlot {
    fleet: Arc<Fleet>,
    id: u64,
    /// The node that it is on.
    pub node: String,
}

/// What ends that is no instance.
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

    /// Adds an instance, which has something to do.
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
                id: id.to_string(),
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

    /// Has the functions of these instances end them, if they still have nothing to do. Names of what is
    /// no instance are nothing to this.
    pub fn evict(&self, ids: &[String]) {
        let mut state = self.state();
        for id in ids {
            let entry = id.parse().ok().and_then(|id: u64| state.entries.get_mut(&id));
            if let Some(entry) = entry {
                if entry.work != Work::Busy {
                    entry.work = Work::Ending(Instant::now());
                }
                (entry.evict)();
            }
        }
    }

    /// Something else than an instance is told to end, and has ended when this is dropped.
    pub fn leaves(self: &Arc<Self>, node: &str, bytes: u64) -> Leaving {
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
    /// It has nothing to do, or has something again; what it takes, as far as that is known.
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
    async fn only_those_that_have_nothing_to_do_make_room() {
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
        let idle = Idle { id: "1".to_owned(), bytes: 50, saves_us: 7, uses_per_hour: 9 };
        assert_eq!(fleet.on("a"), Occupancy { idle: vec![idle], ..busy(1, true) });
        assert_eq!(fleet.on("b"), busy(1, false));
        let idle = fleet.instances().into_iter().filter(|instance| instance.is_idle);
        assert_eq!(
            idle.map(|instance| (instance.id, instance.node)).collect::<Vec<_>>(),
            [(1, "a".to_owned())]
        );
        first.set_idle(None, None);
        assert_eq!(fleet.on("a"), busy(2, true));
        fleet.evict(&["2".to_owned(), "99".to_owned(), "x".to_owned()]);
        assert_eq!(evicted.load(Ordering::Relaxed), 1 << 8);
        assert_eq!(fleet.on("a"), busy(2, true), "it has something to do");
        drop(second);
        fleet.evict(&["2".to_owned()]);
        assert_eq!((fleet.on("a").busy, evicted.load(Ordering::Relaxed)), (1, 1 << 8));
        drop((first, other));
        assert_eq!(fleet.on("b"), busy(0, true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_to_end_is_leaving_for_a_moment() {
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
        fleet.evict(&["1".to_owned()]);
        let left: Vec<String> = fleet.on("a").idle.into_iter().map(|idle| idle.id).collect();
        assert_eq!((leaving(), left), (30, vec!["2".to_owned(), "3".to_owned()]));
        drop(first);
        let (ghost, other) = (fleet.leaves("a", 5), fleet.leaves("b", 1000));
        assert_eq!((leaving(), fleet.on("b").is_settling), (35, true));
        tokio::time::advance(LEAVING).await;
        assert_eq!((leaving(), fleet.on("b").leaving_bytes), (5, 1000), "they take their time");
        drop((ghost, other));
        assert_eq!(leaving(), 5, "it is counted yet");
        tokio::time::advance(LEAVING).await;
        assert_eq!((leaving(), fleet.on("b").is_settling), (0, true));
        tokio::time::advance(SETTLED).await;
        assert_eq!(fleet.on("b"), Occupancy::default());
        fleet.evict(&["2".to_owned(), "3".to_owned()]);
        second.set_idle(None, None);
        assert_eq!((leaving(), fleet.on("a").busy), (30, 1), "a call came first");
        tokio::time::advance(LEAVING).await;
        assert_eq!((leaving(), fleet.on("a").busy), (0, 2), "it does not end");
        drop((second, third));
        assert_eq!(leaving(), 60, "what it held at work, too");
    }
}
