//! The reading end: hands segments to a device, and takes in its answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sideway::ibverbs::completion::{BasicCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::device::{Address, Device};
use super::error::RdmaError;
use super::reads::{Read, Reads};
use super::serving::completions;
use super::verbs::{DEPTH, Queue, Registered};
use super::wire::{CONNECT, Offer, TOKEN_BYTES, WINDOW, Window};
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
/// When a window is asked for again that the server has not given, or not in time: it registers a whole file. The region
/// is read over the connection meanwhile.
const AGAIN: Duration = Duration::from_secs(10);
/// Looks for answers before the thread sleeps between two of them.
const LOOKS: u32 = 200;
const NAP: Duration = Duration::from_micros(30);

/// A connection by which a device reads, beside one of [`tcp`](crate::tcp).
pub struct Rdma {
    pub(super) inner: Arc<Inner>,
    poller: Option<JoinHandle<()>>,
}

pub(super) struct Inner {
    control: Connection,
    reads: Reads,
    /// By the key of the region.
    pub(super) windows: Mutex<HashMap<[u8; RegionKey::BYTES], Window>>,
    /// Regions whose window took too long, and when it is asked for again.
    late: Mutex<HashMap<[u8; RegionKey::BYTES], Instant>>,
    refused: AtomicU64,
    /// Why all is read over the connection from then on.
    left: OnceLock<String>,
    /// Why the server gave no window, last.
    no_window: Mutex<Option<String>>,
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
            windows: Mutex::default(),
            late: Mutex::default(),
            refused: AtomicU64::new(0),
            left: OnceLock::new(),
            no_window: Mutex::default(),
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
    /// The window of a region, asked for if it is not known; `None` if the region has none.
    fn window(&self, key: &RegionKey, deadline: Instant) -> Result<Option<Window>, FabricError> {
        let bytes = key.to_bytes();
        let known = lock(&self.windows).get(&bytes).copied();
        let window = match known {
            Some(window) => window,
            None => {
                let Some(window) = self.ask(&bytes, deadline)? else { return Ok(None) };
                lock(&self.windows).insert(bytes, window);
                window
            }
        };
        Ok((window.bytes > 0).then_some(window))
    }

    /// `None` for one that takes the server long: reads must not wait for it until their deadline.
    fn ask(
        &self,
        key: &[u8; RegionKey::BYTES],
        deadline: Instant,
    ) -> Result<Option<Window>, FabricError> {
        let now = Instant::now();
        if lock(&self.late).get(key).is_some_and(|again| now < *again) {
            return Ok(None);
        }
        let soon = now + (deadline - now) / 2;
        match self.control.ask_service(WINDOW, key, soon) {
            Ok(answer) => {
                lock(&self.late).remove(key);
                let odd = || self.broken_by("it gave something that is not a window".to_owned());
                Window::from_bytes(&answer).ok_or_else(odd).map(Some)
            }
            // It may have a reason of its own: whether the region can be read is found over the connection.
            Err(
                error @ (FabricError::DeadlinePassed { .. }
                | FabricError::Refused { refusal: Refusal::Failed { .. }, .. }),
            ) => {
                *lock(&self.no_window) = Some(error.to_string());
                lock(&self.late).insert(*key, now + AGAIN);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the device up. What it has not answered, and all that comes later, is read over the connection.
    fn leave(&self, why: String, reads: Vec<Read>) {
        // First: a read that finds the device gone must find the reason.
        let why = self.left.get_or_init(|| why).clone();
        let open = self.reads.leave(self.broken_by(why));
        reads.into_iter().chain(open).for_each(|read| self.go_over(read));
    }

    /// Reads over the connection what the device does not.
    fn go_over(&self, read: Read) {
        let Read { index, segment, deadline, .. } = read;
        let completions = self.reads.release(read);
        let asked = self.control.submit_into(index, &[segment], &completions, deadline);
        if let Err(error) = asked {
            completions.put(Completion { segment: index, result: Err(error) });
        }
    }

    fn has_left(&self) -> bool {
        self.left.get().is_some()
    }

    /// Starts the read of a segment in a window.
    fn start(&self, read: Read) -> Result<(), FabricError> {
        let Segment { offset, bytes, .. } = read.segment;
        let all = read.window.bytes;
        let is_inside = offset.checked_add(u64::from(bytes)).is_some_and(|end| end <= all);
        let result = match (is_inside, bytes) {
            (true, 0) => Ok(Vec::new()),
            (true, _) => return self.reads.start(read),
            // The device would refuse it, too, but without saying why.
            (false, _) => Err(self.refused(Refusal::OutOfBounds { bytes: all })),
        };
        read.completions.put(Completion { segment: read.index, result });
        Ok(())
    }

    /// The same; over the connection if the device is given up just now.
    fn start_or_go_over(&self, read: Read) -> Result<(), FabricError> {
        let (index, segment, deadline) = (read.index, read.segment, read.deadline);
        let completions = read.completions.clone();
        match self.start(read) {
            Err(FabricError::Broken { .. }) if self.has_left() => {
                self.control.submit_into(index, &[segment], &completions, deadline)
            }
            done => done,
        }
    }

    /// Takes in answers until the connection ends.
    fn poll(&self) {
        let mut looks = 0;
        while self.reads.wait() {
            match self.look() {
                Found::Nothing if self.reads.lacks_queue() => self.replace(),
                Found::Answers => looks = 0,
                Found::Failed { number, status } => self.repair(number, status),
                Found::Nothing => {
                    looks += 1;
                    if let Some(error) = self.control.broken() {
                        self.reads.end(error, Vec::new());
                    } else if looks >= LOOKS && self.reads.is_overdue() {
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
            let is_last = read.attempts >= ATTEMPTS || read.is_late();
            others.push(read);
            return if is_last {
                self.leave(status_words(status), others)
            } else {
                self.reopen(others)
            };
        }
        match self.renew(&mut read, &mut others) {
            Ok(true) if read.attempts < ATTEMPTS => others.push(read),
            Ok(_) => self.go_over(read),
            Err(error) => self.reads.finish(read, Err(error)),
        }
        self.reopen(others);
    }

    /// A queue pair that took no more reads has ended.
    fn replace(&self) {
        let (_, mut others) = self.reads.fail(0);
        others.iter_mut().for_each(|read| read.attempts += 1);
        if others.iter().any(|read| read.attempts >= ATTEMPTS) {
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
        lock(&self.windows).remove(&key.to_bytes());
        let deadline = read.deadline.min(Instant::now() + REPAIR);
        let renewed = self.window(&key, deadline);
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
        let known = lock(&self.inner.windows).get(&key.to_bytes()).copied();
        self.is_one_sided() && known.is_some_and(|window| window.bytes > 0)
    }

    fn detour(&self) -> Option<String> {
        let left = self.inner.left.get().map(|why| self.inner.broken_by(why.clone()).to_string());
        left.or_else(|| lock(&self.inner.no_window).clone())
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
            let has_left = self.inner.has_left();
            let window =
                if has_left { Ok(None) } else { self.inner.window(&same[0].key, deadline) };
            match window {
                Ok(Some(window)) => {
                    for (index, segment) in (first..).zip(same) {
                        let read = Read::new(index, *segment, window, &completions, deadline);
                        self.inner.start_or_go_over(read)?;
                    }
                }
                Ok(None) => {
                    self.inner.control.submit_into(first, same, &completions, deadline)?;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
