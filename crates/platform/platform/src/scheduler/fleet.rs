//! All instances under one lock, with what it takes to have their functions end them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use farfork_policy::occupant::OccupantId;
use farfork_scheduler::{Fleet, NewInstance, Occupancy};
use farfork_sys::sync::locked;
use tokio::sync::Notify;

use crate::api::Name;
use crate::clock::Clock;

/// All instances.
#[derive(Debug, Default)]
pub struct SharedFleet {
    state: Mutex<State>,
    clock: Clock,
    /// Notified when an instance has ended or become idle.
    pub room: Notify,
}

#[derive(Debug, Default)]
struct State {
    fleet: Fleet,
    owners: BTreeMap<u64, Owner>,
    nodes: NodeNumbers,
}

/// Nodes have numbers in the order in which they are seen.
#[derive(Debug, Default)]
struct NodeNumbers {
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
}

impl NodeNumbers {
    /// The number of a node, which gets one if it has none.
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn name(&self, number: u32) -> &str {
        &self.names[number as usize]
    }
}

/// The function of an instance.
pub struct Owner {
    /// The namespace and name of its action.
    pub function: (Name, Name),
    /// Asks it to end the instance.
    pub evict: Box<dyn Fn() + Send>,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("function", &self.function).finish_non_exhaustive()
    }
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
    fleet: Arc<SharedFleet>,
    id: u64,
    /// The node that it is on.
    pub node: String,
}

/// Ghosts that are ending.
#[derive(Debug)]
pub struct Leaving {
    fleet: Arc<SharedFleet>,
    node: u32,
    number: u64,
}

impl SharedFleet {
    /// The state and the time.
    fn state(&self) -> (MutexGuard<'_, State>, u64) {
        // Every step leaves the tables valid.
        let state = locked(&self.state);
        // Read under the lock, so that times do not decrease.
        (state, self.clock.now_us())
    }

    /// The number of a node.
    pub fn number(&self, node: &str) -> u32 {
        self.state().0.nodes.number(node)
    }

    /// Adds an instance, which is busy at first, on a node that has its number from [`SharedFleet::number`].
    pub fn add(self: &Arc<SharedFleet>, new: NewInstance, owner: Owner) -> FleetSlot {
        let (mut state, _) = self.state();
        state.fleet.add(new);
        state.owners.insert(new.id, owner);
        let node = state.nodes.name(new.node).to_owned();
        FleetSlot { fleet: Arc::clone(self), id: new.id, node }
    }

    /// All instances that have started.
    pub fn instances(&self) -> Vec<InstanceInfo> {
        let (state, _) = self.state();
        let State { fleet, owners, nodes } = &*state;
        let info = |(id, node, is_idle): (u64, u32, bool)| {
            let function = owners.get(&id)?.function.clone();
            Some(InstanceInfo { id, function, node: nodes.name(node).to_owned(), is_idle })
        };
        fleet.instances().filter_map(info).collect()
    }

    /// The instances of a node.
    pub fn on(&self, node: &str) -> Occupancy {
        let (mut state, now_us) = self.state();
        let node = state.nodes.number(node);
        state.fleet.on(now_us, node)
    }

    /// Bytes on a node that could become free, of its instances.
    pub fn could_free(&self, node: &str) -> u64 {
        let (mut state, now_us) = self.state();
        let node = state.nodes.number(node);
        state.fleet.could_free(now_us, node)
    }

    /// Asks the functions of these instances to end them if they are still idle. Ignores ghosts.
    pub fn evict(&self, ids: &[OccupantId]) {
        let (mut state, now_us) = self.state();
        for id in state.fleet.evict(now_us, ids) {
            if let Some(owner) = state.owners.get(&id) {
                (owner.evict)();
            }
        }
    }

    /// Counts ghosts as ending, until the returned value is dropped.
    pub fn leaving(self: &Arc<Self>, node: &str, bytes: u64) -> Leaving {
        let (mut state, _) = self.state();
        let node = state.nodes.number(node);
        let number = state.fleet.ghosts_leaving(node, bytes);
        Leaving { fleet: Arc::clone(self), node, number }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let (mut state, now_us) = self.fleet.state();
        state.fleet.ghosts_left(now_us, self.node, self.number);
        drop(state);
        self.fleet.room.notify_waiters();
    }
}

impl FleetSlot {
    /// Marks the instance idle or busy, with the bytes that it holds if known.
    pub fn set_idle(&self, calls_per_hour: Option<u64>, bytes: Option<u64>) {
        let (mut state, now_us) = self.fleet.state();
        let makes_room = state.fleet.set_idle(now_us, self.id, calls_per_hour, bytes);
        drop(state);
        if makes_room {
            self.fleet.room.notify_waiters();
        }
    }
}

impl Drop for FleetSlot {
    fn drop(&mut self) {
        let (mut state, now_us) = self.fleet.state();
        state.fleet.end(now_us, self.id);
        let owner = state.owners.remove(&self.id);
        drop(state);
        // What it holds is dropped without the lock.
        drop(owner);
        self.fleet.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn functions_are_asked_to_end_what_is_evicted() {
        let fleet = Arc::new(SharedFleet::default());
        let evicted = Arc::new(AtomicU32::new(0));
        let place = |id: u64, node: &str| {
            let evicted = evicted.clone();
            let evict = Box::new(move || {
                evicted.fetch_add(1 << (8 * (id - 1)), Ordering::Relaxed);
            });
            let function = ["guest", "a"].map(|name| name.parse().unwrap()).into();
            let node = fleet.number(node);
            fleet.add(NewInstance { id, node, bytes: 100, start_us: 7 }, Owner { function, evict })
        };
        let (first, second) = (place(1, "a"), place(2, "a"));
        let room = fleet.room.notified();
        second.set_idle(Some(3), Some(50));
        room.await;
        let infos = fleet.instances();
        let seen = infos.iter().map(|info| (info.id, info.node.as_str(), info.is_idle));
        assert_eq!(seen.collect::<Vec<_>>(), [(1, "a", false), (2, "a", true)]);
        assert_eq!(infos[0].function.1.as_str(), "a");
        fleet.evict(&["2", "ghost-1", "99"].map(OccupantId::from));
        assert_eq!(evicted.load(Ordering::Relaxed), 1 << 8);
        let room = fleet.room.notified();
        drop(second);
        room.await;
        fleet.evict(&[OccupantId::instance(2)]);
        assert_eq!((fleet.on("a").busy, evicted.load(Ordering::Relaxed)), (1, 1 << 8));
        let room = fleet.room.notified();
        let ghosts = fleet.leaving("a", 5);
        assert_eq!(fleet.on("a").leaving_bytes, 50 + 5);
        drop((first, ghosts));
        room.await;
        assert_eq!(fleet.on("a").leaving_bytes, 50 + 5, "for a moment");
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        assert_eq!(fleet.on("a"), Occupancy::default());
    }
}
