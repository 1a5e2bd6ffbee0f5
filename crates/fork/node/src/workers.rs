//! Threads that accept and serve connections.
//!
//! A request wakes a thread that already waits in `accept`, so that no thread is started and
//! none is woken by another on the way to a clone. A session may last as long as its clone:
//! whenever few threads wait, the supervising thread starts more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use farfork_types::wire::Reply;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::channel::Channel;
use crate::error::NodeError;
use crate::session::Node;
use farfork_sys::sync::{locked, unpoisoned};

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
    spare: Mutex<Option<OwnedFd>>,
}

/// A descriptor that is closed when all others are in use.
fn spare() -> Option<OwnedFd> {
    open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
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
        let spare = Mutex::new(spare());
        Arc::new(Workers { node, listener, counts, is_short: Condvar::new(), spare })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        locked(&self.counts)
    }

    /// Keeps enough threads waiting, for at most `time`; true if no session is going on after it.
    pub fn supervise(self: &Arc<Self>, time: Duration) -> bool {
        let counts = self.counts();
        let enough = |counts: &mut Counts| counts.waiting >= WAITING;
        let waited = self.is_short.wait_timeout_while(counts, time, enough);
        let (mut counts, _) = unpoisoned(waited);
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
            // A client that has exited gets no answer.
            let _ = match connection {
                Ok(connection) => {
                    Channel::new(connection).and_then(|channel| self.node.serve(&channel))
                }
                Err(Errno::MFILE | Errno::NFILE) => self.refuse(),
                Err(errno) => Err(NodeError::Connection(errno.into())),
            };
            if !self.finish() {
                return;
            }
        }
    }

    /// Refuses a client, with the descriptor kept for that: there is none for its session. Without an
    /// answer the client would wait as long as the limit is reached.
    fn refuse(&self) -> Result<(), NodeError> {
        let mut kept = locked(&self.spare);
        let is_kept = kept.take().is_some();
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polls = [PollFd::new(&self.listener, PollFlags::IN)];
        let is_waiting = poll(&mut polls, Some(&now)).is_ok_and(|ready| ready > 0);
        let result = if is_kept && is_waiting { self.refuse_one() } else { Ok(()) };
        *kept = spare();
        if kept.is_none() {
            // The descriptor was taken meanwhile; none is free before another is closed.
            thread::sleep(Duration::from_millis(50));
        }
        result
    }

    fn refuse_one(&self) -> Result<(), NodeError> {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let connection = rustix::net::accept_with(self.listener.as_fd(), flags)
            .map_err(|errno| NodeError::Connection(errno.into()))?;
        let message = NodeError::TooManyFiles.to_string();
        Channel::new(connection)?.send(&Reply::Failed { message }, &[])
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
