//! Activations on their way to the database. A transaction for each would take longer than many
//! calls.
//!
//! ```text
//!  add ─► waiting ─ without durability ─► unflushed ─ flush ─► on disk
//!            ▲                                │
//!            └── the database was opened again ┘
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::Durability;

use crate::api::{Activation, ActivationId, Name};

/// Longest queue while the database does not accept writes.
const MOST: usize = 10_000;
/// Most bytes of it: it may have to outlast a disk that is full for days.
const MOST_BYTES: u64 = 256 << 20;

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
    bytes: u64,
}

/// Activations in the database that are lost if it is opened again.
#[derive(Debug, Default)]
struct Unflushed {
    /// The database's when they were written.
    generation: u64,
    batch: Batch,
}

impl Batch {
    fn has_room(&self, bytes: u64) -> bool {
        self.all.len() < MOST && self.bytes + bytes <= MOST_BYTES
    }

    fn append(&mut self, mut other: Batch) {
        self.all.append(&mut other.all);
        self.bytes += other.bytes;
    }

    fn find(&self, namespace: &Name, id: ActivationId) -> Option<&Activation> {
        let is_it = |one: &&Activation| one.activation_id == id && one.namespace == *namespace;
        self.all.iter().find(is_it)
    }
}

/// About the bytes of an activation in memory.
fn size(activation: &Activation) -> u64 {
    let lines = activation.logs.iter().map(|line| (line.len() + size_of::<String>()) as u64);
    let result = activation.response.result.text().len() as u64;
    size_of::<Activation>() as u64 + lines.sum::<u64>() + result
}

impl FinishedQueue {
    /// Adds an activation; returns false if the queue is full.
    pub fn add(&self, activation: Activation) -> bool {
        let bytes = size(&activation);
        let mut waiting = self.waiting();
        let has_room = waiting.has_room(bytes);
        if has_room {
            waiting.append(Batch { all: vec![activation], bytes });
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
        let mut unflushed = self.unflushed.lock().unwrap_or_else(PoisonError::into_inner);
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
        let is_durable = is_durable || !unflushed.batch.has_room(some.bytes);
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
        let unflushed = self.unflushed.lock().unwrap_or_else(PoisonError::into_inner);
        let found = unflushed.batch.find(namespace, id).cloned();
        found.or_else(|| self.waiting().find(namespace, id).cloned())
    }

    fn waiting(&self) -> MutexGuard<'_, Batch> {
        // Every step leaves the list valid.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn the_queue_is_bounded() {
        let finished = FinishedQueue::default();
        assert!((0..MOST).all(|id| finished.add(activation(id as u128))));
        assert!(!finished.add(activation(0)));
        finished.write(0, Durability::Immediate, |_, _| Ok::<_, ()>(())).unwrap();
        assert!(finished.add(activation(0)));
    }

    #[test]
    fn the_bytes_of_the_queue_are_bounded() {
        let finished = FinishedQueue::default();
        let large = || Activation { logs: vec!["x".repeat(32 << 20)], ..activation(1) };
        let most = (0..9).take_while(|_| finished.add(large())).count();
        assert_eq!(most, 7);
        assert!(finished.add(activation(2)), "a small one has room");
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
