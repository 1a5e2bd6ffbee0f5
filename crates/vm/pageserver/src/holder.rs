//! The process that keeps each machine's descriptors, whatever becomes of the server.

mod error;
mod event;
mod joining;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use farfork_image::vm::Snapshot;
use farfork_pool::ImageFile;
use farfork_sys::{limits, words};
use farfork_types::PAGE_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::channel;
use crate::counters::Counters;
use crate::handover::{HandOver, HandOverError, Region, Regions};
use crate::hot::HotPages;
use crate::hotness::{Given, Hotness, Withheld};
use crate::ledger::Ledger;
use crate::message::{Command, Report, VERSION};
use crate::peer::Peer;

pub use error::HolderError;
pub use event::Event;
use joining::Joining;

/// How long servers may die one after the other before one is ready. Guests wait no longer.
const START_LIMIT: Duration = Duration::from_secs(5);
/// Hot pages that a server keeps in memory. Others that all machines need are replayed and saved, too.
const MOST_HOT_PAGES: usize = (crate::cache::MOST_BYTES / PAGE_BYTES) as usize;
const PAUSE: Duration = Duration::from_millis(10);
/// Servers that may die without a pause between them.
const AT_ONCE: u32 = 3;
/// Bytes of a signal that is read (`struct signalfd_siginfo`).
const SIGNAL_BYTES: usize = 128;

/// Starts a server: a process that calls [`serve`](crate::serve) with this channel.
pub type Start<'a> = &'a mut dyn FnMut(OwnedFd) -> io::Result<Child>;

/// Which machines to record pages of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Those that end while nothing is known of the snapshot's pages.
    First,
    /// All. Each has to ask for one in so many hot pages, other ones than the machine before, so that pages are found that
    /// are not needed any more.
    All {
        /// One in so many.
        share: u64,
    },
    /// None.
    Nothing,
}

/// What is known of the pages that machines of a snapshot need, and what becomes of what is learnt: numbers of
/// pages of the guest's memory, in the order in which they were needed.
pub struct Recording<'a> {
    /// Which machines to record.
    pub record: Record,
    /// Pages that are known to be needed.
    pub known: Vec<u32>,
    /// Called when other pages are hot than before.
    pub save: &'a mut dyn FnMut(Learnt),
}

/// What a machine that has ended has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// Pages that are hot now.
    pub hot: Vec<u32>,
    /// How many were hot before, and are not any more.
    pub forgotten: u64,
}

/// A machine: what its server needs, and the next one as well.
struct Kept {
    userfault: OwnedFd,
    socket: OwnedFd,
    ledger: OwnedFd,
    memory_bytes: u64,
    regions: Vec<Region>,
    peer: Peer,
    begun: Instant,
    /// Its hot pages are there.
    is_filled: bool,
    /// What it was given before it asked.
    given: Given,
}

struct Server {
    child: Child,
    channel: OwnedFd,
}

/// Accepts machines at a socket, and has a server serve them.
pub struct Holder<'a> {
    path: PathBuf,
    file: &'a ImageFile,
    memory_bytes: u64,
    start: Start<'a>,
    show: &'a mut dyn FnMut(Event),
    recording: Recording<'a>,
    replays: usize,
    hotness: Hotness,
    hot: (OwnedFd, HotPages),
    /// The same pages.
    hot_set: Rc<HashSet<u32>>,
    listener: Option<UnixListener>,
    server: Option<Server>,
    /// Servers that died since one was ready, and since when that is so.
    failures: u32,
    unready_since: Instant,
    joining: Vec<Joining>,
    machines: BTreeMap<u64, Kept>,
    next: u64,
}

impl<'a> Holder<'a> {
    /// Listens at `path`, which only this user can connect to, for machines of `snapshot`, which lies in
    /// `file`. `start` starts a server; `show` is called with all that happens. Pages that are known to be
    /// needed are filled before a machine asks for them.
    ///
    /// # Errors
    /// [`HolderError::Listen`], [`HolderError::InUse`].
    pub fn listen(
        path: &Path,
        (snapshot, file): (&Snapshot, &'a ImageFile),
        start: Start<'a>,
        show: &'a mut dyn FnMut(Event),
        recording: Recording<'a>,
    ) -> Result<Holder<'a>, HolderError> {
        // Each machine has three descriptors here.
        let _ = limits::raise_open_files(0);
        let hotness = Hotness::known(&recording.known);
        let known = hotness.hot(MOST_HOT_PAGES);
        let hot = hot_pages(snapshot.map.memory_bytes(), &known);
        let hot = hot.map_err(|source| HolderError::Listen { path: path.to_owned(), source })?;
        Ok(Holder {
            path: path.to_owned(),
            file,
            memory_bytes: snapshot.map.memory_bytes(),
            start,
            show,
            recording,
            replays: std::thread::available_parallelism().map_or(1, usize::from),
            hotness,
            hot,
            hot_set: Rc::new(known.into_iter().collect()),
            listener: Some(bind(path)?),
            server: None,
            failures: 0,
            unready_since: Instant::now(),
            joining: Vec::new(),
            machines: BTreeMap::new(),
            next: 1,
        })
    }

    /// Has so many machines filled at once, not as many as there are processors. Others wait for their turn, in the order in
    /// which they came; faults do not wait.
    #[must_use]
    pub fn with_replays(self, replays: usize) -> Holder<'a> {
        Holder { replays, ..self }
    }

    /// Holds machines until it is asked to stop and all have ended. When it is asked again it ends them.
    /// Whatever can be read from `stops`, such as a signal, asks once.
    ///
    /// # Errors
    /// [`HolderError`]. The processes of the machines that were left have been killed: no server would
    /// answer their faults.
    pub fn run(&mut self, stops: BorrowedFd<'_>) -> Result<(), HolderError> {
        let result = self.start_server().and_then(|()| {
            (self.show)(Event::Listening { path: self.path.clone() });
            self.hold(stops)
        });
        if result.is_err() {
            self.kill_machines();
        }
        self.stop_accepting();
        if let Some(Server { mut child, channel }) = self.server.take() {
            drop(channel);
            let _ = child.wait();
        }
        result
    }

    fn hold(&mut self, stops: BorrowedFd<'_>) -> Result<(), HolderError> {
        while self.listener.is_some() || !self.machines.is_empty() {
            let ready = self.wait(stops)?;
            if ready.stop && rustix::io::read(stops, &mut [0; SIGNAL_BYTES]).is_ok() {
                self.stop()?;
            }
            if ready.server {
                self.read_report()?;
            }
            if ready.listener {
                self.accept();
            }
            self.join();
        }
        Ok(())
    }

    fn wait(&mut self, stops: BorrowedFd<'_>) -> Result<Ready, HolderError> {
        let timeout = self.joining.iter().map(Joining::time_left).min();
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = vec![PollFd::from_borrowed_fd(stops, PollFlags::IN)];
        if let Some(server) = &self.server {
            polled.push(PollFd::new(&server.channel, PollFlags::IN));
        }
        if let Some(listener) = &self.listener {
            polled.push(PollFd::new(listener, PollFlags::IN));
        }
        polled.extend(self.joining.iter().map(|one| PollFd::new(&one.socket, PollFlags::IN)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(HolderError::Wait(errno)),
        }
        let mut is_ready = polled.iter().map(|one| !one.revents().is_empty());
        let mut next = |is_polled: bool| is_polled && is_ready.next().unwrap_or_default();
        let stop = next(true);
        let server = next(self.server.is_some());
        Ok(Ready { stop, server, listener: next(self.listener.is_some()) })
    }

    /// The first time: no new machines. The second: an error.
    fn stop(&mut self) -> Result<(), HolderError> {
        if self.listener.is_none() {
            return Err(HolderError::Interrupted { machines: self.machines.len() });
        }
        self.stop_accepting();
        if !self.machines.is_empty() {
            (self.show)(Event::Stopping { machines: self.machines.len() });
        }
        Ok(())
    }

    fn stop_accepting(&mut self) {
        if self.listener.take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
        self.joining.clear();
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        match listener.accept() {
            Ok((socket, _)) => Joining::add(&mut self.joining, socket.into()),
            // Out of descriptors, most likely: others may end.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }

    /// Takes in machines whose hand-over is complete or has failed.
    fn join(&mut self) {
        let mut index = 0;
        while index < self.joining.len() {
            match self.joining[index].receive() {
                Ok(false) => index += 1,
                outcome => {
                    let joined = self.joining.swap_remove(index);
                    self.admit(joined, outcome.err());
                }
            }
        }
    }

    /// Has a machine served, or, if it is refused, each of its accesses end in SIGBUS: its monitor waits for
    /// no answer, so that nothing else would show it.
    fn admit(&mut self, joined: Joining, refused: Option<HandOverError>) {
        let Joining { socket, hand_over, peer, .. } = joined;
        let checked =
            Regions::checked(hand_over.regions(), self.memory_bytes).and_then(|regions| {
                regions.demand_whole(self.memory_bytes)?;
                Ok(regions)
            });
        let refused = refused.or_else(|| checked.as_ref().err().cloned());
        let regions = match (&refused, checked) {
            (None, Ok(regions)) => regions.all().to_vec(),
            _ => Vec::new(),
        };
        let pid = peer.pid;
        let HandOver { userfaults, .. } = hand_over;
        if let Some(why) = &refused {
            let is_stopped = !userfaults.is_empty();
            (self.show)(Event::Refused { pid, why: why.clone(), is_stopped });
        }
        for userfault in userfaults {
            let machine = self.next;
            self.next += 1;
            match self.keep(machine, userfault, &socket, &regions, &peer) {
                Ok(kept) => {
                    if refused.is_none() {
                        let bytes = kept.regions.iter().map(|region| region.size).sum();
                        (self.show)(Event::Started { machine, pid, bytes });
                    }
                    self.machines.insert(machine, kept);
                    self.adopt(machine, true);
                }
                Err(error) => {
                    peer.kill();
                    (self.show)(Event::Failed { machine, pid, why: words::of(&error) });
                }
            }
        }
    }

    fn keep(
        &self,
        machine: u64,
        userfault: OwnedFd,
        socket: &OwnedFd,
        regions: &[Region],
        peer: &Peer,
    ) -> io::Result<Kept> {
        Ok(Kept {
            userfault,
            socket: socket.try_clone()?,
            ledger: Ledger::create(self.memory_bytes)?.into(),
            memory_bytes: self.memory_bytes,
            regions: regions.to_vec(),
            peer: peer.try_clone()?,
            begun: Instant::now(),
            is_filled: false,
            given: Given {
                hot: Rc::clone(&self.hot_set),
                withheld: self.withheld(machine, regions),
            },
        })
    }

    /// Which hot pages a machine is to ask for.
    fn withheld(&self, turn: u64, regions: &[Region]) -> Option<Withheld> {
        let Record::All { share } = self.recording.record else { return None };
        let unit = regions.iter().map(|region| region.page_size / PAGE_BYTES).max().unwrap_or(1);
        Some(Withheld { share, turn, unit })
    }

    /// Sends a machine to the server. If that fails the server has died, which is seen next.
    fn adopt(&mut self, machine: u64, is_fresh: bool) {
        let (Some(server), Some(kept)) = (&self.server, self.machines.get(&machine)) else {
            return;
        };
        let &Kept { memory_bytes, ref regions, is_filled, .. } = kept;
        let regions = regions.clone();
        let withheld = kept.given.withheld;
        let command =
            Command::Adopt { machine, memory_bytes, regions, is_fresh, is_filled, withheld };
        let descriptors = [kept.userfault.as_fd(), kept.socket.as_fd(), kept.ledger.as_fd()];
        let _ = channel::send(&server.channel, &command, &descriptors);
    }

    fn read_report(&mut self) -> Result<(), HolderError> {
        let Some(server) = &self.server else { return Ok(()) };
        match channel::receive::<Report>(&server.channel, RecvFlags::DONTWAIT) {
            Ok(Some((Report::Ready, _))) => self.failures = 0,
            Ok(Some((Report::Filled { machine, counters }, _))) => self.filled(machine, counters),
            Ok(Some((Report::Ended { machine, failed, counters }, _))) => {
                let Some(kept) = self.machines.remove(&machine) else { return Ok(()) };
                let pid = kept.peer.pid;
                match failed {
                    Some(why) => {
                        kept.peer.kill();
                        (self.show)(Event::Failed { machine, pid, why });
                    }
                    None if kept.regions.is_empty() => {}
                    None => {
                        self.record(&kept);
                        (self.show)(Event::Ended { machine, pid, counters });
                    }
                }
            }
            Err(Errno::AGAIN) => {}
            Ok(None) | Err(_) => return self.replace_server(),
        }
        Ok(())
    }

    /// Shows once that a machine's hot pages are there. A machine that was refused has none.
    fn filled(&mut self, machine: u64, counters: Counters) {
        let Some(kept) = self.machines.get_mut(&machine) else { return };
        if !std::mem::replace(&mut kept.is_filled, true) && !kept.regions.is_empty() {
            let (pid, took) = (kept.peer.pid, kept.begun.elapsed());
            (self.show)(Event::Filled { machine, pid, pages: counters.hot_pages, took });
        }
    }

    /// Learns which pages a machine has needed.
    fn record(&mut self, kept: &Kept) {
        let is_wanted = match self.recording.record {
            Record::First => self.hot_set.is_empty(),
            Record::All { .. } => true,
            Record::Nothing => false,
        };
        if let Ok(ledger) = Ledger::open(&kept.ledger, kept.memory_bytes)
            && is_wanted
        {
            self.hotness.observe(&ledger.touched(), &kept.given);
            self.adapt();
        }
    }

    /// Has later machines get the pages that are hot now.
    fn adapt(&mut self) {
        let hot = self.hotness.hot(MOST_HOT_PAGES);
        let set: HashSet<u32> = hot.iter().copied().collect();
        if set == *self.hot_set {
            return;
        }
        let forgotten = self.hot_set.difference(&set).count() as u64;
        if forgotten == 0 {
            self.hot.1.add(&hot);
        } else if let Ok(other) = hot_pages(self.memory_bytes, &hot) {
            self.hot = other;
            if let Some(server) = &self.server {
                // If that fails the server has died, and the next one gets these.
                let _ = channel::send(&server.channel, &Command::Hot, &[self.hot.0.as_fd()]);
            }
        } else {
            return;
        }
        self.hot_set = Rc::new(set);
        (self.show)(Event::Adapted { pages: hot.len() as u64, forgotten });
        (self.recording.save)(Learnt { hot, forgotten });
    }

    /// The server has died, or does not make sense any more.
    fn replace_server(&mut self) -> Result<(), HolderError> {
        let begun = Instant::now();
        let status = self.server.take().and_then(|mut server| {
            let _ = server.child.kill();
            server.child.wait().ok()
        });
        self.fail();
        self.start_server()?;
        let machines = self.machines.len();
        (self.show)(Event::Replaced { status, machines, took: begun.elapsed() });
        Ok(())
    }

    /// Starts a server, and has it go on with all machines.
    fn start_server(&mut self) -> Result<(), HolderError> {
        let mut last: Option<io::Error> = None;
        while self.failures == 0 || self.unready_since.elapsed() < START_LIMIT {
            match self.try_start() {
                Ok(server) => {
                    self.server = Some(server);
                    let machines: Vec<u64> = self.machines.keys().copied().collect();
                    machines.into_iter().for_each(|machine| self.adopt(machine, false));
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
            self.fail();
        }
        let why =
            last.map_or("each died before it was ready".to_owned(), |error| words::of(&error));
        Err(HolderError::NoServer { why, machines: self.machines.len() })
    }

    fn fail(&mut self) {
        if self.failures == 0 {
            self.unready_since = Instant::now();
        }
        self.failures += 1;
        if self.failures > AT_ONCE {
            std::thread::sleep(PAUSE);
        }
    }

    fn try_start(&mut self) -> io::Result<Server> {
        let (own, other) = channel::pair()?;
        let child = (self.start)(other)?;
        let (cid, replays) = (self.file.id.cid.to_string(), self.replays);
        let command = Command::Serve { version: VERSION, cid, replays };
        let mut files = vec![self.file.file().as_fd(), self.hot.0.as_fd()];
        files.extend(self.file.far_file().map(AsFd::as_fd));
        channel::send(&own, &command, &files)?;
        Ok(Server { child, channel: own })
    }

    /// Kills the processes of all machines: without a server each would wait for ever at its next fault.
    fn kill_machines(&mut self) {
        for (machine, kept) in std::mem::take(&mut self.machines) {
            let is_killed = kept.peer.kill();
            (self.show)(Event::Killed { machine, pid: kept.peer.pid, is_killed });
        }
    }
}

/// What can be read.
struct Ready {
    stop: bool,
    server: bool,
    listener: bool,
}

fn hot_pages(memory_bytes: u64, known: &[u32]) -> io::Result<(OwnedFd, HotPages)> {
    let file = HotPages::create(memory_bytes)?;
    let pages = HotPages::open(&file, memory_bytes)?;
    pages.add(known);
    Ok((file.into(), pages))
}

/// Makes the socket. One that no process listens at any more is replaced.
fn bind(path: &Path) -> Result<UnixListener, HolderError> {
    let failed = |source| HolderError::Listen { path: path.to_owned(), source };
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A connection to a file that is not a socket is refused as well.
            let is_socket =
                std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
            match UnixStream::connect(path) {
                Err(error) if is_socket && error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(failed)?;
                    UnixListener::bind(path)
                }
                _ => return Err(HolderError::InUse { path: path.to_owned() }),
            }
        }
        bound => bound,
    };
    let listener = listener.map_err(failed)?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, owner_only).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
