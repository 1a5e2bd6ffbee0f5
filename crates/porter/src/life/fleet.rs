//! All instances, as those see them who need room.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_policy::admission::IdleInstance;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::Name;

/// After so long the kernel has taken back, and the platform has seen, what an instance held that has
/// ended or has come to have nothing to do.
const SETTLED: Duration = Duration::from_secs(3);

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
}

struct Entry {
    function: (Name, Name),
    node: String,
    bytes: u64,
    start_us: u64,
    /// Calls of its function in the last hour for each of its idle instances, if it is one.
    idle: Option<u64>,
    /// Asks its function to end it.
    evict: Box<dyn Fn() + Send>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("node", &self.node).field("idle", &self.idle).finish()
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

/// The instances of a node, as those see them who need room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Those that have nothing to do.
    pub idle: Vec<IdleInstance>,
    /// How many others there are.
    pub busy: u64,
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
        let entry = Entry { function, node, bytes, start_us, idle: None, evict };
        self.state().entries.insert(id, entry);
        place
    }

    /// All instances that have started.
    pub fn residents(&self) -> Vec<Resident> {
        let resident = |(id, entry): (&u64, &Entry)| Resident {
            id: *id,
            function: entry.function.clone(),
            node: entry.node.clone(),
            is_idle: entry.idle.is_some(),
        };
        self.state().entries.iter().map(resident).collect()
    }

    /// The instances of a node.
    pub fn on(&self, node: &str) -> Neighbours {
        let state = self.state();
        let here = || state.entries.iter().filter(|(_, entry)| entry.node == node);
        let idle = here().filter_map(|(id, entry)| {
            Some(IdleInstance {
                id: id.to_string(),
                bytes: entry.bytes,
                start_us: entry.start_us,
                calls_per_hour: entry.idle?,
            })
        });
        let idle: Vec<IdleInstance> = idle.collect();
        let busy = (here().count() - idle.len()) as u64;
        let is_settling = state.freed.get(node).is_some_and(|freed| freed.elapsed() < SETTLED);
        Neighbours { idle, busy, is_settling }
    }

    /// Has the functions of these instances end them, if they still have nothing to do.
    pub fn evict(&self, ids: &[String]) {
        let state = self.state();
        for id in ids {
            if let Some(entry) = id.parse().ok().and_then(|id: u64| state.entries.get(&id)) {
                (entry.evict)();
            }
        }
    }
}

impl Place {
    /// It has nothing to do, or has something again; what it takes, as far as that is known.
    pub fn set_idle(&self, calls_per_hour: Option<u64>, bytes: Option<u64>) {
        let mut state = self.fleet.state();
        if let Some(entry) = state.entries.get_mut(&self.id) {
            entry.idle = calls_per_hour;
            entry.bytes = bytes.unwrap_or(entry.bytes);
        }
        if calls_per_hour.is_some() {
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
        state.entries.remove(&self.id);
        self.makes_room(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn only_those_that_have_nothing_to_do_make_room() {
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
        let busy = |busy, is_settling| Neighbours { idle: vec![], busy, is_settling };
        assert_eq!(fleet.on("a"), busy(2, false));
        first.set_idle(Some(9), Some(50));
        let idle = IdleInstance { id: "1".to_owned(), bytes: 50, start_us: 7, calls_per_hour: 9 };
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
        drop(second);
        fleet.evict(&["2".to_owned()]);
        assert_eq!((fleet.on("a").busy, evicted.load(Ordering::Relaxed)), (1, 1 << 8));
        drop((first, other));
        assert_eq!(fleet.on("b"), busy(0, true));
    }
}
