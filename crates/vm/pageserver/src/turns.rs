//! How many machines get their hot pages at once.
//!
//! ```text
//!  machine 1 ──┐
//!  machine 2 ──┴─ have a turn ──> fill hot pages, batch by batch, until all are there
//!  machine 3 ──┐
//!  …         ──┴─ wait, first come, first served: their faults are answered all the same
//! ```
//! A machine that waits is woken by a descriptor of its own, so that it looks for faults by the same call.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use farfork_sys::sync::locked;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, write};

/// Turns of all machines of a server.
#[derive(Debug)]
pub(crate) struct Turns {
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// Numbers of turns that have come.
    come: Vec<u64>,
    /// Those that have not, in order, and what wakes their machines.
    waiting: VecDeque<(u64, Arc<OwnedFd>)>,
}

impl Turns {
    /// At most so many at once, and one at least.
    pub(crate) fn new(most: usize) -> Arc<Turns> {
        Arc::new(Turns { most: most.max(1), queue: Mutex::default() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    /// A turn behind all others.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub(crate) fn take(self: &Arc<Turns>) -> Result<Turn, Errno> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back((number, Arc::clone(&bell)));
        queue.advance(self.most);
        drop(queue);
        Ok(Turn { turns: Arc::clone(self), number, bell })
    }
}

impl Queue {
    /// Lets those that have waited longest have their turns.
    fn advance(&mut self, most: usize) {
        while self.come.len() < most
            && let Some((number, bell)) = self.waiting.pop_front()
        {
            self.come.push(number);
            // Cannot fail: the counter is 0, and the descriptor is open as long as this is.
            let _ = write(&*bell, &1u64.to_ne_bytes());
        }
    }
}

/// The turn of one machine, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    number: u64,
    bell: Arc<OwnedFd>,
}

impl Turn {
    /// Whether it has come.
    pub(crate) fn has_come(&self) -> bool {
        self.turns.queue().come.contains(&self.number)
    }

    /// Can be read from when it has come.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.turns.queue();
        queue.come.retain(|number| *number != self.number);
        queue.waiting.retain(|(number, _)| *number != self.number);
        queue.advance(self.turns.most);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings(turn: &Turn) -> bool {
        let mut polled = [PollFd::new(turn.bell(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn turns_come_in_order_and_no_more_than_the_limit_at_once() {
        let turns = Turns::new(2);
        let mut all: VecDeque<Turn> = (0..6).map(|_| turns.take().unwrap()).collect();
        let come = |all: &VecDeque<Turn>| all.iter().map(Turn::has_come).collect::<Vec<_>>();
        assert_eq!(come(&all), [true, true, false, false, false, false]);
        assert!(all.iter().all(|turn| rings(turn) == turn.has_come()));
        // The second ends before the first; the fourth gives up while it waits.
        drop(all.remove(1));
        assert_eq!(come(&all), [true, true, false, false, false]);
        drop(all.remove(2));
        drop(all.pop_front());
        assert_eq!(come(&all), [true, true, false]);
        assert!(all.iter().all(|turn| rings(turn) == turn.has_come()));
        all.clear();
        assert!(turns.take().unwrap().has_come() && turns.queue().waiting.is_empty());
        assert!(turns.queue().come.is_empty());
    }

    #[test]
    fn one_machine_at_least_has_a_turn() {
        let turns = Turns::new(0);
        let [one, other] = [0; 2].map(|_| turns.take().unwrap());
        assert!(one.has_come() && !other.has_come());
    }
}
