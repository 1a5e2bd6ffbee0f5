//! One userfaultfd of one machine, served by one thread until the machine ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use farfork_sys::userfault::{self, Message, Userfault};
use farfork_sys::words;
use farfork_types::{PAGE_BYTES, align_down};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::ahead::Ahead;
use crate::counters::Counters;
use crate::filler::{Filler, Outcome, Source};
use crate::handover::{Found, Regions};
use crate::hot::Replay;
use crate::ledger::Ledger;
use crate::peer::has_hung_up;
use crate::turns::Turn;

/// How long to wait before an answer is tried again that the kernel has put off.
const RETRY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Bytes, and calls, of a replay before messages are read, unless a fault comes first.
const REPLAY_BYTES: u64 = 512 << 10;
const REPLAY_CALLS: usize = 64;
/// Bytes of one call of a replay: a fault waits for no more of it.
const CALL_BYTES: u64 = 128 << 10;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Why a machine is not served any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The monitor has closed its socket, or its memory is gone.
    Ended,
    /// The kernel refuses to serve it.
    Failed(String),
}

/// A machine that is served.
pub(crate) struct Machine {
    filler: Filler,
    socket: OwnedFd,
    ahead: Ahead,
    replay: Replay,
    /// Its turn to be filled, for as long as the replay is not over.
    turn: Option<Turn>,
    /// Addresses of faults that have no answer yet.
    waiting: Vec<u64>,
}

impl Machine {
    /// Takes a machine: its userfaultfd, its regions (none for a machine that was refused), its ledger, and
    /// the socket that is closed at its end. `replay` has pages to fill first. `is_fresh` says that no other
    /// server had it before.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(crate) fn new(
        (userfault, socket): (OwnedFd, OwnedFd),
        regions: Regions,
        ledger: Ledger,
        source: Arc<Source>,
        (replay, is_fresh): (Replay, bool),
    ) -> Result<Machine, Errno> {
        // The kernel reports an error to a process that polls one that blocks.
        fcntl_setfl(&userfault, fcntl_getfl(&userfault)? | OFlags::NONBLOCK)?;
        // Without a descriptor for its turn, a machine gets its pages as it asks for them.
        let turn = replay.next().and_then(|_| source.turns.take().ok());
        let replay = turn.as_ref().map(|_| replay).unwrap_or_default();
        let filler = Filler::new(Userfault::from(userfault), regions, ledger, source);
        let (ahead, waiting) = (Ahead::default(), Vec::new());
        let mut machine = Machine { filler, socket, ahead, replay, turn, waiting };
        if !is_fresh {
            machine.take_over();
        }
        Ok(machine)
    }

    /// The socket that its monitor closes at its end.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// What was done for it.
    pub(crate) fn counters(&self) -> Counters {
        self.filler.counters
    }

    /// Serves it until it ends. `filled` is called once, when all pages of the replay are there.
    pub(crate) fn run(&mut self, filled: impl FnOnce(Counters)) -> Ending {
        let mut filled = Some(filled);
        loop {
            if self.replay.next().is_none()
                && let Some(filled) = filled.take()
            {
                filled(self.counters());
                // Machines are reported in the order of their turns.
                self.turn = None;
            }
            match self.step() {
                Ok(None) => {}
                Ok(Some(ending)) => return ending,
                Err(errno) => return Ending::Failed(words::words(errno.raw_os_error()).to_owned()),
            }
        }
    }

    /// Another server has read messages, and may not have answered them: what it read last is noted, and
    /// threads that wait are woken, so that what is still missing is reported again.
    fn take_over(&mut self) {
        for message in self.filler.ledger.last() {
            if let Message::Removed { start, end } = message {
                self.remove(start, end);
            }
        }
        for region in self.filler.regions.all() {
            // A part that is not mapped any more has no thread that waits.
            let _ = self.filler.userfault.wake(region.base_host_virt_addr, region.size);
        }
    }

    fn step(&mut self) -> Result<Option<Ending>, Errno> {
        if self.wait()? {
            return Ok(Some(Ending::Ended));
        }
        self.read_messages()?;
        let waiting = std::mem::take(&mut self.waiting);
        let is_idle = waiting.is_empty();
        for address in waiting {
            if let Some(ending) = self.answer(address) {
                return Ok(Some(ending));
            }
        }
        // A guest that runs already leaves no time between its faults: both take turns.
        if self.may_replay() {
            self.fill_hot();
        } else if is_idle {
            self.fill_ahead();
        }
        Ok(None)
    }

    /// Whether there are hot pages left to fill, and it is this machine's turn.
    fn may_replay(&self) -> bool {
        self.replay.next().is_some() && self.turn.as_ref().is_some_and(Turn::has_come)
    }

    /// Waits until there is something to do; whether the machine has ended.
    fn wait(&mut self) -> Result<bool, Errno> {
        let may_replay = self.may_replay();
        let has_work = self.ahead.next().is_some() || may_replay;
        let timeout = match (&self.waiting[..], has_work) {
            ([], false) => None,
            ([], true) => Some(&AT_ONCE),
            _ => Some(&RETRY),
        };
        let hang_up = PollFlags::IN | PollFlags::RDHUP;
        let bell = self.turn.as_ref().filter(|_| !may_replay).map(Turn::bell);
        let mut polled = [
            PollFd::new(&self.filler.userfault, PollFlags::IN),
            PollFd::new(&self.socket, hang_up),
            PollFd::new(bell.unwrap_or(&self.socket), PollFlags::IN),
        ];
        match poll(&mut polled[..2 + usize::from(bell.is_some())], timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let socket = polled[1].revents();
        if polled[0].revents().contains(PollFlags::ERR) {
            // It was never enabled.
            return Err(Errno::INVAL);
        }
        Ok(!socket.is_empty() && has_hung_up(&self.socket))
    }

    /// Discarded ranges first: the page of a fault in one of them is zeros, whichever came first.
    fn read_messages(&mut self) -> Result<(), Errno> {
        let messages = self.filler.ledger.read(&self.filler.userfault)?;
        for message in &messages {
            match message {
                Message::Removed { start, end } => self.remove(*start, *end),
                Message::Forked { descriptor } => userfault::close_forked(*descriptor),
                Message::Fault { .. } | Message::Other => {}
            }
        }
        self.waiting.extend(messages.iter().filter_map(|message| match message {
            Message::Fault { address } => Some(*address),
            _ => None,
        }));
        Ok(())
    }

    fn remove(&mut self, start: u64, end: u64) {
        let Filler { regions, ledger, counters, .. } = &mut self.filler;
        for (start, end) in regions.offsets(start, end) {
            counters.removed_pages += ledger.remove(start, end);
        }
        // What is filled ahead now could be what the monitor has just discarded.
        self.ahead.stop();
    }

    /// Answers a fault, or puts it off; the ending if there is none to answer to.
    fn answer(&mut self, address: u64) -> Option<Ending> {
        let (page, bytes, outcome) = match self.filler.regions.find(address) {
            Some(found) => {
                let bytes = self.ahead.answer(found.address, found.rest);
                (found.address, found.page_bytes, self.filler.fill(found, bytes))
            }
            None => {
                let page = align_down(address, PAGE_BYTES);
                (page, PAGE_BYTES, self.filler.poison(page, PAGE_BYTES))
            }
        };
        match outcome {
            Outcome::Filled(filled) => {
                self.touch(page, filled);
                self.ahead.is_there(page + filled);
                self.filler.counters.ahead_pages += (filled.max(bytes) - bytes) / PAGE_BYTES;
            }
            // The thread waits although the page is there, or finds out what has become of the range.
            Outcome::Present | Outcome::Unmapped => {
                let _ = self.filler.userfault.wake(page, bytes);
            }
            Outcome::Poisoned | Outcome::Unreadable => self.ahead.stop(),
            Outcome::Busy | Outcome::NoMemory => {
                self.filler.counters.deferred += 1;
                self.ahead.stop();
                self.waiting.push(address);
                return None;
            }
            Outcome::Gone => return Some(Ending::Ended),
            Outcome::Failed(errno) => {
                return match self.filler.poison(page, bytes) {
                    Outcome::Poisoned => None,
                    _ => Some(Ending::Failed(words::words(errno.raw_os_error()).to_owned())),
                };
            }
        }
        self.filler.counters.faults += 1;
        None
    }

    /// Notes what the machine has asked for: the next one will, too.
    fn touch(&self, address: u64, bytes: u64) {
        for (start, end) in self.filler.regions.offsets(address, address + bytes) {
            self.filler.ledger.touch(start, end);
        }
    }

    /// Whether a fault or another message waits to be read.
    fn has_messages(&self) -> bool {
        let mut polled = [PollFd::new(&self.filler.userfault, PollFlags::IN)];
        poll(&mut polled, Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
    }

    /// Fills a part of what machines before this one have needed.
    fn fill_hot(&mut self) {
        let mut left = REPLAY_BYTES;
        for call in 0..REPLAY_CALLS {
            // The first call is made all the same, or a guest with many faults would never be filled.
            if call > 0 && self.has_messages() {
                return;
            }
            let Some(range) = self.replay.next().filter(|_| left > 0) else { return };
            let Some(found) = self.filler.regions.at_offset(range.start) else {
                self.replay.is_there(range.end);
                continue;
            };
            let Found { offset, page_bytes, .. } = found;
            let bytes = (range.end - range.start).min(left).min(CALL_BYTES);
            match self.filler.fill_early(found, bytes) {
                Outcome::Filled(filled) => {
                    self.replay.is_there(offset + filled);
                    self.filler.counters.hot_pages += filled / PAGE_BYTES;
                    left = left.saturating_sub(filled);
                }
                // Another node does not answer: faults wait for it, and none waits behind a replay.
                Outcome::Unreadable if self.filler.has_far_pages() => {
                    self.replay = Replay::default();
                }
                Outcome::Present | Outcome::Poisoned | Outcome::Unreadable => {
                    self.replay.is_there(offset + page_bytes);
                }
                // Messages first.
                Outcome::Busy | Outcome::NoMemory => return,
                _ => self.replay = Replay::default(),
            }
        }
    }

    /// Fills a part of what the guest is about to touch.
    fn fill_ahead(&mut self) {
        let Some((address, bytes)) = self.ahead.next() else { return };
        let Some(found) = self.filler.regions.find(address) else { return self.ahead.stop() };
        match self.filler.fill_early(found, bytes) {
            Outcome::Filled(filled) => {
                self.touch(address, filled);
                self.ahead.is_there(address + filled);
                self.filler.counters.ahead_pages += filled / PAGE_BYTES;
            }
            Outcome::Present | Outcome::Poisoned => {
                self.ahead.is_there(found.address + found.page_bytes);
            }
            _ => self.ahead.stop(),
        }
    }
}
