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
/// After so long what was told to end has ended, and its node's memory was measured again: until then what
/// it held is neither free nor anything that others would have to make room for.
const LEAVING: Duration = Duration::from_millis(300);

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
    /// What has ended of late: its node, its bytes, and when.
    left: Vec<(String, u64, Instant)>,
}

/// What an instance does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Something.
    Some,
    /// Nothing; with it, calls of its function in the last hour for each of its idle instances.
    None { calls_per_hour: u64 },
    /// Nothing, and since then it is to end.
    Ending(Instant),
}

struct Entry {
    function: (Name, Name),
    node: String,
    bytes: u64,
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

impl State {
    /// What has nothing to do and is told to end, or has ended: bytes that are not free yet.
    fn leaving_bytes(&mut self, node: &str) -> u64 {
        let is_late = |since: &Instant| since.elapsed() < LEAVING;
        self.left.retain(|(_, _, since)| is_late(since));
        let left = self.left.iter().filter(|(of, _, _)| of == node).map(|(_, bytes, _)| bytes);
        let ending = self.entries.values().filter(|entry| {
            entry.node == node && matches!(&entry.work, Work::Ending(since) if is_late(since))
        });
        left.chain(ending.map(|entry| &entry.bytes)).sum()
    }
}

/// An instance that is added.
#[derive(Debug)]
pub struct Newcomer<'a> {
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
pub struct Neighbours {
    /// Instances that have nothing to do.
    pub idle: Vec<Idle>,
    /// How many have something to do.
    pub busy: u64,
    /// What those take that were told to end, as far as the kernel may still count it, in bytes.
    pub leaving_bytes: u64,
    /// Whether the kernel may still count what one of them, or one that has ended, held until now.
    pub is_settling: bool,
}

/// An instance, as those see it who count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
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
pub struct Place {
    fleet: Arc<Fleet>,
    id: u64,
    /// The node that it is on.
    pub node: String,
}

impl Fleet {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the tables valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an instance, which has something to do.
    pub fn add(
        self: &Arc<Fleet>,
        newcomer: Newcomer<'_>,
        evict: impl Fn() + Send + 'static,
    ) -> Place {
        let Newcomer { id, function, node, bytes, start_us } = newcomer;
        let (node, evict) = (node.to_owned(), Box::new(evict));
        let place = Place { fleet: Arc::clone(self), id, node: node.clone() };
        let entry = Entry { function, node, bytes, start_us, work: Work::Some, evict };
        self.state().entries.insert(id, entry);
        place
    }

    /// All instances that have started.
    pub fn residents(&self) -> Vec<Resident> {
        let resident = |(id, entry): (&u64, &Entry)| Resident {
            id: *id,
            function: entry.function.clone(),
            node: entry.node.clone(),
            is_idle: entry.work != Work::Some,
        };
        self.state().entries.iter().map(resident).collect()
    }

    /// The instances of a node.
    pub fn on(&self, node: &str) -> Neighbours {
        let mut state = self.state();
        let leaving_bytes = state.leaving_bytes(node);
        let here = || state.entries.iter().filter(|(_, entry)| entry.node == node);
        let idle = here().filter_map(|(id, entry)| match entry.work {
            Work::None { calls_per_hour } => Some(Idle {
                id: id.to_string(),
                bytes: entry.bytes,
                saves_us: entry.start_us,
                uses_per_hour: calls_per_hour,
            }),
            Work::Some | Work::Ending(_) => None,
        });
        let busy = here().filter(|(_, entry)| entry.work == Work::Some).count() as u64;
        let has_freed = state.freed.get(node).is_some_and(|freed| freed.elapsed() < SETTLED);
        let is_settling = has_freed || leaving_bytes > 0;
        Neighbours { idle: idle.collect(), busy, leaving_bytes, is_settling }
    }

    /// Has the functions of these instances end them, if they still have nothing to do. Names of what is
    /// no instance are nothing to this.
    pub fn evict(&self, ids: &[String]) {
        let mut state = self.state();
        for id in ids {
            let entry = id.parse().ok().and_then(|id: u64| state.entries.get_mut(&id));
            if let Some(entry) = entry {
                if entry.work != Work::Some {
                    entry.work = Work::Ending(Instant::now());
                }
                (entry.evict)();
            }
        }
    }

    /// Something else than an instance was told to end.
    pub fn leaves(&self, node: &str, bytes: u64) {
        self.state().left.push((node.to_owned(), bytes, Instant::now()));
    }
}

impl Place {
    /// It has nothing to do, or has something again; what it takes, as far as that is known.
    pub fn set_idle(&self, calls_per_hour: Option<u64>, bytes: Option<u64>) {
        let mut state = self.fleet.state();
        let work =
            calls_per_hour.map_or(Work::Some, |calls_per_hour| Work::None { calls_per_hour });
        if let Some(entry) = state.entries.get_mut(&self.id) {
            entry.work = work;
            entry.bytes = bytes.unwrap_or(entry.bytes);
        }
        if work != Work::Some {
            self.makes_room(state);
        }
    }

    fn makes_room(&self, mut state: MutexGuard<'_, State>) {
        state.freed.insert(self.node.clone(), Instant::now());
        drop(state);
        self.fleet.room.notify_waiters();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.fleet.state();
        // What one at work had promised to it is free at once.
        if let Some(entry) = state.entries.remove(&self.id)
            && entry.work != Work::Some
        {
            state.left.push((entry.node, entry.bytes, Instant::now()));
        }
        self.makes_room(state);
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
            fleet.add(Newcomer { id, function, node, bytes: 100, start_us: 7 }, evict)
        };
        let (first, second, other) = (place(1, "a"), place(2, "a"), place(3, "b"));
        let busy = |busy, is_settling| Neighbours { busy, is_settling, ..Neighbours::default() };
        assert_eq!(fleet.on("a"), busy(2, false));
        first.set_idle(Some(9), Some(50));
        let idle = Idle { id: "1".to_owned(), bytes: 50, saves_us: 7, uses_per_hour: 9 };
        assert_eq!(fleet.on("a"), Neighbours { idle: vec![idle], ..busy(1, true) });
        assert_eq!(fleet.on("b"), busy(1, false));
        let idle = fleet.residents().into_iter().filter(|resident| resident.is_idle);
        assert_eq!(
            idle.map(|resident| (resident.id, resident.node)).collect::<Vec<_>>(),
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
            let place = Newcomer { id, function, node: "a", bytes: 100, start_us: 7 };
            let place = fleet.add(place, || ());
            place.set_idle(Some(1), Some(30));
            place
        };
        let leaving = || fleet.on("a").leaving_bytes;
        let (first, second) = (place(1), place(2));
        assert_eq!(leaving(), 0);
        fleet.evict(&["1".to_owned()]);
        let left: Vec<String> = fleet.on("a").idle.into_iter().map(|idle| idle.id).collect();
        assert_eq!((leaving(), left), (30, vec!["2".to_owned()]), "it does not go twice");
        drop(first);
        fleet.leaves("a", 5);
        fleet.leaves("b", 1000);
        assert_eq!((leaving(), fleet.on("b").is_settling), (35, true));
        tokio::time::advance(LEAVING).await;
        assert_eq!((leaving(), fleet.on("b").is_settling), (0, false));
        fleet.evict(&["2".to_owned()]);
        second.set_idle(None, None);
        assert_eq!((leaving(), fleet.on("a").busy), (0, 1), "a call came first");
        drop(second);
        assert_eq!(leaving(), 0, "what was promised to it is free at once");
    }
}
