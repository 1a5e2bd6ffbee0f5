//! Reads of images from their serving node: connections come and go, images stay the same.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use farfork_fabric::tcp::ClientSettings;
use farfork_fabric::{Batch, Fabric, FabricError, Refusal, RegionKey, Segment, connect_nearest};
use farfork_sys::sync::locked;
use farfork_types::{Cid, PAGE_BYTES, TlsFiles};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::certificates::certificates_at;
use crate::error::FarError;
use crate::keyfile::key_at;
use crate::lineage::Lineage;
use crate::protocol::{self, Found, PageRange, Question};

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// After a read has failed at its deadline, others fail at once for so long: a page fault that fails is tried
/// again by the kernel, and requests that wait behind it must not wait for a deadline each.
const COOLDOWN: Duration = Duration::from_secs(1);

/// How long a node may take to answer what is asked again and again.
pub const SHORT_LIMIT: Duration = Duration::from_millis(500);

/// Numbers of pages in one message, which has at most 64 KiB.
const NUMBERS_AT_ONCE: usize = 8192;

/// How much of an image's beginning is read when it is found. The metadata of most images fits.
const FRONT_BYTES: u64 = 256 << 10;

const ODD_ANSWER: &str = "the answer is not one of this version of farfork";

/// Why a read failed, in words.
pub type Cause = String;

/// A serving node, for commands that name it with each image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceAt {
    /// Its address.
    pub address: String,
    /// File of the key that both have. A file that lies in the directory of the mount goes with the image.
    pub key: PathBuf,
    /// The files that prove this node beside the key. With them, the serving node must prove itself, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFiles>,
}

/// A serving node.
pub struct Source {
    address: String,
    /// The file of the shared key. It is read for each connection: a wrong key can be put right.
    key: PathBuf,
    tls: Option<TlsFiles>,
    deadline: Duration,
    link: Mutex<Links>,
    /// The last failure of the whole source.
    failed: Mutex<Option<(Instant, Cause)>>,
}

#[derive(Default)]
struct Links {
    current: Option<Link>,
    /// How many connections there have been.
    count: u64,
}

#[derive(Clone)]
struct Link {
    fabric: Arc<dyn Fabric>,
    number: u64,
}

/// An image of a source.
pub struct FarImage {
    pub cid: Cid,
    pub bytes: u64,
    pub modified_unix_ns: u64,
    /// Bytes that were read of it.
    pub fetched_bytes: AtomicU64,
    /// Its beginning, which has the checksum of all its metadata.
    first_page: Vec<u8>,
    /// What was read together with it: as a rule, all that a clone needs before its pages.
    front: Vec<u8>,
    /// Its key, and the number of the connection that the key is for.
    key: Mutex<(u64, RegionKey)>,
    /// Where it is read from.
    pub source: Arc<Source>,
}

/// An image as it was found.
pub struct FoundImage {
    pub image: FarImage,
    /// Whether others own parts of it.
    pub has_owners: bool,
}

impl FarImage {
    /// An image that was found before. Its key is asked for when it is read. Without a first page, the key of the
    /// connection alone proves that it is the same.
    pub fn known(
        source: Arc<Source>,
        cid: Cid,
        bytes: u64,
        modified_unix_ns: u64,
        first_page: Vec<u8>,
    ) -> FarImage {
        let key = Mutex::new((0, RegionKey::from_bytes(&[0; RegionKey::BYTES])));
        let (fetched_bytes, front) = (AtomicU64::new(0), Vec::new());
        FarImage { cid, bytes, modified_unix_ns, fetched_bytes, first_page, front, key, source }
    }

    /// Its beginning.
    pub fn first_page(&self) -> &[u8] {
        &self.first_page
    }

    /// Whether another answer of a source means the same bytes.
    pub fn is_same(&self, other: &FarImage) -> bool {
        (self.cid, self.bytes, self.modified_unix_ns, &self.first_page)
            == (other.cid, other.bytes, other.modified_unix_ns, &other.first_page)
    }
}

/// What ends an attempt.
enum Failed {
    /// Another attempt may succeed.
    ForNow(Cause),
    /// The source answers, but not to this.
    Image(Cause),
    /// No attempt will succeed before the deadline.
    Source(Cause),
    /// The deadline passed before the attempt. The reason is that of the one before, if there was one.
    TooLate,
}

impl Source {
    /// A source. Each read and call ends within `deadline`.
    pub fn new(at: &SourceAt, deadline: Duration) -> Source {
        let SourceAt { address, key, tls } = at.clone();
        let (link, failed) = (Mutex::default(), Mutex::default());
        Source { address, key, tls, deadline, link, failed }
    }

    /// Where it is.
    #[cfg(test)]
    pub fn at(&self) -> SourceAt {
        SourceAt { address: self.address.clone(), key: self.key.clone(), tls: self.tls.clone() }
    }

    /// Connects, if there is no connection. A command that waits for a first connection gets the reason at
    /// once.
    pub fn connect(&self) -> Result<(), Cause> {
        match self.link(Instant::now() + self.deadline) {
            Ok(_) => Ok(()),
            Err(Failed::ForNow(cause) | Failed::Image(cause) | Failed::Source(cause)) => Err(cause),
            Err(Failed::TooLate) => Err("no time is left".to_owned()),
        }
    }

    /// The files that prove this node to it beside a key.
    pub fn tls(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// As it stands in messages.
    pub fn name(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// The transport of the present connection; `None` without one.
    pub fn transport(&self) -> Option<&'static str> {
        self.living_link().map(|link| link.fabric.name())
    }

    /// Why the present connection does not read an image by the way that was chosen.
    pub fn detour(&self, image: &FarImage) -> Option<String> {
        let key = free(&image.key)?.1;
        self.living_link()?.fabric.detour_for(&key)
    }

    /// Whether bytes of this image are read at present without any code of its node; `None` without a connection.
    pub fn is_one_sided(&self, image: &FarImage) -> Option<bool> {
        let link = self.living_link()?;
        let (number, key) = *free(&image.key)?;
        Some(number == link.number && link.fabric.is_one_sided_for(&key))
    }

    /// The image with this name or id.
    pub fn find(self: &Arc<Self>, image: &str) -> Result<FoundImage, Cause> {
        // A command asks for a new attempt.
        *locked(&self.failed) = None;
        self.within_deadline(|deadline| {
            let link = self.link(deadline)?;
            let question = Question::Find { image: image.to_owned() };
            let found: Found = self.ask(&link, &question, deadline)?;
            let key = found.key().ok_or_else(odd_answer)?;
            let front = self.front(&link, key, found.bytes, FRONT_BYTES, deadline)?;
            let image = FarImage {
                cid: Cid::from_bytes(found.cid),
                bytes: found.bytes,
                modified_unix_ns: found.modified_unix_ns,
                fetched_bytes: AtomicU64::new(front.len() as u64),
                first_page: front[..front.len().min(PAGE_BYTES as usize)].to_vec(),
                front,
                key: Mutex::new((link.number, key)),
                source: Arc::clone(self),
            };
            Ok(FoundImage { image, has_owners: found.owned_elsewhere > 0 })
        })
    }

    /// Pages of a virtual machine's memory that its machines are known to need, in their order.
    pub fn record(&self, cid: Cid) -> Result<Vec<PageRange>, Cause> {
        let question = Question::Record { cid: cid.to_bytes() };
        self.within_deadline(|deadline| self.ask(&self.link(deadline)?, &question, deadline))
    }

    /// The pages of an image that should come first. Clones may run by now: if the deadline passes, the connection and
    /// others that use it stay as they are.
    pub fn pages(&self, cid: Cid) -> Result<Vec<PageRange>, Cause> {
        let deadline = self.deadline();
        let link = self.link(deadline).map_err(|_| self.not_connected())?;
        pages_over(&link, cid, deadline)
    }

    /// The same by a deadline that is not that of reads, and only over a connection that there is.
    pub fn pages_by(&self, cid: Cid, deadline: Instant) -> Result<Vec<PageRange>, Cause> {
        let link = self.living_link().ok_or_else(|| self.not_connected())?;
        pages_over(&link, cid, deadline)
    }

    fn not_connected(&self) -> Cause {
        format!("{} is not connected", self.name())
    }

    /// Has the node of an image know which pages clones needed. What it does not get by the deadline is lost: it serves
    /// speed alone.
    pub fn say_touched(&self, cid: Cid, pages: &[u32], deadline: Instant) {
        let Some(link) = self.living_link() else { return };
        for pages in pages.chunks(NUMBERS_AT_ONCE) {
            let question = Question::Touched { cid: cid.to_bytes(), pages: pages.to_vec() };
            if link.fabric.call(&protocol::encode(&question), deadline).is_err() {
                return;
            }
        }
    }

    /// Has the node of an image know how many clones at this one may fetch pages of it.
    pub fn say_clones(&self, cid: Cid, node: [u8; 16], clones: u32) {
        let Some(link) = self.living_link() else { return };
        let question = Question::Clones { cid: cid.to_bytes(), node, clones };
        let _ = link.fabric.call(&protocol::encode(&question), Instant::now() + SHORT_LIMIT);
    }

    /// The connection, if there is one. It does not wait for one that is being made, which may take until a deadline.
    fn living_link(&self) -> Option<Link> {
        free(&self.link)?.current.clone().filter(|link| link.fabric.broken().is_none())
    }

    /// Whether the node of an image waits for this one to let go of it. One that does not answer does not.
    pub fn is_closing(&self, image: &FarImage) -> bool {
        let Some(link) = self.living_link() else { return false };
        let question = Question::Again { cid: image.cid.to_bytes() };
        let answer = self.ask::<Found>(&link, &question, Instant::now() + SHORT_LIMIT);
        answer.is_ok_and(|found| found.is_closing)
    }

    /// Which parts of an image others own.
    pub fn lineage(&self, image: &FarImage) -> Result<Lineage, Cause> {
        let question = Question::Sources { cid: image.cid.to_bytes() };
        let lineage: Lineage =
            self.within_deadline(|deadline| self.ask(&self.link(deadline)?, &question, deadline))?;
        let wrong = |why| format!("the list of its parts that other nodes have is wrong: {why}");
        lineage.check(image.bytes).map_err(wrong)?;
        Ok(lineage)
    }

    /// When a read ends that begins now.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Bytes of an image by offset and length, each at most
    /// [`MAX_SEGMENT_BYTES`](farfork_fabric::MAX_SEGMENT_BYTES). The ranges lie within the image.
    pub fn read(
        &self,
        deadline: Instant,
        image: &FarImage,
        ranges: &[(u64, u32)],
    ) -> Result<Vec<Vec<u8>>, Cause> {
        let end = |(offset, bytes): &(u64, u32)| (offset + u64::from(*bytes)) as usize;
        let in_front = |range: &(u64, u32)| image.front.get(range.0 as usize..end(range));
        if let Some(known) = ranges.iter().map(in_front).collect::<Option<Vec<_>>>() {
            return Ok(known.into_iter().map(<[u8]>::to_vec).collect());
        }
        let read = self.before(deadline, |deadline| {
            let link = self.link(deadline)?;
            let key = self.key_of(image, &link, deadline)?;
            let segment =
                |(offset, bytes): &(u64, u32)| Segment { key, offset: *offset, bytes: *bytes };
            let segments: Vec<Segment> = ranges.iter().map(segment).collect();
            let read = link.fabric.submit(&segments, deadline).and_then(Batch::wait);
            read.map_err(|error| {
                if is_of_key(&error) {
                    // The key of the next attempt is a new one.
                    locked(&image.key).0 = 0;
                }
                self.failure(&link, error)
            })
        })?;
        let bytes = read.iter().map(|part| part.len() as u64).sum();
        image.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(read)
    }

    fn within_deadline<T>(
        &self,
        attempt: impl FnMut(Instant) -> Result<T, Failed>,
    ) -> Result<T, Cause> {
        self.before(self.deadline(), attempt)
    }

    fn before<T>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut(Instant) -> Result<T, Failed>,
    ) -> Result<T, Cause> {
        let mut last = None;
        loop {
            if let Some(cause) = self.failed_lately() {
                return Err(cause);
            }
            match attempt(deadline) {
                Ok(done) => {
                    *locked(&self.failed) = None;
                    return Ok(done);
                }
                Err(Failed::Image(cause)) => return Err(cause),
                Err(Failed::ForNow(cause)) if Instant::now() + PAUSE < deadline => {
                    last = Some(cause);
                    std::thread::sleep(PAUSE);
                }
                Err(Failed::ForNow(cause) | Failed::Source(cause)) => return self.fail(cause),
                Err(Failed::TooLate) => {
                    let peer = self.address.clone();
                    let passed = || FabricError::DeadlinePassed { peer }.to_string();
                    return self.fail(last.unwrap_or_else(passed));
                }
            }
        }
    }

    fn fail<T>(&self, cause: Cause) -> Result<T, Cause> {
        *locked(&self.failed) = Some((Instant::now(), cause.clone()));
        Err(cause)
    }

    fn failed_lately(&self) -> Option<Cause> {
        let failed = locked(&self.failed);
        failed
            .as_ref()
            .filter(|(when, _)| when.elapsed() < COOLDOWN)
            .map(|(_, cause)| cause.clone())
    }

    /// The connection, made anew if it broke. Others wait meanwhile.
    fn link(&self, deadline: Instant) -> Result<Link, Failed> {
        let mut links = locked(&self.link);
        if let Some(link) = links.current.as_ref().filter(|link| link.fabric.broken().is_none()) {
            return Ok(link.clone());
        }
        if let Some(cause) = self.failed_lately() {
            return Err(Failed::Image(cause));
        }
        links.current = None;
        let timeout = deadline.saturating_duration_since(Instant::now());
        if timeout.is_zero() {
            return Err(Failed::TooLate);
        }
        let unusable = |error: FarError| Failed::Source(error.to_string());
        let certificates = self.tls.as_ref().map(certificates_at).transpose().map_err(unusable)?;
        let settings = ClientSettings { timeout, certificates, ..ClientSettings::default() };
        let shared = key_at(&self.key).map_err(unusable)?;
        let fabric = connect_nearest(&self.address, &shared, settings);
        let fabric = fabric.map_err(|error| match error {
            FabricError::Connect { .. } => Failed::ForNow(error.to_string()),
            _ => Failed::Source(error.to_string()),
        })?;
        links.count += 1;
        let link = Link { fabric, number: links.count };
        links.current = Some(link.clone());
        Ok(link)
    }

    /// What an error of the fabric means. After a deadline has passed, nothing more is asked by that
    /// connection: its peer may have gone without a word.
    fn failure(&self, link: &Link, error: FabricError) -> Failed {
        let text = error.to_string();
        match error {
            FabricError::Refused {
                refusal: Refusal::UnknownRegion | Refusal::StaleKey, ..
            }
            | FabricError::Broken { .. } => Failed::ForNow(text),
            FabricError::Refused { .. } => Failed::Image(text),
            _ => {
                let mut links = locked(&self.link);
                if links.current.as_ref().is_some_and(|current| current.number == link.number) {
                    links.current = None;
                }
                Failed::Source(text)
            }
        }
    }

    fn ask<A: DeserializeOwned>(
        &self,
        link: &Link,
        question: &Question,
        deadline: Instant,
    ) -> Result<A, Failed> {
        let answer = link.fabric.call(&protocol::encode(question), deadline);
        let answer = answer.map_err(|error| self.failure(link, error))?;
        protocol::decode(&answer).ok_or_else(odd_answer)
    }

    /// The beginning of an image that has so many bytes, by one read.
    fn front(
        &self,
        link: &Link,
        key: RegionKey,
        bytes: u64,
        wanted: u64,
        deadline: Instant,
    ) -> Result<Vec<u8>, Failed> {
        let mut front = vec![0; bytes.min(wanted) as usize];
        let read = link.fabric.read(key, 0, &mut front, deadline);
        read.map_err(|error| self.failure(link, error))?;
        Ok(front)
    }

    /// The key of an image for this connection. A server that was started anew gives a new one; the image
    /// must be the same.
    fn key_of(
        &self,
        image: &FarImage,
        link: &Link,
        deadline: Instant,
    ) -> Result<RegionKey, Failed> {
        let mut known = locked(&image.key);
        if known.0 == link.number {
            return Ok(known.1);
        }
        let question = Question::Again { cid: image.cid.to_bytes() };
        let found: Found = self.ask(link, &question, deadline)?;
        let key = found.key().ok_or_else(odd_answer)?;
        let is_same = (found.cid, found.bytes, found.modified_unix_ns)
            == (image.cid.to_bytes(), image.bytes, image.modified_unix_ns);
        let begins_alike = || -> Result<bool, Failed> {
            let known = &image.first_page;
            Ok(known.is_empty()
                || self.front(link, key, found.bytes, PAGE_BYTES, deadline)? == *known)
        };
        if !is_same || !begins_alike()? {
            let (source, cid) = (self.name(), image.cid);
            return Err(Failed::Image(format!("{source} has another image {cid} than before")));
        }
        *known = (link.number, key);
        Ok(key)
    }
}

/// Whether the server does not know a key any more.
fn is_of_key(error: &FabricError) -> bool {
    let stale = [Refusal::UnknownRegion, Refusal::StaleKey];
    matches!(error, FabricError::Refused { refusal, .. } if stale.contains(refusal))
}

fn pages_over(link: &Link, cid: Cid, deadline: Instant) -> Result<Vec<PageRange>, Cause> {
    let question = Question::Pages { cid: cid.to_bytes() };
    let answer = link.fabric.call(&protocol::encode(&question), deadline);
    let answer = answer.map_err(|error| error.to_string())?;
    protocol::decode(&answer).ok_or_else(|| ODD_ANSWER.to_owned())
}

fn odd_answer() -> Failed {
    Failed::Image(ODD_ANSWER.to_owned())
}

/// What is locked, unless another thread has it.
fn free<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
