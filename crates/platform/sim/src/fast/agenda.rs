//! What is going to happen, in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use farfork_platform::simulated::agents::Later;
use farfork_scheduler::NodeId;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Between nodes and the pool.
    Pool,
    /// Between nodes and far memory.
    Far,
}

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// An instance has started.
    Started(u64),
    /// An instance has loaded its code.
    Loaded(u64),
    /// The call of an instance has ended; whether it was answered within its limits.
    CallEnded(u64, bool),
    /// An instance's checkpoint has ended.
    Checkpointed(u64),
    /// An instance's pages are local.
    Promoted(u64),
    /// An instance was idle for as long as it may be.
    Expired(u64),
    /// Work on a node may have had the processors for as long as it needs, if none has begun or ended since a change.
    Processors(u32, u64),
    /// Something that the agents wait for.
    Agents(Later),
    /// Evicted ghosts have ended: their node, their number in the fleet, and their bytes.
    GhostsLeft(NodeId, u64, u64),
    /// Transfers may be over, if none has begun or ended since a change.
    Link(Link, u64),
    /// A function has to look again.
    Wake(u32),
    /// The memory of nodes is looked at.
    Relief,
    /// The pool is looked at.
    Reclaim,
}

/// Events that are due later. What is due at one moment happens in the order in which it was added.
#[derive(Debug, Default)]
pub struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next: u64,
}

impl Agenda {
    /// Adds an event.
    pub fn add(&mut self, at_us: u64, event: Event) {
        let place = self.place();
        self.heap.push(Reverse((at_us, place, event)));
    }

    /// When the next event is due.
    pub fn due_us(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_us, ..))| *at_us)
    }

    /// Takes the next event, and its place in the order in which events were added.
    pub fn take(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((_, place, event))| (place, event))
    }

    /// A place in that order, for something else that is about to be due.
    pub fn place(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_at_one_moment_keeps_its_order() {
        let mut agenda = Agenda::default();
        for (at_us, event) in [(5, Event::Wake(1)), (3, Event::Wake(2)), (5, Event::Started(0))] {
            agenda.add(at_us, event);
        }
        assert_eq!(agenda.due_us(), Some(3));
        let taken: Vec<Event> =
            std::iter::from_fn(|| agenda.take()).map(|(_, event)| event).collect();
        assert_eq!(taken, [Event::Wake(2), Event::Wake(1), Event::Started(0)]);
    }
}
