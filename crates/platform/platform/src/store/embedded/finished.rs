//! What came of calls, on its way to the database: a transaction for each would take longer than many a
//! call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::Activation;

/// As many wait for a database that takes nothing.
const MOST: usize = 10_000;

/// What waits to be written.
#[derive(Debug, Default)]
pub struct FinishedQueue {
    waiting: Mutex<Vec<Activation>>,
    /// Held while some of it is being written.
    writing: Mutex<()>,
}

impl FinishedQueue {
    /// Adds one; not if the database has taken none for long.
    pub fn add(&self, activation: Activation) -> bool {
        let mut waiting = self.waiting();
        let has_room = waiting.len() < MOST;
        if has_room {
            waiting.push(activation);
        }
        has_room
    }

    /// Has all that waits written; what is not goes on waiting. All that was added before is in the
    /// database when this returns, whoever has written it.
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
    fn what_is_not_written_goes_on_waiting_in_its_order() {
        let finished = FinishedQueue::default();
        assert!([1, 2].map(activation).into_iter().all(|one| finished.add(one)));
        let full = finished.write(|all| {
            assert_eq!(ids(all), [1, 2]);
            assert!(finished.add(activation(3)), "nobody waits for a disk to add");
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
    fn no_more_wait_than_can_be_held() {
        let finished = FinishedQueue::default();
        assert!((0..MOST).all(|id| finished.add(activation(id as u128))));
        assert!(!finished.add(activation(0)));
        finished.write(|_| Ok::<_, ()>(())).unwrap();
        assert!(finished.add(activation(0)));
    }

    #[test]
    fn who_has_nothing_to_write_waits_for_who_writes() {
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
