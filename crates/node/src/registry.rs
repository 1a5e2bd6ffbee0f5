//! The clones of this node.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_restore::{Event, Started};
use farfork_types::Cid;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::images::Pin;

/// Most ended clones that are remembered for `wait`.
const REMEMBERED: usize = 4096;

/// A clone that has been started.
#[derive(Debug)]
pub struct Clone {
    /// Its pid as seen here.
    pub pid: i32,
    /// Its image.
    pub cid: Cid,
    /// Name it was asked for by.
    pub name: String,
    seen: AtomicI32,
    has_ended: AtomicBool,
    started: Started,
    /// Reaches the clone even when its init, whose child it is, has gone.
    process: Option<OwnedFd>,
    pin: Mutex<Option<Pin>>,
}

impl Clone {
    /// Its pid as seen by whoever started it, perhaps from another PID namespace.
    pub fn seen(&self) -> i32 {
        self.seen.load(Ordering::SeqCst)
    }

    /// Whether it is only listed until its image is unpinned; its pid may be another's by now.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Kills the clone of an init that was killed, as nobody is left to answer its memory calls,
    /// and waits until it maps nothing any more. Where the init was pid 1 the kernel does both.
    fn follow_init(&self) {
        if let Some(process) = &self.process {
            let _ = pidfd_send_signal(process, rustix::process::Signal::KILL);
            let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], None);
        }
    }

    /// Drops the pin, which may give chunks back: never under the lock of the tables.
    fn unpin(&self) {
        let pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(pin);
    }
}

/// What is remembered of a clone that has ended.
#[derive(Debug)]
struct Ended {
    pid: i32,
    seen: i32,
    wait_status: i32,
}

/// Clones that live and wait statuses of those that do not.
#[derive(Debug)]
pub struct Registry {
    state: Mutex<State>,
    changed: Condvar,
    epoll: rustix::fd::OwnedFd,
}

#[derive(Debug)]
struct State {
    living: HashMap<i32, Arc<Clone>>,
    ended: BTreeMap<u64, Ended>,
    next_end: u64,
    idle_since: Instant,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> std::io::Result<Registry> {
        let state = State {
            living: HashMap::new(),
            ended: BTreeMap::new(),
            next_end: 0,
            idle_since: Instant::now(),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Registry { state: Mutex::new(state), changed: Condvar::new(), epoll })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the tables valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a running clone.
    pub fn add(&self, pid: i32, cid: Cid, name: String, started: Started, pin: Pin) {
        let seen = AtomicI32::new(pid);
        let (has_ended, pin) = (AtomicBool::new(false), Mutex::new(Some(pin)));
        let process = rustix::process::Pid::from_raw(pid)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let clone = Arc::new(Clone { pid, cid, name, seen, has_ended, started, process, pin });
        let mut state = self.state();
        state.ended.retain(|_, ended| ended.pid != pid);
        let data = EventData::new_u64(pid as u64);
        let added = epoll::add(&self.epoll, clone.started.as_fd(), data, EventFlags::IN);
        state.living.insert(pid, clone);
        drop(state);
        if added.is_err() {
            // Without a watch its end would never be seen.
            self.kill_and_end(pid);
        }
    }

    fn kill_and_end(&self, pid: i32) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        self.end(pid, libc::SIGKILL);
    }

    /// Clones that live.
    pub fn living(&self) -> Vec<Arc<Clone>> {
        self.state().living.values().cloned().collect()
    }

    /// The living clone with this pid.
    pub fn get(&self, pid: i32) -> Option<Arc<Clone>> {
        self.state().living.get(&pid).cloned()
    }

    /// Notes how whoever started a clone sees it, who knows of it from now on.
    pub fn seen(&self, pid: i32, seen: i32) {
        let mut state = self.state();
        // A number that comes again means the younger clone.
        state.ended.retain(|_, ended| ended.seen != seen || ended.pid == pid);
        if let Some(clone) = state.living.get(&pid) {
            clone.seen.store(seen, Ordering::SeqCst);
            clone.started.is_known();
        } else if let Some(ended) = state.ended.values_mut().find(|ended| ended.pid == pid) {
            ended.seen = seen;
        }
    }

    /// The pid here of the clone that the kernel says a call is `about`, or else of the one that
    /// was started as `seen`, be it alive or not.
    pub fn pid_of(&self, about: Option<i32>, seen: i32) -> Option<i32> {
        let state = self.state();
        let living = about.filter(|pid| state.living.contains_key(pid));
        let by_name = || state.living.values().find(|clone| clone.seen() == seen);
        let ended = || state.ended.values().find(|ended| ended.seen == seen);
        living.or_else(|| Some(by_name()?.pid)).or_else(|| Some(ended()?.pid))
    }

    /// Waits for the end of a clone; nothing if there is none with this pid.
    pub fn wait(&self, pid: i32) -> Option<i32> {
        let mut state = self.state();
        loop {
            if let Some(ended) = state.ended.values().find(|ended| ended.pid == pid) {
                return Some(ended.wait_status);
            }
            if !state.living.contains_key(&pid) {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How long there has been no living clone.
    pub fn idle_for(&self) -> Duration {
        let state = self.state();
        if state.living.is_empty() { state.idle_since.elapsed() } else { Duration::ZERO }
    }

    /// Starts the idle time anew.
    pub fn touch(&self) {
        self.state().idle_since = Instant::now();
    }

    /// Follows the clones' ends for ever.
    pub fn watch(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            if epoll::wait(&self.epoll, buffer, None).is_err() {
                continue; // interrupted
            }
            for event in &events {
                self.follow(event.data.u64() as i32);
            }
        }
    }

    fn follow(&self, pid: i32) {
        let Some(clone) = self.get(pid) else { return };
        let status = match clone.started.next(&[]) {
            Ok(Event::Exited(status)) => status,
            Ok(Event::Running { .. } | Event::Warned(_)) => return,
            // The init is gone without a word: it was killed.
            Err(_) => {
                clone.follow_init();
                libc::SIGKILL
            }
        };
        clone.has_ended.store(true, Ordering::SeqCst);
        let _ = epoll::delete(&self.epoll, clone.started.as_fd());
        // The init holds a copy of the pin's lock until it has gone, and whoever waits for the
        // clone may go on to remove the pool: first the init, then the pin, then the news.
        let _ = waitpid(Pid::from_raw(clone.started.init_pid()), None);
        clone.unpin();
        drop(clone);
        self.end(pid, status);
    }

    fn end(&self, pid: i32, status: i32) {
        let mut state = self.state();
        let clone = state.living.remove(&pid);
        let number = state.next_end;
        state.next_end += 1;
        let seen = clone.as_ref().map_or(pid, |clone| clone.seen());
        state.ended.insert(number, Ended { pid, seen, wait_status: status });
        if state.ended.len() > REMEMBERED {
            state.ended.pop_first();
        }
        state.idle_since = Instant::now();
        drop(state);
        self.changed.notify_all();
    }
}
