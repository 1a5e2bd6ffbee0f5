//! Reads of images from their serving node: connections come and go, images stay the same.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_fabric::tcp::{ClientSettings, TcpFabric};
use farfork_fabric::{Batch, Fabric, FabricError, Refusal, RegionKey, Segment};
use farfork_types::{Cid, PAGE_BYTES};
use serde::{Deserialize, Serialize};

use crate::keyfile::key_at;
use crate::protocol::{self, Found, PageRange, Question};

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// After a read has failed at its deadline, others fail at once for so long: a page fault that fails is tried
/// again by the kernel, and requests that wait behind it must not wait for a deadline each.
const COOLDOWN: Duration = Duration::from_secs(1);

/// How much of an image's beginning is read when it is found. The metadata of most images fits.
const FRONT_BYTES: u64 = 256 << 10;

/// Why a read failed, in words.
pub type Cause = String;

/// A serving node, for commands that name it with each image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceAt {
    /// Its address.
    pub address: String,
    /// File of the key that both have. A file that lies in the directory of the mount goes with the image.
    pub key: PathBuf,
}

/// A serving node.
pub struct Source {
    address: String,
    /// The file of the shared key. It is read for each connection: a wrong key can be put right.
    key: PathBuf,
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
    fabric: Arc<TcpFabric>,
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

impl FarImage {
    /// An image that was found before. Its key is asked for when it is read.
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
        let SourceAt { address, key } = at.clone();
        let (link, failed) = (Mutex::default(), Mutex::default());
        Source { address, key, deadline, link, failed }
    }

    /// Where it is.
    #[cfg(test)]
    pub fn at(&self) -> SourceAt {
        SourceAt { address: self.address.clone(), key: self.key.clone() }
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

    /// As it stands in messages.
    pub fn name(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// The image with this name or id.
    pub fn find(self: &Arc<Self>, image: &str) -> Result<FarImage, Cause> {
        // A command asks for a new attempt.
        *locked(&self.failed) = None;
        self.within_deadline(|deadline| {
            let link = self.link(deadline)?;
            let found = self.ask(&link, image, deadline)?;
            let key = found.key().ok_or_else(odd_answer)?;
            let front = self.front(&link, key, found.bytes, FRONT_BYTES, deadline)?;
            Ok(FarImage {
                cid: Cid::from_bytes(found.cid),
                bytes: found.bytes,
                modified_unix_ns: found.modified_unix_ns,
                fetched_bytes: AtomicU64::new(front.len() as u64),
                first_page: front[..front.len().min(PAGE_BYTES as usize)].to_vec(),
                front,
                key: Mutex::new((link.number, key)),
                source: Arc::clone(self),
            })
        })
    }

    /// The pages of an image that should come first.
    pub fn pages(&self, cid: Cid) -> Result<Vec<PageRange>, Cause> {
        let question = protocol::encode(&Question::Pages { cid: cid.to_bytes() });
        self.within_deadline(|deadline| {
            let link = self.link(deadline)?;
            let answer = link.fabric.call(&question, deadline);
            let answer = answer.map_err(|error| self.failure(&link, error))?;
            protocol::decode(&answer).ok_or_else(odd_answer)
        })
    }

    /// Bytes of an image, at most [`MAX_SEGMENT_BYTES`](farfork_fabric::MAX_SEGMENT_BYTES). The range lies
    /// within the image.
    pub fn read(&self, image: &FarImage, offset: u64, bytes: u32) -> Result<Vec<u8>, Cause> {
        let end = offset + u64::from(bytes);
        if let Some(known) = image.front.get(offset as usize..end as usize) {
            return Ok(known.to_vec());
        }
        let read = self.within_deadline(|deadline| {
            let link = self.link(deadline)?;
            let key = self.key_of(image, &link, deadline)?;
            let segment = Segment { key, offset, bytes };
            let read = link.fabric.submit(&[segment], deadline).and_then(Batch::wait);
            let read = read.map_err(|error| {
                if is_of_key(&error) {
                    // The key of the next attempt is a new one.
                    locked(&image.key).0 = 0;
                }
                self.failure(&link, error)
            })?;
            Ok(read.into_iter().next().unwrap_or_default())
        })?;
        image.fetched_bytes.fetch_add(read.len() as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn within_deadline<T>(
        &self,
        mut attempt: impl FnMut(Instant) -> Result<T, Failed>,
    ) -> Result<T, Cause> {
        let deadline = Instant::now() + self.deadline;
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
        let settings = ClientSettings { timeout, ..ClientSettings::default() };
        let shared = key_at(&self.key).map_err(|error| Failed::Source(error.to_string()))?;
        let fabric =
            TcpFabric::connect(&self.address, &shared, settings).map_err(|error| match error {
                FabricError::Connect { .. } => Failed::ForNow(error.to_string()),
                _ => Failed::Source(error.to_string()),
            })?;
        links.count += 1;
        let link = Link { fabric: Arc::new(fabric), number: links.count };
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

    fn ask(&self, link: &Link, image: &str, deadline: Instant) -> Result<Found, Failed> {
        let question = protocol::encode(&Question::Find { image: image.to_owned() });
        let answer = link.fabric.call(&question, deadline);
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
        let found = self.ask(link, &image.cid.to_string(), deadline)?;
        let key = found.key().ok_or_else(odd_answer)?;
        let is_same = (found.cid, found.bytes, found.modified_unix_ns)
            == (image.cid.to_bytes(), image.bytes, image.modified_unix_ns);
        if !is_same || self.front(link, key, found.bytes, PAGE_BYTES, deadline)? != image.first_page
        {
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

fn odd_answer() -> Failed {
    Failed::Image("the answer is not one of this version of farfork".to_owned())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
