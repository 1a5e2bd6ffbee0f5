//! The reading end: hands segments to a device, and takes in its answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sideway::ibverbs::completion::{BasicCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::device::{Address, Device};
use super::error::RdmaError;
use super::reads::{Read, Reads};
use super::serving::completions;
use super::verbs::{DEPTH, Queue, Registered};
use super::windows::Windows;
use super::wire::{CONNECT, LEAVE, Offer, TOKEN_BYTES};
use crate::MAX_SEGMENT_BYTES;
use crate::error::{FabricError, Refusal};
use crate::fabric::{Batch, Completion, Fabric, Segment};
use crate::region::RegionKey;
use crate::tcp::{ClientSettings, Connection};

/// How long the first read, of a token, may take.
const FIRST_READ: Duration = Duration::from_secs(1);
/// How long a server may take to go along with a new queue pair.
const REPAIR: Duration = Duration::from_secs(2);
/// How often a read is tried: a window may be withdrawn and given anew.
const ATTEMPTS: u32 = 3;
/// Looks for answers before the thread sleeps between two of them.
const LOOKS: u32 = 200;
const NAP: Duration = Duration::from_micros(30);
/// Between two looks for reads that had better go over the connection.
const LATE_LOOK: Duration = Duration::from_millis(1);

/// A connection by which a device reads, beside one of [`tcp`](crate::tcp).
pub struct Rdma {
    pub(super) inner: Arc<Inner>,
    poller: Option<JoinHandle<()>>,
}

pub(super) struct Inner {
    control: Connection,
    reads: Reads,
    pub(super) windows: Windows,
    refused: AtomicU64,
    /// Why all is read over the connection from then on.
    left: OnceLock<String>,
    end: OwnEnd,
}

/// What a queue pair of this end needs.
struct OwnEnd {
    buffer: Arc<Registered>,
    completions: Arc<BasicCompletionQueue>,
    domain: Arc<ProtectionDomain>,
    address: Address,
    device: Device,
}

/// What a look at the completion queue has found.
enum Found {
    Nothing,
    Answers,
    /// The queue pair has failed, first at this read.
    Failed {
        number: u64,
        status: u32,
    },
}

impl Rdma {
    /// Reads by RDMA beside a connection over a network, if the server offers it and the first read succeeds.
    ///
    /// # Errors
    ///
    /// The reason, and the connection.
    pub fn beside(
        control: Connection,
        settings: &ClientSettings,
        deadline: Instant,
    ) -> Result<Rdma, Box<(Connection, RdmaError)>> {
        let bytes = settings.window_bytes.max(u64::from(MAX_SEGMENT_BYTES)).next_multiple_of(4096);
        let opened = OwnEnd::new(&control, bytes).and_then(|end| {
            let (queue, offer) = end.open(&control, deadline)?;
            let queue = end.first_read(queue, &offer, &control)?;
            Ok((end, queue))
        });
        let (end, queue) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err(Box::new((control, error))),
        };
        let reads = Reads::new(control.peer(), queue, bytes);
        let inner = Arc::new(Inner {
            control,
            reads,
            windows: Windows::default(),
            refused: AtomicU64::new(0),
            left: OnceLock::new(),
            end,
        });
        let for_thread = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("fabric-rdma".to_owned());
        // Without the thread the connection reads by itself: the machine is out of threads.
        let poller = thread.spawn(move || for_thread.poll()).ok();
        if poller.is_none() {
            inner.leave("no thread can be started".to_owned(), Vec::new());
        }
        Ok(Rdma { inner, poller })
    }

    /// How often the server's device has refused a read.
    pub fn refused_by_device(&self) -> u64 {
        self.inner.refused.load(Ordering::Relaxed)
    }
}

impl OwnEnd {
    fn new(control: &Connection, bytes: u64) -> Result<OwnEnd, RdmaError> {
        let (device, address) = Device::towards(control.local_ip())?;
        let domain = device.context().alloc_pd().map_err(device.failed("make a domain"))?;
        let completions = completions(&device, 2 * DEPTH)?;
        let buffer = Registered::buffer(&domain, bytes as usize)
            .map_err(device.failed("register memory (see ulimit -l)"))?;
        Ok(OwnEnd { buffer: Arc::new(buffer), completions, domain, address, device })
    }

    /// A queue pair that is connected to the server's.
    fn open(&self, control: &Connection, deadline: Instant) -> Result<(Queue, Offer), RdmaError> {
        let OwnEnd { buffer, completions, domain, address, device } = self;
        let buffer = Some(Arc::clone(buffer));
        let mut queue = Queue::new(device, domain, completions, address, buffer)?;
        let own = queue.end(device, address).to_bytes();
        let answer = control.ask_service(CONNECT, &own, deadline);
        let answer = answer.map_err(|error| peer_error(control, error.to_string()))?;
        let odd = || peer_error(control, "it has another version of farfork".to_owned());
        let offer = Offer::from_bytes(&answer).ok_or_else(odd)?;
        queue.connect(device, address, &offer.end)?;
        Ok((queue, offer))
    }

    /// Reads the token: that proves the way to the server's memory, before anything depends on it.
    fn first_read(
        &self,
        mut queue: Queue,
        offer: &Offer,
        control: &Connection,
    ) -> Result<Queue, RdmaError> {
        let failed = self.device.failed("read");
        let bytes = TOKEN_BYTES as u32;
        queue.read(0, offer.window.key, offer.window.address, 0, bytes).map_err(failed)?;
        let until = Instant::now() + FIRST_READ;
        loop {
            let answer = self.completions.start_poll().ok().and_then(|mut all| all.next());
            match answer.map(|answer| answer.status()) {
                Some(status) if status != WorkCompletionStatus::Success as u32 => {
                    return Err(peer_error(control, status_words(status)));
                }
                Some(_) => break,
                None if Instant::now() > until => {
                    let why = NO_ANSWER.to_owned();
                    return Err(peer_error(control, why));
                }
                None => std::thread::sleep(NAP),
            }
        }
        let is_same = self.buffer.copy(0, bytes).is_some_and(|read| read == offer.token);
        let other = || peer_error(control, "another machine answers at its address".to_owned());
        is_same.then_some(queue).ok_or_else(other)
    }
}

impl Inner {
    /// Gives the device up. What it has not answered, and all that comes later, is read over the connection.
    pub(super) fn leave(&self, why: String, reads: Vec<Read>) {
        // First: a read that finds the device gone must find the reason.
        let why = self.left.get_or_init(|| why).clone();
        let open = self.reads.leave(self.broken_by(why));
        reads.into_iter().chain(open).for_each(|read| self.go_over(read));
        // Otherwise all windows would stay pinned as long as the connection. Nothing depends on the answer.
        let _ = self.control.begin_ask(LEAVE, &[]);
    }

    /// Reads over the connection what the device does not.
    fn go_over(&self, read: Read) {
        let Read { index, segment, deadline, .. } = read;
        let Some(completions) = self.reads.release(read) else { return };
        let asked = self.control.submit_into(index, &[segment], &completions, deadline);
        if let Err(error) = asked {
            completions.put(Completion { segment: index, result: Err(error) });
        }
    }

    fn has_left(&self) -> bool {
        self.left.get().is_some()
    }

    /// Asks over the connection, too, for what the device has not answered in time.
    fn ask_elsewhere(&self) {
        self.reads.ask_elsewhere(|index, segment, completions| {
            // Without credits it is tried again later: answers of the device must not wait for them.
            let asked = self.control.submit_into(index, &[segment], completions, Instant::now());
            asked.is_ok()
        });
    }

    /// Starts the read of a segment in a window; over the connection if the device is given up just now, or has no place for it
    /// in time.
    fn start(&self, read: Read) -> Result<(), FabricError> {
        let Segment { offset, bytes, .. } = read.segment;
        let all = read.window.bytes;
        let is_inside = offset.checked_add(u64::from(bytes)).is_some_and(|end| end <= all);
        let result = match (is_inside, bytes) {
            (true, 0) => Ok(Vec::new()),
            (true, _) => {
                let Err(read) = self.reads.start(read) else { return Ok(()) };
                let Read { index, segment, completions, deadline, .. } = *read;
                return match self.reads.ended().filter(|_| !self.has_left()) {
                    Some(ended) => Err(ended),
                    None => self.control.submit_into(index, &[segment], &completions, deadline),
                };
            }
            // The device would refuse it, too, but without saying why.
            (false, _) => Err(self.refused(Refusal::OutOfBounds { bytes: all })),
        };
        read.completions.put(Completion { segment: read.index, result });
        Ok(())
    }

    /// Takes in answers until the connection ends.
    fn poll(&self) {
        let (mut looks, mut late_look) = (0, Instant::now());
        while self.reads.wait() {
            if late_look.elapsed() > LATE_LOOK {
                self.ask_elsewhere();
                late_look = Instant::now();
            }
            match self.look() {
                Found::Nothing if self.reads.lacks_queue() => self.replace(),
                Found::Answers => looks = 0,
                Found::Failed { number, status } => self.repair(number, status),
                Found::Nothing => {
                    looks += 1;
                    if let Some(error) = self.control.broken() {
                        self.reads.end(error, Vec::new());
                    } else if looks >= LOOKS && self.reads.is_silent() {
                        self.leave(NO_ANSWER.to_owned(), Vec::new());
                    } else if looks < LOOKS {
                        std::thread::yield_now();
                    } else {
                        std::thread::sleep(NAP);
                    }
                }
            }
        }
    }

    fn look(&self) -> Found {
        let Ok(answers) = self.end.completions.start_poll() else { return Found::Nothing };
        let mut found = Found::Answers;
        for answer in answers {
            let (number, status) = (answer.wr_id(), answer.status());
            if status == WorkCompletionStatus::Success as u32 {
                self.reads.complete(number, &self.end.buffer);
            } else if matches!(found, Found::Answers) && self.reads.is_open(number) {
                // What follows was flushed. Answers of an earlier queue pair have other numbers.
                found = Found::Failed { number, status };
            }
        }
        found
    }

    /// A refused read ends the queue pair, and all reads behind it. Those are started anew by another one. Any other failure is
    /// one of the network or a device.
    fn repair(&self, number: u64, status: u32) {
        let (failed, mut others) = self.reads.fail(number);
        let Some(mut read) = failed else { return self.reopen(others) };
        read.attempts += 1;
        if status != WorkCompletionStatus::RemoteAccessError as u32 {
            let is_last = self.reads.count_failure().max(read.attempts) >= ATTEMPTS;
            others.push(read);
            return if is_last {
                self.leave(status_words(status), others)
            } else {
                self.reopen(others)
            };
        }
        self.reads.note_answer();
        match self.renew(&mut read, &mut others) {
            Ok(true) if read.attempts < ATTEMPTS => others.push(read),
            Ok(_) => self.go_over(read),
            Err(error) => self.reads.finish(read, Err(error)),
        }
        self.reopen(others);
    }

    /// A queue pair that took no more reads has ended.
    fn replace(&self) {
        let (_, others) = self.reads.fail(0);
        if self.reads.count_failure() >= ATTEMPTS {
            return self.leave("the device takes no reads".to_owned(), others);
        }
        self.reopen(others);
    }

    /// Goes on with a new queue pair.
    fn reopen(&self, others: Vec<Read>) {
        match self.end.open(&self.control, Instant::now() + REPAIR) {
            Ok((queue, _)) => self.reads.go_on(queue, others),
            Err(error) => match self.control.broken() {
                Some(broken) => self.reads.end(broken, others),
                None => self.leave(error.to_string(), others),
            },
        }
    }

    /// The window of a read was withdrawn: asks for another one, for all reads of that region. Whether there is one; without
    /// it they are read over the connection.
    fn renew(&self, read: &mut Read, others: &mut Vec<Read>) -> Result<bool, FabricError> {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let key = read.segment.key;
        self.windows.forget(&key);
        let deadline = read.deadline.min(Instant::now() + REPAIR);
        let renewed = self.windows.find(&self.control, &key, deadline);
        let of_region = others.extract_if(.., |other| other.segment.key == key);
        let same: Vec<Read> = of_region.collect();
        for mut other in same {
            match &renewed {
                Ok(Some(window)) => {
                    other.window = *window;
                    others.push(other);
                }
                Ok(None) => self.go_over(other),
                Err(error) => self.reads.finish(other, Err(error.clone())),
            }
        }
        let window = renewed?;
        read.window = window.unwrap_or(read.window);
        Ok(window.is_some())
    }

    fn refused(&self, refusal: Refusal) -> FabricError {
        FabricError::Refused { peer: self.control.peer().to_owned(), refusal }
    }

    fn broken_by(&self, why: String) -> FabricError {
        FabricError::Broken { peer: self.control.peer().to_owned(), why }
    }
}

impl Fabric for Rdma {
    fn name(&self) -> &'static str {
        if self.inner.has_left() { self.inner.control.name() } else { "rdma" }
    }

    fn is_one_sided(&self) -> bool {
        !self.inner.has_left()
    }

    fn is_one_sided_for(&self, key: &RegionKey) -> bool {
        let known = self.inner.windows.known(key);
        self.is_one_sided() && known.is_some_and(|window| window.bytes > 0)
    }

    fn detour_for(&self, key: &RegionKey) -> Option<String> {
        let left = self.inner.left.get().map(|why| self.inner.broken_by(why.clone()).to_string());
        left.or_else(|| self.inner.windows.why_missing(key))
    }

    fn peer(&self) -> &str {
        self.inner.control.peer()
    }

    fn broken(&self) -> Option<FabricError> {
        let ended = || self.inner.reads.ended().filter(|_| !self.inner.has_left());
        self.inner.control.broken().or_else(ended)
    }

    fn submit(&self, segments: &[Segment], deadline: Instant) -> Result<Batch, FabricError> {
        if let Some(long) = segments.iter().find(|segment| segment.bytes > MAX_SEGMENT_BYTES) {
            return Err(FabricError::TooLong { bytes: long.bytes });
        }
        if let Some(error) = self.broken() {
            return Err(error);
        }
        let (batch, completions) = Batch::new(self.peer(), segments.len(), deadline);
        let mut first = 0;
        // Side by side those of one region.
        for same in segments.chunk_by(|one, next| one.key == next.key) {
            let Inner { windows, control, .. } = &*self.inner;
            let has_left = self.inner.has_left();
            let window =
                if has_left { Ok(None) } else { windows.find(control, &same[0].key, deadline) };
            match window {
                Ok(Some(window)) => {
                    for (index, segment) in (first..).zip(same) {
                        let read = Read::new(index, *segment, window, &completions, deadline);
                        self.inner.start(read)?;
                    }
                }
                Ok(None) => {
                    control.submit_into(first, same, &completions, deadline)?;
                }
                Err(error @ FabricError::Refused { .. }) => {
                    for segment in first..first + same.len() {
                        completions.put(Completion { segment, result: Err(error.clone()) });
                    }
                }
                Err(error) => return Err(error),
            }
            first += same.len();
        }
        Ok(batch)
    }

    fn call(&self, request: &[u8], deadline: Instant) -> Result<Vec<u8>, FabricError> {
        self.inner.control.call(request, deadline)
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        let why = "this side closed it".to_owned();
        self.inner.reads.end(self.inner.broken_by(why), Vec::new());
        if let Some(poller) = self.poller.take() {
            let _ = poller.join();
        }
    }
}

fn peer_error(control: &Connection, why: String) -> RdmaError {
    RdmaError::Peer { peer: control.peer().to_owned(), why }
}

const NO_ANSWER: &str = "its device does not answer";

/// What a device answers instead of bytes.
fn status_words(status: u32) -> String {
    let named = [
        (WorkCompletionStatus::RemoteAccessError, "its device refuses the window"),
        (WorkCompletionStatus::RetryCounterExceededError, NO_ANSWER),
        (WorkCompletionStatus::WorkRequestFlushedError, "the queue pair has ended"),
        (WorkCompletionStatus::RemoteOperationError, "its device failed"),
    ];
    let known = named.into_iter().find(|(known, _)| *known as u32 == status);
    known.map_or_else(
        || format!("the device reports status {status}"),
        |(_, words)| words.to_owned(),
    )
}
