//! The region as a file: made, opened, described, destroyed.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::ObjectsError;
use crate::forks::Replaced;
use crate::layout::{
    BadHeader, ClientId, HEADER_BYTES, Header, Layout, NAME_BYTES, OPERATIONS, VERSION,
};
use crate::liveness::{KernelLocks, Liveness};
use crate::words::{self, Mapped, Words};

/// What a region runs on.
pub trait Platform {
    /// Its memory.
    type Words: Words + From<Mapped> + Clone;
    /// What shows which clients are alive.
    type Liveness: Liveness + From<File> + Clone;
    /// A fault that its operations have.
    #[cfg(feature = "seeded-faults")]
    #[inline(always)]
    fn fault() -> Option<crate::seeded::Fault> {
        None
    }
}

/// One machine: coherent memory, and its kernel's locks.
#[derive(Debug)]
pub struct Node;

impl Platform for Node {
    type Words = Mapped;
    type Liveness = KernelLocks;
}

impl From<File> for KernelLocks {
    fn from(file: File) -> KernelLocks {
        KernelLocks::new(file)
    }
}

/// Whether operations of a platform have a fault. Without the feature, none has any.
macro_rules! has_fault {
    ($platform:ty, $fault:ident) => {{
        #[cfg(feature = "seeded-faults")]
        let has = matches!(<$platform>::fault(), Some(crate::seeded::Fault::$fault));
        #[cfg(not(feature = "seeded-faults"))]
        let has = false;
        has
    }};
}
pub(crate) use has_fault;

/// Regions begin at multiples of this between 32 and 48 TiB: loaders, heaps and stacks lie elsewhere, and
/// so does the memory of clones.
const ADDRESS_STEP: u64 = 1 << 30;
const FIRST_ADDRESS: u64 = 0x2000_0000_0000;
const ADDRESS_STEPS: u64 = (16 << 40) / ADDRESS_STEP;

/// What holds a client's id.
pub(crate) type Claim<P> = <<P as Platform>::Liveness as Liveness>::Claim;

/// Completes the guarded operation that a dead client was in, and gives back what the client has. It holds the client's
/// claim. The layers above say what that means.
pub(crate) type Completion<P> = Arc<dyn Fn(&Region<P>, ClientId, Claim<P>) + Send + Sync>;

/// An open region.
pub struct Region<P: Platform = Node> {
    pub(crate) words: P::Words,
    /// Its owner bytes, by the granules that they belong to.
    pub(crate) owners: P::Words,
    pub(crate) liveness: P::Liveness,
    pub(crate) layout: Layout,
    pub(crate) header: Header,
    pub(crate) path: PathBuf,
    /// The code of guarded operations that this process has.
    completions: Arc<[Replaced<Completion<P>>; OPERATIONS]>,
}

impl Region {
    /// Makes a region file. Its memory is there from the beginning, so that no client runs out of it later.
    ///
    /// # Errors
    /// [`ObjectsError::BadSize`], [`ObjectsError::Io`]. Nothing stays behind then.
    pub fn create(path: &Path, bytes: u64) -> Result<(), ObjectsError> {
        Region::create_as(path, bytes, false)
    }

    /// The same, of a region whose clients find misuse: objects that are freed twice, written beyond their ends or
    /// after they were freed, pointers that are not objects, references to objects that do not exist any more, ids that
    /// another client has. Each object takes 16 bytes more, and calls are slower.
    ///
    /// # Errors
    /// Those of [`Region::create`].
    pub fn create_checked(path: &Path, bytes: u64) -> Result<(), ObjectsError> {
        Region::create_as(path, bytes, true)
    }

    fn create_as(path: &Path, bytes: u64, is_checked: bool) -> Result<(), ObjectsError> {
        Region::check_size(path, bytes)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(ObjectsError::io("create the region", path))?;
        Region::fill(&file, path, bytes, is_checked).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    /// Removes a region file that no client uses.
    ///
    /// # Errors
    /// [`ObjectsError::InUse`], and those of [`Region::open`].
    pub fn destroy(path: &Path) -> Result<(), ObjectsError> {
        let (file, _) = open_file(path)?;
        let locks = KernelLocks::new(file);
        let failed = || ObjectsError::io("look for clients of the region", path);
        // Claims keep new clients out until the file is gone.
        let mut claims = Vec::new();
        let mut living = 0;
        for id in ClientId::all() {
            match locks.claim(id).map_err(failed())? {
                Some(claim) => claims.push(claim),
                None => living += 1,
            }
        }
        if living > 0 {
            return Err(ObjectsError::InUse { path: path.to_owned(), clients: living });
        }
        fs::remove_file(path).map_err(ObjectsError::io("remove the region", path))
    }
}

impl Region {
    /// Makes a region of an empty file, which is or will be at `path`.
    ///
    /// # Errors
    /// Those of [`Region::create`].
    pub fn fill(
        file: &File,
        path: &Path,
        bytes: u64,
        is_checked: bool,
    ) -> Result<(), ObjectsError> {
        Region::check_size(path, bytes)?;
        fill(file, path, bytes, is_checked)
    }

    /// Whether a region can have so many bytes.
    ///
    /// # Errors
    /// [`ObjectsError::BadSize`].
    pub fn check_size(path: &Path, bytes: u64) -> Result<(), ObjectsError> {
        let bad = || ObjectsError::BadSize { path: path.to_owned(), bytes };
        Layout::of(bytes).map(drop).ok_or_else(bad)
    }
}

fn fill(file: &File, path: &Path, bytes: u64, is_checked: bool) -> Result<(), ObjectsError> {
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(file, flags, 0, bytes)
        .map_err(ObjectsError::io("get memory for the region", path))?;
    let mut random = [0; 24];
    getrandom::fill(&mut random)
        .map_err(std::io::Error::from)
        .map_err(ObjectsError::io("get random numbers for the region", path))?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&random[..16]);
    let step = random[16..].iter().fold(0, |step, byte| step << 8 | u64::from(*byte));
    let address = FIRST_ADDRESS + step % ADDRESS_STEPS * ADDRESS_STEP;
    // The last step: a file without a header is not a region.
    (&*file)
        .write_all(&Header { bytes, address, uuid, is_checked }.encode())
        .map_err(ObjectsError::io("write the header of the region", path))
}

/// Why a region cannot be opened. Another user's is refused.
fn foreign(path: &Path, error: std::io::Error) -> ObjectsError {
    let owner = fs::metadata(path).map(|found| found.uid()).ok();
    let own = rustix::process::geteuid().as_raw();
    match owner.filter(|owner| *owner != own) {
        Some(owner) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            ObjectsError::ForeignOwner { path: path.to_owned(), owner }
        }
        _ => ObjectsError::io("open the region", path)(error),
    }
}

/// Opens the file and reads its header.
fn open_file(path: &Path) -> Result<(File, Header), ObjectsError> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| foreign(path, error))?;
    let found = file.metadata().map_err(ObjectsError::io("look at the region", path))?;
    let path_buf = || path.to_owned();
    if !found.is_file() || found.len() < HEADER_BYTES as u64 {
        return Err(ObjectsError::NotARegion { path: path_buf() });
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(ObjectsError::io("read the region", path))?;
    let header = Header::decode(&bytes).map_err(|bad| match bad {
        BadHeader::NotARegion => ObjectsError::NotARegion { path: path_buf() },
        BadHeader::Version(found) => {
            ObjectsError::OtherVersion { path: path_buf(), found, known: VERSION }
        }
        BadHeader::Checksum => ObjectsError::DamagedHeader { path: path_buf() },
    })?;
    if found.len() != header.bytes {
        let (found, expected) = (found.len(), header.bytes);
        return Err(ObjectsError::Truncated { path: path_buf(), found, expected });
    }
    Ok((file, header))
}

/// Where a reference has the generation of its object: in bits that no offset of a granule in a region of at most 64 GiB has.
pub(crate) fn generation_bits(generation: u16) -> u64 {
    let generation = u64::from(generation);
    generation & 15 | generation >> 4 << 36
}

impl<P: Platform> Region<P> {
    /// Opens a region and maps it.
    ///
    /// # Errors
    /// [`ObjectsError`] says why not.
    pub fn open(path: &Path) -> Result<Region<P>, ObjectsError> {
        let (file, header) = open_file(path)?;
        let damaged = || ObjectsError::DamagedHeader { path: path.to_owned() };
        let layout = Layout::of(header.bytes).ok_or_else(damaged)?;
        let mapped =
            words::map(&file, header.address, header.bytes).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::EEXIST) => ObjectsError::AddressTaken {
                        path: path.to_owned(),
                        address: header.address,
                        end: header.address.saturating_add(header.bytes),
                    },
                    _ => ObjectsError::io("map the region", path)(error),
                }
            })?;
        let (words, liveness) = (P::Words::from(mapped), P::Liveness::from(file));
        let completions = Arc::default();
        let (owners, path) = (words.tail(layout.owner(0)), path.to_owned());
        Ok(Region { words, owners, liveness, layout, header, path, completions })
    }

    /// The same region once more.
    pub(crate) fn again(&self) -> Region<P> {
        let (words, owners) = (self.words.clone(), self.owners.clone());
        let liveness = self.liveness.clone();
        let Region { layout, header, .. } = *self;
        let (path, completions) = (self.path.clone(), self.completions.clone());
        Region { words, owners, liveness, layout, header, path, completions }
    }

    /// Takes over the code of operations that another handle of the region has.
    pub(crate) fn share_completions(&mut self, other: &Region<P>) {
        self.completions = Arc::clone(&other.completions);
    }

    /// The code that completes an operation, if this process has it.
    pub(crate) fn completion(&self, operation: usize) -> Option<Completion<P>> {
        self.completions.get(operation)?.get().cloned()
    }

    /// Makes that code known.
    pub(crate) fn set_completion(&self, operation: usize, completion: Completion<P>) {
        self.completions[operation].set(completion);
    }

    /// What its header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The granule that a reference means. `None` if it is not a reference of this region.
    pub(crate) fn granule_of(&self, reference: u64) -> Option<u32> {
        let generation = if self.header.is_checked { generation_bits(u16::MAX) } else { 0 };
        let offset = (reference ^ self.tag()) & !generation;
        let offset = Some(offset).filter(|offset| *offset < self.header.bytes)?;
        self.layout.granule_at(offset)
    }

    /// What all references to it have in common.
    pub(crate) fn tag(&self) -> u64 {
        let [low, high, ..] = self.header.uuid;
        u64::from(low) << 48 | u64::from(high) << 56
    }

    /// A granule that shared memory names, if it is one. 0 means none.
    pub(crate) fn granule_in_spans(&self, word: u64) -> Option<u32> {
        let granule = u32::try_from(word).ok()?;
        self.layout.spans().contains(&crate::layout::span_of(granule)).then_some(granule)
    }

    /// Name of a mailbox. `None` if there is none.
    pub(crate) fn mailbox_name(&self, index: usize) -> Option<String> {
        let at = self.layout.mailbox(index);
        if self.words.word(at.state()) != crate::layout::READY {
            return None;
        }
        Some(self.name(|word| at.name(word)))
    }

    /// The name whose words lie at these places.
    pub(crate) fn name(&self, at: impl Fn(usize) -> usize) -> String {
        let words = (0..NAME_BYTES / 8).map(|word| self.words.word(at(word)));
        let bytes: Vec<u8> =
            words.flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stores it there.
    pub(crate) fn set_name(&self, at: impl Fn(usize) -> usize, name: &str) {
        for word in 0..NAME_BYTES / 8 {
            let bytes = name.bytes().skip(8 * word).take(8).enumerate();
            let value = bytes.fold(0, |value, (at, byte)| value | u64::from(byte) << (8 * at));
            self.words.set_word(at(word), value);
        }
    }

    /// Slots of a mailbox, as many as there can be if the number is damaged.
    pub(crate) fn slots(&self, index: usize) -> u64 {
        self.words.word(self.layout.mailbox(index).slots()).min(crate::layout::MOST_SLOTS)
    }

    /// Whether a client has the id, or died with it.
    pub(crate) fn is_in_use(&self, id: ClientId) -> bool {
        self.words.word(self.layout.client(id)) != 0
    }

    pub(crate) fn is_alive(&self, id: ClientId) -> Result<bool, ObjectsError> {
        let failed = ObjectsError::io("look for clients of the region", &self.path);
        self.liveness.is_alive(id).map_err(failed)
    }

    pub(crate) fn claim(&self, id: ClientId) -> Result<Option<Claim<P>>, ObjectsError> {
        self.liveness.claim(id).map_err(ObjectsError::io("claim an id in the region", &self.path))
    }

    pub(crate) fn damaged(&self, what: String) -> ObjectsError {
        ObjectsError::Damaged { path: self.path.clone(), what }
    }
}
