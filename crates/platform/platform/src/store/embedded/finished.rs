//! Activations on their way to the database. A transaction for each would take longer than many
//! calls.
//!
//! ```text
//!  add ─► waiting ─ without durability ─► unflushed ─ flush ─► on disk
//!            ▲                                │
//!            └── the database was opened again ┘
//! ```
//! A namespace may take as much of the queue as it leaves free for all (dynamic thresholds, Choudhury and Hahne 1998):
//! one alone gets half of it, and each of two a third. So none keeps another's records out. Logs may take half as much, so
//! that they are dropped before records are.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use farfork_sys::sync::locked;
use redb::Durability;

use crate::api::{Activation, ActivationId, Name};

/// Longest queue while the database does not accept writes.
const MOST: u64 = 10_000;
/// Most bytes of it: it may have to outlast a disk that is full for days.
const MOST_BYTES: u64 = 256 << 20;
/// What stands for the logs of an activation that has only room without them.
const DROPPED: &str =
    "farfork: the logs were dropped: too many records of this namespace wait for the disk";

/// Activations that wait to be written.
#[derive(Debug, Default)]
pub struct FinishedQueue {
    waiting: Mutex<Batch>,
    /// Held during a write.
    unflushed: Mutex<Unflushed>,
}

/// Activations in the order of their ends.
#[derive(Debug, Default)]
struct Batch {
    all: Vec<Activation>,
    taken: Taken,
    by_namespace: BTreeMap<Name, Taken>,
}

/// What activations take of the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    count: u64,
    bytes: u64,
}

impl Taken {
    fn add(&mut self, other: Taken) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// Activations in the database that are lost if it is opened again.
#[derive(Debug, Default)]
struct Unflushed {
    /// The database's when they were written.
    generation: u64,
    batch: Batch,
}

impl Batch {
    fn has_room(&self, more: Taken) -> bool {
        self.taken.count + more.count <= MOST && self.taken.bytes + more.bytes <= MOST_BYTES
    }

    /// Whether this namespace may take so much more of it; half as much `with_logs`.
    fn has_room_for(&self, namespace: &Name, more: Taken, with_logs: bool) -> bool {
        let own = self.by_namespace.get(namespace).copied().unwrap_or_default();
        let parts = if with_logs { 2 } else { 1 };
        let fits = |own, more, taken, most| (own + more) * parts <= most - taken;
        self.has_room(more)
            && fits(own.count, more.count, self.taken.count, MOST)
            && fits(own.bytes, more.bytes, self.taken.bytes, MOST_BYTES)
    }

    fn push(&mut self, activation: Activation, taken: Taken) {
        self.taken.add(taken);
        self.by_namespace.entry(activation.namespace.clone()).or_default().add(taken);
        self.all.push(activation);
    }

    fn append(&mut self, mut other: Batch) {
        self.all.append(&mut other.all);
        self.taken.add(other.taken);
        for (namespace, taken) in other.by_namespace {
            self.by_namespace.entry(namespace).or_default().add(taken);
        }
    }

    fn find(&self, namespace: &Name, id: ActivationId) -> Option<&Activation> {
        let is_it = |one: &&Activation| one.activation_id == id && one.namespace == *namespace;
        self.all.iter().find(is_it)
    }
}

/// About what an activation takes in memory.
fn size(activation: &Activation) -> Taken {
    let lines = activation.logs.iter().map(|line| (line.len() + size_of::<String>()) as u64);
    let result = activation.response.result.text().len() as u64;
    Taken { count: 1, bytes: size_of::<Activation>() as u64 + lines.sum::<u64>() + result }
}

impl FinishedQueue {
    /// Adds an activation, without its logs where only that has room; returns false if not even that has.
    pub fn add(&self, mut activation: Activation) -> bool {
        let mut waiting = self.waiting();
        let mut taken = size(&activation);
        let (namespace, has_logs) = (activation.namespace.clone(), !activation.logs.is_empty());
        if has_logs && !waiting.has_room_for(&namespace, taken, true) {
            activation.logs = vec![DROPPED.to_owned()];
            taken = size(&activation);
        }
        let has_room = waiting.has_room_for(&namespace, taken, false);
        if has_room {
            waiting.push(activation, taken);
        }
        has_room
    }

    /// Writes all that waits to the database of this generation, with this durability or a higher
    /// one; what was not written stays in the queue. After success, everything added before this
    /// call is in the database, also what another thread has written.
    pub fn write<E>(
        &self,
        generation: u64,
        least: Durability,
        write: impl FnOnce(&[Activation], Durability) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut unflushed = locked(&self.unflushed);
        let mut some = Batch::default();
        if unflushed.generation != generation {
            some = std::mem::take(&mut unflushed.batch);
        }
        some.append(std::mem::take(&mut *self.waiting()));
        let is_durable = matches!(least, Durability::Immediate);
        if some.all.is_empty() && !is_durable {
            return Ok(());
        }
        // What is unflushed takes memory, too.
        let is_durable = is_durable || !unflushed.batch.has_room(some.taken);
        let durability = if is_durable { Durability::Immediate } else { Durability::None };
        if let Err(error) = write(&some.all, durability) {
            let mut waiting = self.waiting();
            some.append(std::mem::take(&mut *waiting));
            *waiting = some;
            return Err(error);
        }
        unflushed.generation = generation;
        match is_durable {
            true => unflushed.batch = Batch::default(),
            false => unflushed.batch.append(some),
        }
        Ok(())
    }

    /// An activation that is not on disk.
    pub fn find(&self, namespace: &Name, id: ActivationId) -> Option<Activation> {
        // Waits for a running write, whose activations are in neither list.
        let unflushed = locked(&self.unflushed);
        let found = unflushed.batch.find(namespace, id).cloned();
        found.or_else(|| self.waiting().find(namespace, id).cloned())
    }

    fn waiting(&self) -> MutexGuard<'_, Batch> {
        // Every step leaves the list valid.
        locked(&self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn activation(id: u128) -> Activation {
        Activation::example("hello", id, 1)
    }

    fn ids(all: &[Activation]) -> Vec<u128> {
        all.iter().map(|activation| activation.activation_id.0).collect()
    }

    #[test]
    fn a_failed_write_keeps_the_queue_in_order() {
        let finished = FinishedQueue::default();
        assert!([1, 2].map(activation).into_iter().all(|one| finished.add(one)));
        let full = finished.write(0, Durability::Immediate, |all, _| {
            assert_eq!(ids(all), [1, 2]);
            assert!(finished.add(activation(3)), "adding does not wait for the disk");
            Err("the disk is full")
        });
        assert_eq!(full, Err("the disk is full"));
        let mut seen = Vec::new();
        for _ in 0..2 {
            let see = |all: &[Activation], _| {
                seen.push(ids(all));
                Ok::<_, ()>(())
            };
            finished.write(0, Durability::Immediate, see).unwrap();
        }
        assert_eq!(seen, [vec![1, 2, 3], vec![]]);
    }

    fn of(namespace: &str, id: u128) -> Activation {
        Activation { namespace: namespace.parse().unwrap(), ..activation(id) }
    }

    #[test]
    fn the_queue_is_bounded_and_none_keeps_others_out() {
        let finished = FinishedQueue::default();
        let of = |namespace, id| Activation { logs: Vec::new(), ..of(namespace, id) };
        let added = |namespace| {
            (0..u128::from(MOST)).take_while(|id| finished.add(of(namespace, *id))).count()
        };
        assert_eq!([added("a"), added("b"), added("c"), added("a")], [5000, 2500, 1250, 0]);
        finished.write(0, Durability::Immediate, |_, _| Ok::<_, ()>(())).unwrap();
        assert_eq!(added("b"), 5000);
    }

    #[test]
    fn the_bytes_of_the_queue_are_bounded_and_logs_go_first() {
        let finished = FinishedQueue::default();
        let large = |namespace| Activation { logs: vec!["x".repeat(32 << 20)], ..of(namespace, 1) };
        for namespace in ["a", "a", "a", "b"] {
            assert!(finished.add(large(namespace)));
        }
        let mut lines = Vec::new();
        let see = |all: &[Activation], _| {
            lines.extend(all.iter().map(|one| one.logs[0].len() >> 20));
            Ok::<_, ()>(())
        };
        finished.write(0, Durability::Immediate, see).unwrap();
        assert_eq!(lines, [32, 32, 0, 32]);
    }

    #[test]
    fn what_was_not_flushed_is_written_again_to_a_reopened_database() {
        let finished = FinishedQueue::default();
        let mut seen = Vec::new();
        let mut write = |generation, durability| {
            let see = |all: &[Activation], _| {
                seen.push(ids(all));
                Ok::<_, ()>(())
            };
            finished.write(generation, durability, see).unwrap();
        };
        for id in 1..=3 {
            finished.add(activation(id));
            write(0, Durability::None);
        }
        write(1, Durability::None);
        write(2, Durability::Immediate);
        write(3, Durability::Immediate);
        assert_eq!(seen, [vec![1], vec![2], vec![3], vec![1, 2, 3], vec![1, 2, 3], vec![]]);
    }

    #[test]
    fn a_write_of_nothing_waits_for_a_running_write() {
        let (finished, is_written) =
            (Arc::new(FinishedQueue::default()), Arc::new(AtomicBool::new(false)));
        finished.add(activation(1));
        let (begin, begun) = channel();
        let writer = thread::spawn({
            let (finished, is_written) = (finished.clone(), is_written.clone());
            move || {
                finished.write(0, Durability::Immediate, |_, _| {
                    begin.send(()).unwrap();
                    thread::sleep(Duration::from_millis(100));
                    is_written.store(true, Ordering::Release);
                    Ok::<_, ()>(())
                })
            }
        });
        begun.recv().unwrap();
        finished
            .write(0, Durability::Immediate, |all, _| {
                assert!(all.is_empty() && is_written.load(Ordering::Acquire));
                Ok::<_, ()>(())
            })
            .unwrap();
        writer.join().unwrap().unwrap();
    }
}
