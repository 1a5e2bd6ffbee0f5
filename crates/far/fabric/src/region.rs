//! Regions that this node lets others read, and the keys to them.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use farfork_sys::sync::{locked, unpoisoned};
use subtle::ConstantTimeEq;

use crate::error::Refusal;

/// Bytes that others may read.
pub trait Region: Send + Sync {
    /// How many there are.
    fn bytes(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on. The range lies within the region.
    ///
    /// # Errors
    ///
    /// Not all bytes could be read. `into` is not used then.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// The file whose bytes the region's are, from its beginning, if there is one: what a device can read by
    /// itself, without [`Region::read`].
    fn file(&self) -> Option<&File> {
        None
    }
}

/// What lets a peer read a region without any code of this process.
pub trait Exposed: Send + Sync {
    /// Ends that. No read is in progress, or begins, after it has returned.
    fn withdraw(&self);
}

/// A file whose bytes do not change, such as an image.
#[derive(Debug)]
pub struct FileRegion {
    file: File,
    bytes: u64,
}

impl FileRegion {
    /// The whole file. It stays open, so that its bytes stay when its name goes.
    ///
    /// # Errors
    ///
    /// The size of the file cannot be read.
    pub fn new(file: File) -> io::Result<FileRegion> {
        let bytes = file.metadata()?.len();
        Ok(FileRegion { file, bytes })
    }
}

impl Region for FileRegion {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

impl Region for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = self.get(from..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Names a region and proves the right to read it. It is a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RegionKey {
    /// Random name of the region.
    pub id: u128,
    /// Counts revocations.
    pub generation: u32,
    secret: [u8; 16],
}

impl RegionKey {
    /// Length of [`RegionKey::to_bytes`].
    pub const BYTES: usize = 36;

    /// The key as bytes: id (16), generation (4), secret (16); little-endian.
    pub fn to_bytes(&self) -> [u8; RegionKey::BYTES] {
        let mut bytes = [0; RegionKey::BYTES];
        bytes[..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.generation.to_le_bytes());
        bytes[20..].copy_from_slice(&self.secret);
        bytes
    }

    /// The key that [`RegionKey::to_bytes`] has written.
    pub fn from_bytes(bytes: &[u8; RegionKey::BYTES]) -> RegionKey {
        let (mut id, mut generation, mut secret) = ([0; 16], [0; 4], [0; 16]);
        id.copy_from_slice(&bytes[..16]);
        generation.copy_from_slice(&bytes[16..20]);
        secret.copy_from_slice(&bytes[20..]);
        let (id, generation) = (u128::from_le_bytes(id), u32::from_le_bytes(generation));
        RegionKey { id, generation, secret }
    }
}

impl fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RegionKey");
        shown.field("id", &format_args!("{:032x}", self.id));
        shown.field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// All regions of a serving node.
#[derive(Default)]
pub struct Regions {
    entries: RwLock<HashMap<u128, Arc<Entry>>>,
}

/// A region, locked for reading during each read of it.
struct Entry(RwLock<State>);

struct State {
    /// None once it is removed.
    region: Option<Arc<dyn Region>>,
    key: RegionKey,
    /// What ends with the key.
    exposed: Mutex<Vec<Weak<dyn Exposed>>>,
}

impl State {
    /// The region, if the key is its.
    fn opened_by(&self, key: &RegionKey) -> Result<&Arc<dyn Region>, Refusal> {
        let region = self.region.as_ref().ok_or(Refusal::UnknownRegion)?;
        if self.key.generation != key.generation {
            return Err(Refusal::StaleKey);
        }
        if !bool::from(self.key.secret.ct_eq(&key.secret)) {
            return Err(Refusal::WrongKey);
        }
        Ok(region)
    }

    fn withdraw(&self) {
        let exposed = std::mem::take(&mut *locked(&self.exposed));
        exposed.iter().filter_map(Weak::upgrade).for_each(|exposed| exposed.withdraw());
    }
}

impl Regions {
    /// No regions.
    pub fn new() -> Regions {
        Regions::default()
    }

    /// Lets others read a region. Returns its key.
    ///
    /// # Errors
    ///
    /// The kernel's source of random bytes failed.
    pub fn register(&self, region: Arc<dyn Region>) -> io::Result<RegionKey> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)?;
        let key =
            RegionKey { id: u128::from_le_bytes(id), generation: 1, secret: random_secret()? };
        let (region, exposed) = (Some(region), Mutex::default());
        let entry = Entry(RwLock::new(State { region, key, exposed }));
        write(&self.entries).insert(key.id, Arc::new(entry));
        Ok(key)
    }

    /// Makes all keys to a region stale, and returns the key of the next generation; `None` if there is no
    /// such region. The secret is a new one, too: a holder of the old key cannot make the new one of it.
    /// Waits for reads in progress.
    ///
    /// # Errors
    ///
    /// The kernel's source of random bytes failed; the old key is valid then.
    pub fn revoke(&self, id: u128) -> io::Result<Option<RegionKey>> {
        let Some(entry) = self.find(id) else { return Ok(None) };
        let secret = random_secret()?;
        let mut state = write(&entry.0);
        if state.region.is_none() {
            return Ok(None);
        }
        state.withdraw();
        let generation = state.key.generation.wrapping_add(1);
        state.key = RegionKey { id, generation, secret };
        Ok(Some(state.key))
    }

    /// Takes a region away from others; whether it was there. Waits for reads in progress.
    pub fn remove(&self, id: u128) -> bool {
        let Some(entry) = write(&self.entries).remove(&id) else { return false };
        let mut state = write(&entry.0);
        state.withdraw();
        state.region.take().is_some()
    }

    /// Has `open` let a peer that has the key read the region by itself, until the key is revoked.
    ///
    /// # Errors
    ///
    /// The key is not valid, or `open` refuses.
    pub fn expose<T>(
        &self,
        key: &RegionKey,
        open: impl FnOnce(&dyn Region) -> Result<(Arc<dyn Exposed>, T), Refusal>,
    ) -> Result<T, Refusal> {
        let entry = self.find(key.id).ok_or(Refusal::UnknownRegion)?;
        // A revocation waits for this lock, and then finds what was opened.
        let state = read(&entry.0);
        let (opened, answer) = open(&**state.opened_by(key)?)?;
        let mut exposed = locked(&state.exposed);
        exposed.retain(|one| one.strong_count() > 0 && !one.ptr_eq(&Arc::downgrade(&opened)));
        exposed.push(Arc::downgrade(&opened));
        Ok(answer)
    }

    /// Fills `into` with the bytes of a region from `offset` on.
    ///
    /// # Errors
    ///
    /// The key is not valid, the range is not in the region, or the region cannot be read. In the first two
    /// cases nothing is read.
    pub fn read(&self, key: &RegionKey, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let entry = self.find(key.id).ok_or(Refusal::UnknownRegion)?;
        let state = read(&entry.0);
        let region = state.opened_by(key)?;
        let bytes = region.bytes();
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > bytes) {
            return Err(Refusal::OutOfBounds { bytes });
        }
        if into.is_empty() {
            return Ok(());
        }
        region.read(offset, into).map_err(|error| Refusal::read_failed(&error))
    }

    fn find(&self, id: u128) -> Option<Arc<Entry>> {
        read(&self.entries).get(&id).map(Arc::clone)
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regions").field("count", &read(&self.entries).len()).finish()
    }
}

fn random_secret() -> io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)?;
    Ok(secret)
}

// What the locks guard is replaced in single steps, so that a panic leaves nothing half done.

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    unpoisoned(lock.read())
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    unpoisoned(lock.write())
}
