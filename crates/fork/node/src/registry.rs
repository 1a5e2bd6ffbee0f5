//! The clones of this node.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use farfork_pool::BorrowedImage;
use farfork_restore::{Event, Members, Started};
use farfork_sys::pidfd;
use farfork_types::wire::MissingPage;
use farfork_types::{Cid, LocalShare, Tiering};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};

use crate::ghosts::Container;
use crate::images::{NodeImage, NodePool};
use crate::missing;
use crate::profile::Profile;
use farfork_sys::sync::{locked, unpoisoned};

/// Most ended clones that are remembered for `wait`.
const REMEMBERED: usize = 4096;

/// A clone that has been started.
#[derive(Debug)]
pub struct RunningClone {
    /// Its pid as seen here.
    pub pid: i32,
    /// Its image.
    pub cid: Cid,
    /// Name it was asked for by.
    pub name: String,
    /// When its pages become local.
    pub tiering: Tiering,
    /// Which pages it touches, if it is watched.
    pub profile: Option<Arc<Profile>>,
    /// The pool of its image.
    pub pool: Arc<NodePool>,
    /// Its image as this node has it.
    pub image: Arc<NodeImage>,
    /// The share of near memory that was asked for last.
    pub local_share: Mutex<Option<LocalShare>>,
    /// Held while a share is made near: one call at a time.
    pub share_turn: Mutex<()>,
    /// Bytes that were made local while it ran.
    pub promoted_bytes: AtomicU64,
    /// When it was added, in microseconds since 1970.
    added_unix_us: u64,
    seen: AtomicI32,
    started: Started,
    /// All its descendants, if the kernel does not end them with its init.
    members: Option<Members>,
    /// The clone and no other process that has its pid later; nothing if it has ended already.
    process: Option<OwnedFd>,
    pin: Mutex<Option<BorrowedImage>>,
    /// Whether it was killed. It is not frozen after that, or would not end.
    is_killed: AtomicBool,
    /// What it runs in, if it was started in a ghost.
    container: Mutex<Option<Container>>,
}

/// The end of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneEnd {
    /// As `waitpid` gives it.
    pub wait_status: i32,
    /// A message, if more is known.
    pub reason: Option<String>,
    /// The page whose absence ended it.
    pub missing: Option<MissingPage>,
}

/// Why a clone ends whose init was killed.
const WITHOUT_INIT: &str = "its init was killed, so the clone was ended, too: its memory calls need the \
    init; start it again";

impl RunningClone {
    /// Its pid as its caller sees it, maybe from another PID namespace.
    pub fn seen(&self) -> i32 {
        self.seen.load(Ordering::SeqCst)
    }

    /// Sends it a signal by number; one that has ended takes none. It may be the clone's end.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        if let Some(profile) = &self.profile {
            profile.sample();
        }
        let ended = || io::Error::from_raw_os_error(libc::ESRCH);
        let process = self.process.as_ref().ok_or_else(ended)?;
        match signal {
            libc::SIGKILL => self.kill(process),
            _ => pidfd::send_signal(process, signal),
        }
    }

    /// Kills it and all that it has begun, and thaws it: a frozen process does not end. From now on it is not frozen any more.
    fn kill(&self, process: &OwnedFd) -> io::Result<()> {
        self.is_killed.store(true, Ordering::SeqCst);
        pidfd::send_signal(process, libc::SIGKILL)?;
        self.ghost(Container::kill_all_but_first);
        self.resume()
    }

    /// Freezes its container.
    pub fn pause(&self) -> io::Result<()> {
        let outside = io::Error::new(io::ErrorKind::Unsupported, "it was not started in a ghost");
        // Under the lock of the container, so that a concurrent kill thaws it after this.
        let freeze = |container: &Container| match self.is_killed.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            false => container.freeze(),
        };
        self.ghost(freeze).unwrap_or(Err(outside))
    }

    /// Thaws its container.
    pub fn resume(&self) -> io::Result<()> {
        self.ghost(Container::thaw).unwrap_or(Ok(()))
    }

    /// Kills the clone of an init that was killed, with all its descendants: no supervisor answers their
    /// memory calls any more. Waits until they map nothing any more. Where the init was pid 1 the kernel
    /// does both.
    fn follow_init(&self) {
        if let Some(members) = &self.members {
            members.end();
        }
        if let Some(process) = &self.process {
            let _ = self.kill(process);
            let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], None);
        }
    }

    /// Looks at the container of its ghost, if it has one and has not ended.
    pub fn ghost<T>(&self, at: impl FnOnce(&Container) -> T) -> Option<T> {
        locked(&self.container).as_ref().map(at)
    }

    /// Name of its ghost.
    pub fn ghost_id(&self) -> Option<String> {
        self.ghost(|container| container.id.clone())
    }

    /// Takes its container away, which may last: never under the lock of the tables.
    fn leave_container(&self) {
        let container = locked(&self.container).take();
        drop(container);
    }

    /// The page whose absence ended it.
    fn missing_page(&self, wait_status: i32) -> Option<MissingPage> {
        let pool = self.pool.pool().path();
        missing::page_of(pool, self.cid, self.pid, self.added_unix_us, wait_status)
    }

    /// Drops the pin, which may give chunks back: never under the lock of the tables.
    fn unpin(&self) {
        let pin = locked(&self.pin).take();
        drop(pin);
    }
}

/// CloneNumber of a clone. Pids come again, while an older clone of the same pid is still listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CloneNumber(u64);

/// A clone that has started, as it is registered.
#[derive(Debug)]
pub struct CloneOrigin {
    /// Its pid as seen here.
    pub pid: i32,
    /// Its image.
    pub cid: Cid,
    /// Name it was asked for by.
    pub name: String,
    /// When its pages become local.
    pub tiering: Tiering,
    /// Which pages it touches, if it is watched.
    pub profile: Option<Arc<Profile>>,
    /// The pool of its image.
    pub pool: Arc<NodePool>,
    /// Its image as this node has it.
    pub image: Arc<NodeImage>,
    /// The share of near memory that was asked for.
    pub local_share: Option<LocalShare>,
    /// Keeps the image in the pool.
    pub pin: BorrowedImage,
    /// Its ghost's container, if it was started in a ghost.
    pub container: Option<Container>,
}

/// What it takes to follow a clone to its end.
#[derive(Debug)]
pub struct FollowedClone {
    number: CloneNumber,
    process: Option<OwnedFd>,
    members: Option<Members>,
}

/// What is remembered of a clone that has ended.
#[derive(Debug)]
struct EndedClone {
    number: CloneNumber,
    seen: i32,
    end: CloneEnd,
}

/// How a clone has ended.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// The init has reported the clone's wait status.
    Exited(i32),
    /// The init has ended without a report: it was killed.
    InitKilled,
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
    living: BTreeMap<CloneNumber, Arc<RunningClone>>,
    /// In the order of their ends.
    ended: VecDeque<EndedClone>,
    next: u64,
    idle_since: Instant,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> io::Result<Registry> {
        let state = State {
            living: BTreeMap::new(),
            ended: VecDeque::new(),
            next: 0,
            idle_since: Instant::now(),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Registry { state: Mutex::new(state), changed: Condvar::new(), epoll })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Begins to follow a clone; [`add`](Registry::add) is next. Without this its end would never
    /// be seen.
    pub fn follow(&self, pid: i32, started: &Started) -> io::Result<FollowedClone> {
        let process = match pidfd::open(pid) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            other => Some(other?),
        };
        let members = if started.has_namespace {
            None
        } else {
            // The init's first: the clone may have changed its namespaces.
            Members::of_process(started.init_pid()).or_else(|_| Members::of_process(pid)).ok()
        };
        let mut state = self.state();
        let number = CloneNumber(state.next);
        epoll::add(&self.epoll, started.as_fd(), EventData::new_u64(number.0), EventFlags::IN)?;
        state.next += 1;
        Ok(FollowedClone { number, process, members })
    }

    /// Adds a running clone.
    pub fn add(
        &self,
        followed: FollowedClone,
        origin: CloneOrigin,
        started: Started,
    ) -> CloneNumber {
        let FollowedClone { number, process, members } = followed;
        let clone = RunningClone {
            pid: origin.pid,
            cid: origin.cid,
            name: origin.name,
            tiering: origin.tiering,
            profile: origin.profile,
            pool: origin.pool,
            image: origin.image,
            local_share: Mutex::new(origin.local_share),
            share_turn: Mutex::new(()),
            promoted_bytes: AtomicU64::new(0),
            added_unix_us: missing::now_unix_us(),
            seen: AtomicI32::new(origin.pid),
            started,
            members,
            process,
            pin: Mutex::new(Some(origin.pin)),
            is_killed: AtomicBool::new(false),
            container: Mutex::new(origin.container),
        };
        self.state().living.insert(number, Arc::new(clone));
        number
    }

    /// Clones that live.
    pub fn living(&self) -> Vec<Arc<RunningClone>> {
        self.state().living.values().cloned().collect()
    }

    /// The living clone with this number.
    pub fn get(&self, number: CloneNumber) -> Option<Arc<RunningClone>> {
        self.state().living.get(&number).cloned()
    }

    /// Notes the pid by which the caller sees its clone. The caller knows of the clone from now on.
    pub fn seen(&self, number: CloneNumber, seen: i32) {
        let mut state = self.state();
        // A pid that comes again means the younger clone.
        state.ended.retain(|ended| ended.seen != seen || ended.number == number);
        if let Some(clone) = state.living.get(&number) {
            clone.seen.store(seen, Ordering::SeqCst);
            clone.started.confirm();
        } else if let Some(ended) = state.ended.iter_mut().find(|ended| ended.number == number) {
            ended.seen = seen;
        }
    }

    /// The clone that a call is `about`, by the pid that the kernel has translated, or else the one that
    /// its caller sees as `seen`, alive or not; the youngest of several.
    pub fn find(&self, about: Option<i32>, seen: i32) -> Option<CloneNumber> {
        let state = self.state();
        let living = |is_it: &dyn Fn(&RunningClone) -> bool| {
            state.living.iter().rev().find(|(_, clone)| is_it(clone)).map(|(number, _)| *number)
        };
        let ended = || state.ended.iter().rev().find(|ended| ended.seen == seen);
        about
            .and_then(|pid| living(&|clone| clone.pid == pid))
            .or_else(|| living(&|clone| clone.seen() == seen))
            .or_else(|| Some(ended()?.number))
    }

    /// Waits for the end of a clone; nothing if it is not known any more.
    pub fn wait(&self, number: CloneNumber) -> Option<CloneEnd> {
        let mut state = self.state();
        loop {
            if let Some(ended) = state.ended.iter().find(|ended| ended.number == number) {
                return Some(ended.end.clone());
            }
            if !state.living.contains_key(&number) {
                return None;
            }
            state = unpoisoned(self.changed.wait(state));
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
        thread::scope(|scope| {
            let mut events = Vec::with_capacity(64);
            loop {
                events.clear();
                let buffer = rustix::buffer::spare_capacity(&mut events);
                if epoll::wait(&self.epoll, buffer, None).is_err() {
                    continue; // interrupted
                }
                for event in &events {
                    self.read_status(scope, CloneNumber(event.data.u64()));
                }
            }
        })
    }

    /// Reads a message of an init. The work after an end waits for other processes, which may take long,
    /// and so gets a thread of its own.
    fn read_status<'s>(&'s self, scope: &'s Scope<'s, '_>, number: CloneNumber) {
        let Some(clone) = self.get(number) else { return };
        let cause = match clone.started.next(&[]) {
            Ok(Event::Running { .. } | Event::Waits { .. } | Event::Warned(_)) => return,
            Ok(Event::Exited(status)) => Cause::Exited(status),
            Err(_) => Cause::InitKilled,
        };
        let _ = epoll::delete(&self.epoll, clone.started.as_fd());
        let finish = move || self.finish(number, cause);
        if thread::Builder::new().spawn_scoped(scope, finish).is_err() {
            finish();
        }
    }

    /// Init and clone hold the pin's lock until they have ended, and a process that waits for the clone
    /// may remove the pool next. So first the init is reaped, then the pin dropped, then the end reported.
    ///
    /// The container is deleted before the report, too: after it nothing is left.
    fn finish(&self, number: CloneNumber, cause: Cause) {
        let Some(clone) = self.get(number) else { return };
        if matches!(cause, Cause::InitKilled) {
            clone.follow_init();
        }
        // The init ends the others, too, when it gets a processor: hundreds of them may keep it from one.
        clone.ghost(Container::kill_all_but_first);
        let _ = waitpid(Pid::from_raw(clone.started.init_pid()), None);
        clone.unpin();
        let (wait_status, alone) = match cause {
            Cause::Exited(status) => (status, None),
            Cause::InitKilled => (libc::SIGKILL, Some(WITHOUT_INIT.to_owned())),
        };
        let missing = clone.missing_page(wait_status);
        let of_page = || missing.as_ref().map(missing::in_words);
        let reason = clone.ghost(Container::shortage).flatten().or(alone).or_else(of_page);
        clone.leave_container();
        drop(clone);
        self.end(number, CloneEnd { wait_status, reason, missing });
    }

    fn end(&self, number: CloneNumber, end: CloneEnd) {
        let mut state = self.state();
        let Some(clone) = state.living.remove(&number) else { return };
        state.ended.push_back(EndedClone { number, seen: clone.seen(), end });
        if state.ended.len() > REMEMBERED {
            state.ended.pop_front();
        }
        state.idle_since = Instant::now();
        drop(state);
        self.changed.notify_all();
    }
}
