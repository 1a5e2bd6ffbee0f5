//! Memory whose hosts cache lines without coherence: stores stay with a host until it writes them back, and loads see
//! what the host has cached.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use farfork_pool::{Ownership, PoolError};
use farfork_types::{CHUNK_BYTES, Cid};

use super::Hosts;

/// Bytes of a line; larger than a processor's, so that the tests take less time.
const LINE: usize = 4096;

/// The medium.
#[derive(Clone)]
pub struct Simulated {
    shared: Arc<Mutex<Shared>>,
    invalidates: bool,
}

struct Shared {
    memory: Vec<u8>,
    made: u8,
    taken: Vec<Taken>,
}

/// Memory that is not free.
struct Taken {
    cid: Cid,
    bytes: Range<usize>,
    is_published: bool,
    /// Hosts that write or borrow it, once for each time.
    users: Vec<String>,
}

impl Shared {
    fn of(&mut self, cid: Cid) -> &mut Taken {
        self.taken.iter_mut().find(|taken| taken.cid == cid).unwrap()
    }

    fn published(&mut self, cid: Cid) -> Result<&mut Taken, PoolError> {
        let found = self.taken.iter_mut().find(|taken| taken.cid == cid && taken.is_published);
        found.ok_or(PoolError::NoImage { path: "simulated".into(), cid })
    }

    /// Ends what `is_over` is true of, and frees what no host has.
    fn end(&mut self, mut is_over: impl FnMut(Cid, &str) -> bool) {
        for taken in &mut self.taken {
            let cid = taken.cid;
            taken.users.retain(|user| !is_over(cid, user));
        }
        self.taken.retain(|taken| taken.is_published || !taken.users.is_empty());
    }

    /// A gap of so many bytes.
    fn gap(&self, bytes: usize) -> Result<Range<usize>, PoolError> {
        let ends = self.taken.iter().map(|taken| taken.bytes.end);
        let is_free = |range: &Range<usize>| {
            let apart =
                |taken: &Taken| taken.bytes.end <= range.start || range.end <= taken.bytes.start;
            range.end <= self.memory.len() && self.taken.iter().all(apart)
        };
        let gaps = ends.chain([0]).map(|start| start..start + bytes).filter(is_free);
        gaps.min_by_key(|range| range.start).ok_or(PoolError::Full {
            path: "simulated".into(),
            asked: bytes as u64,
            free: 0,
        })
    }
}

impl Simulated {
    pub fn new(chunks: u64, invalidates: bool) -> Simulated {
        let memory = vec![0; (chunks * CHUNK_BYTES) as usize];
        let shared = Shared { memory, made: 0, taken: Vec::new() };
        Simulated { shared: Arc::new(Mutex::new(shared)), invalidates }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }
}

/// A host with its cache: lines by their numbers.
pub struct SimulatedHost {
    medium: Simulated,
    name: String,
    cache: Mutex<HashMap<usize, Vec<u8>>>,
}

impl SimulatedHost {
    /// Runs `work` on each line of a range, as this host has it, with the part of it that lies in the range.
    fn lines(&self, bytes: Range<usize>, mut work: impl FnMut(&mut [u8], Range<usize>)) {
        let shared = self.medium.shared();
        let mut cache = self.cache.lock().unwrap();
        let mut at = bytes.start;
        while at < bytes.end {
            let start = at / LINE * LINE;
            let end = (start + LINE).min(bytes.end);
            let load = || shared.memory[start..start + LINE].to_vec();
            let line = cache.entry(start / LINE).or_insert_with(load);
            work(&mut line[at - start..end - start], at - bytes.start..end - bytes.start);
            at = end;
        }
    }

    fn write_back(&self, bytes: &Range<usize>) {
        let mut shared = self.medium.shared();
        let cache = self.cache.lock().unwrap();
        for (line, content) in cache.iter().filter(|(line, _)| bytes.contains(&(*line * LINE))) {
            shared.memory[line * LINE..(line + 1) * LINE].copy_from_slice(content);
        }
    }

    fn invalidate(&self, bytes: &Range<usize>) {
        self.cache.lock().unwrap().retain(|line, _| !bytes.contains(&(*line * LINE)));
    }
}

/// Memory that a host writes or reads, until it is dropped.
pub struct Use {
    medium: Simulated,
    name: String,
    cid: Cid,
    bytes: Range<usize>,
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut once = true;
        let is_own = |cid, name: &str| cid == self.cid && name == self.name;
        self.medium.shared().end(|cid, name| is_own(cid, name) && std::mem::take(&mut once));
    }
}

impl Ownership for SimulatedHost {
    type Writer<'a> = Use;
    type Borrowed = Use;

    fn begin(&self, bytes: u64) -> Result<Use, PoolError> {
        let mut shared = self.medium.shared();
        let bytes = shared.gap(bytes as usize)?;
        shared.made += 1;
        let cid = Cid::from_bytes([shared.made; 16]);
        let users = vec![self.name.clone()];
        shared.taken.push(Taken { cid, bytes: bytes.clone(), is_published: false, users });
        drop(shared);
        self.lines(bytes.clone(), |line, _| line.fill(0));
        Ok(Use { medium: self.medium.clone(), name: self.name.clone(), cid, bytes })
    }

    fn write(&self, writer: &mut Use, offset: u64, bytes: &[u8]) {
        let start = writer.bytes.start + offset as usize;
        self.lines(start..start + bytes.len(), |line, part| line.copy_from_slice(&bytes[part]));
    }

    fn publish(&self, writer: Use) -> Result<Cid, PoolError> {
        self.write_back(&writer.bytes);
        self.medium.shared().of(writer.cid).is_published = true;
        Ok(writer.cid)
    }

    fn borrow(&self, cid: Cid) -> Result<Use, PoolError> {
        let mut shared = self.medium.shared();
        let taken = shared.published(cid)?;
        taken.users.push(self.name.clone());
        let bytes = taken.bytes.clone();
        drop(shared);
        if self.medium.invalidates {
            self.invalidate(&bytes);
        }
        Ok(Use { medium: self.medium.clone(), name: self.name.clone(), cid, bytes })
    }

    fn read(&self, borrowed: &Use, offset: u64, to: &mut [u8]) -> Result<(), PoolError> {
        let start = borrowed.bytes.start + offset as usize;
        self.lines(start..start + to.len(), |line, part| to[part].copy_from_slice(line));
        Ok(())
    }

    fn reclaim(&self, cid: Cid) -> Result<(), PoolError> {
        let mut shared = self.medium.shared();
        shared.published(cid)?.is_published = false;
        shared.end(|_, _| false);
        Ok(())
    }

    fn settle(&self) -> Result<(), PoolError> {
        self.medium.shared().end(|_, name| name == self.name);
        Ok(())
    }
}

impl Hosts for Simulated {
    type Host = SimulatedHost;

    fn host(&self, name: &str) -> SimulatedHost {
        let (medium, name) = (self.clone(), name.to_owned());
        let host = SimulatedHost { medium, name, cache: Mutex::default() };
        host.settle().unwrap();
        host
    }

    fn dies_borrowing(&self, name: &str, cid: Cid) {
        std::mem::forget(self.host(name).borrow(cid).unwrap());
    }

    fn dies_writing(&self, name: &str, bytes: u64) {
        let host = self.host(name);
        let mut writer = host.begin(bytes).unwrap();
        host.write(&mut writer, 0, &[5; LINE]);
        std::mem::forget(writer);
    }

    fn used(&self) -> u64 {
        self.shared().taken.iter().map(|taken| taken.bytes.len() as u64).sum()
    }

    fn images(&self) -> Vec<Cid> {
        let shared = self.shared();
        shared.taken.iter().filter(|taken| taken.is_published).map(|taken| taken.cid).collect()
    }
}
