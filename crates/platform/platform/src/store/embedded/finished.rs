//! Activations on their way to the database. A transaction for each would take longer than many
//! calls.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::Activation;

/// Longest queue while the database does not accept writes.
const MOST: usize = 10_000;

/// Activations that wait to be written.
#[derive(Debug, Default)]
pub struct FinishedQueue {
    waiting: Mutex<Vec<Activation>>,
    /// Held during a write.
    writing: Mutex<()>,
}

impl FinishedQueue {
    /// Adds an activation; returns false if the queue is full.
    pub fn add(&self, activation: Activation) -> bool {
        let mut waiting = self.waiting();
        let has_room = waiting.len() < MOST;
        if has_room {
            waiting.push(activation);
        }
        has_room
    }

    /// Writes all that waits; what was not written stays in the queue. After success, everything
    /// added before this call is in the database, also what another thread has written.
    pub fn write<E>(&self, write: impl FnOnce(&[Activation]) -> Result<(), E>) -> Result<(), E> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let some = std::mem::take(&mut *self.waiting());
        let written = write(&some);
        if written.is_err() {
            self.waiting().splice(0..0, some);
        }
        written
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Activation>> {
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
        let full = finished.write(|all| {
            assert_eq!(ids(all), [1, 2]);
            assert!(finished.add(activation(3)), "adding does not wait for the disk");
            Err("the disk is full")
        });
        assert_eq!(full, Err("the disk is full"));
        let mut seen = Vec::new();
        for _ in 0..2 {
            let see = |all: &[Activation]| {
                seen.push(ids(all));
                Ok::<_, ()>(())
            };
            finished.write(see).unwrap();
        }
        assert_eq!(seen, [vec![1, 2, 3], vec![]]);
    }

    #[test]
    fn the_queue_is_bounded() {
        let finished = FinishedQueue::default();
        assert!((0..MOST).all(|id| finished.add(activation(id as u128))));
        assert!(!finished.add(activation(0)));
        finished.write(|_| Ok::<_, ()>(())).unwrap();
        assert!(finished.add(activation(0)));
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
                finished.write(|_| {
                    begin.send(()).unwrap();
                    thread::sleep(Duration::from_millis(100));
                    is_written.store(true, Ordering::Release);
                    Ok::<_, ()>(())
                })
            }
        });
        begun.recv().unwrap();
        finished
            .write(|all| {
                assert!(all.is_empty() && is_written.load(Ordering::Acquire));
                Ok::<_, ()>(())
            })
            .unwrap();
        writer.join().unwrap().unwrap();
    }
}
