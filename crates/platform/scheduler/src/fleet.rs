//! Eviction: what on a node could end for others, and what is ending.
//!
//! ```text
//!  busy ◄──► idle ── asked to end ─► ending ─► ended: its memory counts as leaving for a moment
//! ```

use std::collections::{BTreeMap, BTreeSet};

use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;

use crate::numbers::ByNumber;

/// After this long the kernel has certainly freed, and the platform has measured, what an instance
/// held that ended or became idle.
const SETTLED_US: u64 = 3_000_000;
/// After this long that is mostly so. Until then memory of ended instances is not free, but nothing
/// else needs to be evicted for it either.
const LEAVING_US: u64 = 200_000;

/// What an instance is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// It serves a call.
    Busy,
    /// It is idle; with its share of its function's calls in the last hour.
    Idle { calls_per_hour: u64 },
    /// It is idle, and was asked at this time to end.
    Ending { since_us: u64 },
}

impl Work {
    /// Whether it is busy. An instance that was asked to end and has not counts as busy.
    fn is_busy(self, now_us: u64) -> bool {
        match self {
            Work::Busy => true,
            Work::Idle { .. } => false,
            Work::Ending { since_us } => now_us.saturating_sub(since_us) >= LEAVING_US,
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    /// The number of its node.
    node: u32,
    bytes: u64,
    /// Bytes that it was last seen to hold.
    held_bytes: Option<u64>,
    start_us: u64,
    work: Work,
}

/// What is on one node.
#[derive(Clone, Debug, Default)]
struct Node {
    instances: BTreeSet<u64>,
    /// Bytes of those that are idle.
    idle_bytes: u64,
    /// Those that were asked to end, and have neither ended nor got a call.
    ending: BTreeSet<u64>,
    /// When an instance last ended or became idle.
    freed_us: Option<u64>,
    /// Bytes of ghosts that are ending, by number.
    leaving: BTreeMap<u64, u64>,
    /// What has ended recently: bytes and time.
    left: Vec<(u64, u64)>,
}

impl Node {
    /// Notes that something has ended or become idle.
    fn freed(&mut self, bytes: u64, now_us: u64) {
        self.freed_us = Some(now_us);
        if bytes > 0 {
            self.left.retain(|(_, since_us)| now_us.saturating_sub(*since_us) < LEAVING_US);
            self.left.push((bytes, now_us));
        }
    }

    /// Bytes of ghosts that are ending, and of what has just ended.
    fn left_bytes(&self, now_us: u64) -> u64 {
        let is_late = |since_us: u64| now_us.saturating_sub(since_us) < LEAVING_US;
        let left = self.left.iter().filter(|(_, since_us)| is_late(*since_us));
        left.map(|(bytes, _)| bytes).sum::<u64>() + self.leaving.values().sum::<u64>()
    }
}

impl Occupancy {
    /// Bytes that could become free: of what is idle, and of what is leaving.
    pub fn could_free(&self) -> u64 {
        self.idle.iter().map(|idle| idle.bytes).sum::<u64>() + self.leaving_bytes
    }
}

impl Entry {
    /// Bytes that count as idle.
    fn idle_bytes(&self) -> u64 {
        if matches!(self.work, Work::Idle { .. }) { self.bytes } else { 0 }
    }
}

/// An instance to be added.
#[derive(Clone, Copy, Debug)]
pub struct NewInstance {
    /// Its number.
    pub id: u64,
    /// The number of the node that it is on.
    pub node: u32,
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

/// All instances that have started.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    entries: ByNumber<Entry>,
    /// By number, as far as anything was on them.
    nodes: Vec<Node>,
    next: u64,
    changes: u64,
}

impl Fleet {
    /// Grows with every change.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Adds an instance, which is busy at first.
    pub fn add(&mut self, new: NewInstance) {
        let NewInstance { id, node, bytes, start_us } = new;
        self.node(node).instances.insert(id);
        let (held_bytes, work) = (None, Work::Busy);
        self.entries.insert(id, Entry { node, bytes, held_bytes, start_us, work });
    }

    /// A node, which is added if it is not known.
    fn node(&mut self, number: u32) -> &mut Node {
        self.changes += 1;
        let index = number as usize;
        if index >= self.nodes.len() {
            self.nodes.resize_with(index + 1, Node::default);
        }
        &mut self.nodes[index]
    }

    /// Marks an instance busy, or idle with its share of its function's calls in the last hour, and with
    /// the bytes that it holds if known. Returns whether that makes room.
    pub fn set_idle(
        &mut self,
        now_us: u64,
        id: u64,
        calls_per_hour: Option<u64>,
        bytes: Option<u64>,
    ) -> bool {
        self.changes += 1;
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        let node = &mut self.nodes[entry.node as usize];
        if matches!(entry.work, Work::Ending { .. }) {
            node.ending.remove(&id);
        }
        node.idle_bytes -= entry.idle_bytes();
        entry.work =
            calls_per_hour.map_or(Work::Busy, |calls_per_hour| Work::Idle { calls_per_hour });
        entry.held_bytes = bytes.or(entry.held_bytes);
        entry.bytes = bytes.unwrap_or(entry.bytes);
        node.idle_bytes += entry.idle_bytes();
        if calls_per_hour.is_some() {
            node.freed(0, now_us);
        }
        calls_per_hour.is_some()
    }

    /// An instance has ended.
    pub fn end(&mut self, now_us: u64, id: u64) {
        self.changes += 1;
        let Some(entry) = self.entries.remove(&id) else { return };
        let node = &mut self.nodes[entry.node as usize];
        node.instances.remove(&id);
        node.ending.remove(&id);
        node.idle_bytes -= entry.idle_bytes();
        node.freed(entry.held_bytes.unwrap_or(0), now_us);
    }

    /// Marks these instances as ending if they are idle. Returns those that exist: their functions are to
    /// end them, unless a call comes first. Ignores ghosts.
    pub fn evict(&mut self, now_us: u64, ids: &[OccupantId]) -> Vec<u64> {
        self.changes += 1;
        let mut known = Vec::new();
        for id in ids.iter().filter_map(OccupantId::as_instance) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if entry.work != Work::Busy {
                let node = &mut self.nodes[entry.node as usize];
                node.idle_bytes -= entry.idle_bytes();
                node.ending.insert(id);
                entry.work = Work::Ending { since_us: now_us };
            }
            known.push(id);
        }
        known
    }

    /// Counts ghosts of a node as ending, until [`Fleet::ghosts_left`] is called with the returned number.
    pub fn ghosts_leaving(&mut self, node: u32, bytes: u64) -> u64 {
        self.next += 1;
        let number = self.next;
        self.node(node).leaving.insert(number, bytes);
        number
    }

    /// Ghosts have ended.
    pub fn ghosts_left(&mut self, now_us: u64, node: u32, number: u64) {
        let node = self.node(node);
        let bytes = node.leaving.remove(&number).unwrap_or(0);
        node.freed(bytes, now_us);
    }

    /// All instances in the order of their numbers: number, node's number, and whether it is idle.
    pub fn instances(&self) -> impl Iterator<Item = (u64, u32, bool)> {
        let mut entries: Vec<(&u64, &Entry)> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(id, _)| **id);
        entries.into_iter().map(|(id, entry)| (*id, entry.node, entry.work != Work::Busy))
    }

    /// Bytes on a node that could become free: [`Occupancy::could_free`] without a look at all that is on it.
    pub fn could_free(&self, now_us: u64, node: u32) -> u64 {
        let Some(node) = self.nodes.get(node as usize) else { return 0 };
        let ending = node.ending.iter().filter_map(|id| self.entries.get(id));
        let leaving = ending.filter(|entry| !entry.work.is_busy(now_us));
        let leaving: u64 = leaving.map(|entry| entry.held_bytes.unwrap_or(0)).sum();
        node.idle_bytes + leaving + node.left_bytes(now_us)
    }

    /// What is on a node.
    pub fn on(&self, now_us: u64, node: u32) -> Occupancy {
        let Some(node) = self.nodes.get(node as usize) else { return Occupancy::default() };
        let mut seen = Occupancy::default();
        for id in &node.instances {
            let Some(entry) = self.entries.get(id) else { continue };
            match entry.work {
                Work::Idle { calls_per_hour } => seen.idle.push(Idle {
                    id: OccupantId::instance(*id),
                    bytes: entry.bytes,
                    saves_us: entry.start_us,
                    uses_per_hour: calls_per_hour,
                }),
                work if work.is_busy(now_us) => seen.busy += 1,
                _ => seen.leaving_bytes += entry.held_bytes.unwrap_or(0),
            }
        }
        seen.leaving_bytes += node.left_bytes(now_us);
        let freed = node.freed_us.map(|freed_us| now_us.saturating_sub(freed_us));
        seen.is_settling = seen.leaving_bytes > 0 || freed.is_some_and(|ago| ago < SETTLED_US);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: u32 = 0;
    const B: u32 = 1;

    fn place(fleet: &mut Fleet, id: u64, node: u32) {
        fleet.add(NewInstance { id, node, bytes: 100, start_us: 7 });
    }

    fn ids<const N: usize>(ids: [&str; N]) -> [OccupantId; N] {
        ids.map(OccupantId::from)
    }

    #[test]
    fn only_idle_instances_can_be_evicted() {
        let mut fleet = Fleet::default();
        place(&mut fleet, 1, A);
        place(&mut fleet, 2, A);
        place(&mut fleet, 3, B);
        let busy = |busy, is_settling| Occupancy { busy, is_settling, ..Occupancy::default() };
        assert_eq!(fleet.on(0, A), busy(2, false));
        assert!(fleet.set_idle(0, 1, Some(9), Some(50)));
        let idle = Idle { id: OccupantId::instance(1), bytes: 50, saves_us: 7, uses_per_hour: 9 };
        assert_eq!(fleet.on(0, A), Occupancy { idle: vec![idle], ..busy(1, true) });
        assert_eq!(fleet.on(0, B), busy(1, false));
        let idle = fleet.instances().filter(|(_, _, is_idle)| *is_idle);
        assert_eq!(idle.map(|(id, node, _)| (id, node)).collect::<Vec<_>>(), [(1, A)]);
        assert!(!fleet.set_idle(0, 1, None, None));
        assert_eq!(fleet.on(0, A), busy(2, true));
        assert_eq!(fleet.evict(0, &ids(["2", "99", "ghost-1", "x"])), [2]);
        assert_eq!(fleet.on(0, A), busy(2, true), "it is busy");
        fleet.end(0, 2);
        assert_eq!((fleet.evict(0, &ids(["2"])), fleet.on(0, A).busy), (vec![], 1));
        fleet.end(0, 3);
        assert_eq!((fleet.on(0, B), fleet.on(0, 2)), (busy(0, true), busy(0, false)));
    }

    #[test]
    fn what_is_asked_to_end_counts_as_leaving_for_a_moment() {
        let mut fleet = Fleet::default();
        for id in 1..=3 {
            place(&mut fleet, id, A);
            fleet.set_idle(0, id, Some(1), Some(30));
        }
        let leaving = |fleet: &Fleet, now_us| fleet.on(now_us, A).leaving_bytes;
        assert_eq!(leaving(&fleet, 0), 0);
        fleet.evict(0, &ids(["1"]));
        let left: Vec<OccupantId> = fleet.on(0, A).idle.into_iter().map(|idle| idle.id).collect();
        assert_eq!((leaving(&fleet, 0), left), (30, ids(["2", "3"]).to_vec()));
        fleet.end(0, 1);
        let (ghost, other) = (fleet.ghosts_leaving(A, 5), fleet.ghosts_leaving(B, 1000));
        assert_eq!((leaving(&fleet, 0), fleet.on(0, B).is_settling), (35, true));
        let mut now_us = LEAVING_US;
        let of_b = fleet.on(now_us, B).leaving_bytes;
        assert_eq!(
            (leaving(&fleet, now_us), of_b),
            (5, 1000),
            "ghosts leave until they have ended"
        );
        fleet.ghosts_left(now_us, A, ghost);
        fleet.ghosts_left(now_us, B, other);
        assert_eq!(leaving(&fleet, now_us), 5, "it is still counted");
        now_us += LEAVING_US;
        assert_eq!((leaving(&fleet, now_us), fleet.on(now_us, B).is_settling), (0, true));
        now_us += SETTLED_US;
        assert_eq!(fleet.on(now_us, B), Occupancy::default());
        fleet.evict(now_us, &ids(["2", "3"]));
        fleet.set_idle(now_us, 2, None, None);
        let busy = |fleet: &Fleet, now_us| fleet.on(now_us, A).busy;
        assert_eq!((leaving(&fleet, now_us), busy(&fleet, now_us)), (30, 1), "a call came first");
        now_us += LEAVING_US;
        assert_eq!((leaving(&fleet, now_us), busy(&fleet, now_us)), (0, 2), "it does not end");
        fleet.end(now_us, 2);
        fleet.end(now_us, 3);
        assert_eq!(leaving(&fleet, now_us), 60, "including what it held while busy");
    }

    /// What is on a node by a scan of all entries.
    fn scanned(fleet: &Fleet, now_us: u64, node: u32) -> (Vec<OccupantId>, u64, u64) {
        let mut here: Vec<(&u64, &Entry)> = fleet.entries.iter().collect();
        here.retain(|(_, entry)| entry.node == node);
        here.sort_unstable_by_key(|(id, _)| **id);
        let here = || here.iter().copied();
        let is_idle = |entry: &Entry| matches!(entry.work, Work::Idle { .. });
        let idle = here().filter(|(_, entry)| is_idle(entry));
        let busy = here().filter(|(_, entry)| entry.work.is_busy(now_us)).count();
        let ending = here().filter(|(_, entry)| !is_idle(entry) && !entry.work.is_busy(now_us));
        let ending = ending.filter_map(|(_, entry)| entry.held_bytes).sum();
        (idle.map(|(id, _)| OccupantId::instance(*id)).collect(), busy as u64, ending)
    }

    proptest! {
        #[test]
        fn what_is_on_a_node_is_what_a_scan_finds(
            steps in proptest::collection::vec((0u8..5, 0u64..12, 0u64..150_000), 1..80),
        ) {
            let (mut fleet, mut now_us) = (Fleet::default(), 0);
            for (what, id, after_us) in steps {
                now_us += after_us;
                match what {
                    0 if !fleet.entries.contains_key(&id) => {
                        place(&mut fleet, id, if id % 3 == 0 { A } else { B });
                    }
                    1 => drop(fleet.set_idle(now_us, id, Some(id), Some(id + 1))),
                    2 => drop(fleet.set_idle(now_us, id, None, None)),
                    3 => drop(fleet.evict(now_us, &[OccupantId::instance(id)])),
                    4 => fleet.end(now_us, id),
                    _ => {}
                }
                let known: usize = fleet.nodes.iter().map(|node| node.instances.len()).sum();
                prop_assert_eq!(known, fleet.entries.len());
                for node in [A, B] {
                    let seen = fleet.on(now_us, node);
                    prop_assert_eq!(fleet.could_free(now_us, node), seen.could_free());
                    let (idle, busy, ending) = scanned(&fleet, now_us, node);
                    let known = fleet.nodes.get(node as usize);
                    let left: u64 = known.map_or(0, |node| {
                        let late = |since: u64| now_us - since < LEAVING_US;
                        node.left.iter().filter(|(_, at)| late(*at)).map(|(bytes, _)| bytes).sum()
                    });
                    let ids: Vec<OccupantId> = seen.idle.into_iter().map(|idle| idle.id).collect();
                    prop_assert_eq!((ids, seen.busy, seen.leaving_bytes), (idle, busy, ending + left));
                }
            }
        }
    }
}
