//! Threads that accept and serve connections.
//!
//! A request wakes a thread that already waits in `accept`, so that no thread is started and
//! none is woken by another on the way to a clone. A session may last as long as its clone:
//! whenever few threads wait, the supervising thread starts more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::channel::Channel;
use crate::session::Node;

/// Threads that shall wait for connections.
const WAITING: usize = 4;
/// Threads beyond this end after their session.
const MOST_WAITING: usize = 16;

/// What the threads of an agent share.
pub struct Workers {
    node: Arc<Node>,
    listener: OwnedFd,
    counts: Mutex<Counts>,
    is_short: Condvar,
}

#[derive(Default)]
struct Counts {
    waiting: usize,
    serving: usize,
}

impl Workers {
    /// Workers that accept at `listener`, none of them started yet.
    pub fn new(node: Arc<Node>, listener: OwnedFd) -> Arc<Workers> {
        let counts = Mutex::default();
        Arc::new(Workers { node, listener, counts, is_short: Condvar::new() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Two numbers are valid after every step.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps enough threads waiting, for at most `time`; true if no session is going on after it.
    pub fn supervise(self: &Arc<Self>, time: Duration) -> bool {
        let counts = self.counts();
        let enough = |counts: &mut Counts| counts.waiting >= WAITING;
        let (mut counts, _) = self
            .is_short
            .wait_timeout_while(counts, time, enough)
            .unwrap_or_else(PoisonError::into_inner);
        for _ in counts.waiting..WAITING {
            let workers = Arc::clone(self);
            counts.waiting += 1;
            thread::spawn(move || workers.work());
        }
        counts.serving == 0
    }

    fn work(&self) {
        loop {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            let connection = rustix::net::accept_with(self.listener.as_fd(), flags);
            self.begin();
            self.node.registry.touch();
            // A client that has gone has nobody to tell.
            let _ = connection
                .map_err(|errno| crate::NodeError::Connection(errno.into()))
                .and_then(Channel::new)
                .and_then(|channel| self.node.serve(&channel));
            if !self.finish() {
                return;
            }
        }
    }

    fn begin(&self) {
        let mut counts = self.counts();
        counts.waiting -= 1;
        counts.serving += 1;
        if counts.waiting < WAITING / 2 {
            self.is_short.notify_one();
        }
    }

    /// Whether this thread shall wait for another connection.
    fn finish(&self) -> bool {
        let mut counts = self.counts();
        counts.serving -= 1;
        let stays = counts.waiting < MOST_WAITING;
        counts.waiting += usize::from(stays);
        stays
    }
}
