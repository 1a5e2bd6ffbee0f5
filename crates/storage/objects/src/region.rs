//! The region as a file: made, opened, described, destroyed.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::ObjectsError;
use crate::layout::{BadHeader, ClientId, HEADER_BYTES, Header, Layout, VERSION};
use crate::liveness::{KernelLocks, Liveness};
use crate::words::{self, Mapped, Words};

/// What a region runs on.
pub trait Platform {
    /// Its memory.
    type Words: Words + From<Mapped>;
    /// What shows which clients are alive.
    type Liveness: Liveness + From<File>;
    /// A fault that its operations have.
    #[cfg(feature = "seeded-faults")]
    const FAULT: Option<crate::seeded::Fault> = None;
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
        let has = matches!(<$platform>::FAULT, Some(crate::seeded::Fault::$fault));
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

/// An open region.
pub struct Region<P: Platform = Node> {
    pub(crate) words: P::Words,
    pub(crate) liveness: P::Liveness,
    pub(crate) layout: Layout,
    pub(crate) header: Header,
    pub(crate) path: PathBuf,
}

impl Region {
    /// Makes a region file. Its memory is there from the beginning, so that no client runs out of it later.
    ///
    /// # Errors
    /// [`ObjectsError::BadSize`], [`ObjectsError::Io`]. Nothing stays behind then.
    pub fn create(path: &Path, bytes: u64) -> Result<(), ObjectsError> {
        if Layout::of(bytes).is_none() {
            return Err(ObjectsError::BadSize { path: path.to_owned(), bytes });
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(ObjectsError::io("create the region", path))?;
        fill(&file, path, bytes).inspect_err(|_| {
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

fn fill(file: &File, path: &Path, bytes: u64) -> Result<(), ObjectsError> {
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
        .write_all(&Header { bytes, address, uuid }.encode())
        .map_err(ObjectsError::io("write the header of the region", path))
}

/// Opens the file and reads its header.
fn open_file(path: &Path) -> Result<(File, Header), ObjectsError> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(ObjectsError::io("open the region", path))?;
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
        Ok(Region { words, liveness, layout, header, path: path.to_owned() })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of a mailbox. `None` if there is none.
    pub(crate) fn mailbox_name(&self, index: usize) -> Option<String> {
        let at = self.layout.mailbox(index);
        if self.words.word(at.state()) != crate::layout::READY {
            return None;
        }
        let words = (0..crate::layout::NAME_BYTES / 8).map(|word| self.words.word(at.name(word)));
        let bytes: Vec<u8> =
            words.flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
        Some(String::from_utf8_lossy(&bytes).into_owned())
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

    pub(crate) fn claim(
        &self,
        id: ClientId,
    ) -> Result<Option<<P::Liveness as Liveness>::Claim>, ObjectsError> {
        self.liveness.claim(id).map_err(ObjectsError::io("claim an id in the region", &self.path))
    }

    pub(crate) fn damaged(&self, what: String) -> ObjectsError {
        ObjectsError::Damaged { path: self.path.clone(), what }
    }
}
