//! The region as a file: made, opened, destroyed.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::ObjectsError;
use crate::header::{BadHeader, DIRECTORY_BYTES, HEADER_BYTES, Header, Metadata, VERSION};
use crate::layout::{GRANULE_BYTES, Layout};
use crate::liveness::{KernelLocks, claim_all};
use crate::metadata;
use crate::region::{Node, Platform, Region};

/// Regions begin at multiples of this between 32 and 48 TiB: loaders, heaps and stacks lie elsewhere, and
/// so does the memory of clones.
const ADDRESS_STEP: u64 = 1 << 30;
const FIRST_ADDRESS: u64 = 0x2000_0000_0000;
const ADDRESS_STEPS: u64 = (16 << 40) / ADDRESS_STEP;

impl Region {
    /// Makes a region file. Its memory is there from the beginning, so that no client runs out of it later.
    ///
    /// # Errors
    /// [`ObjectsError::BadSize`], [`ObjectsError::Io`]. Nothing stays behind then.
    pub fn create(path: &Path, bytes: u64) -> Result<(), ObjectsError> {
        Region::create_with(path, bytes, false, &Metadata::Region)
    }

    /// The same, of a region whose clients find misuse: objects that are freed twice, written beyond their ends or
    /// after they were freed, pointers that are not objects, references to objects that do not exist any more, ids that
    /// another client has. Each object takes 16 bytes more, and calls are slower.
    ///
    /// # Errors
    /// Those of [`Region::create`].
    pub fn create_checked(path: &Path, bytes: u64) -> Result<(), ObjectsError> {
        Region::create_with(path, bytes, true, &Metadata::Region)
    }

    /// The same, of a region with its metadata in a file of this node, see `metadata.rs`.
    ///
    /// # Errors
    /// Those of [`Region::create`], [`ObjectsError::BadDirectory`].
    pub fn create_with(
        path: &Path,
        bytes: u64,
        is_checked: bool,
        metadata: &Metadata,
    ) -> Result<(), ObjectsError> {
        check_size(path, bytes, metadata)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(ObjectsError::io("create the region", path))?;
        let filled = fill(&file, path, bytes, is_checked, metadata).and_then(|()| match metadata {
            Metadata::Region => Ok(()),
            // Its node-local memory is there from the beginning, too.
            Metadata::Node(_) => Region::<Node>::open(path).map(drop),
        });
        filled.inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    /// Removes a region file that no client uses.
    ///
    /// # Errors
    /// [`ObjectsError::InUse`], and those of [`Region::open`].
    pub fn destroy(path: &Path) -> Result<(), ObjectsError> {
        let (file, header) = open_file(path)?;
        let found = file.metadata().map_err(ObjectsError::io("look at the region", path))?;
        let locks = KernelLocks::new(file);
        // Claims keep new clients out until the file is gone.
        let (_claims, living) =
            claim_all(&locks).map_err(ObjectsError::io("look for clients of the region", path))?;
        if living > 0 {
            return Err(ObjectsError::InUse { path: path.to_owned(), clients: living });
        }
        // Before the region: without it, the file would stay for ever.
        metadata::remove(&found, &header)?;
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
        check_size(path, bytes, &Metadata::Region)?;
        fill(file, path, bytes, is_checked, &Metadata::Region)
    }

    /// Whether a region can have so many bytes.
    ///
    /// # Errors
    /// [`ObjectsError::BadSize`].
    pub fn check_size(path: &Path, bytes: u64) -> Result<(), ObjectsError> {
        check_size(path, bytes, &Metadata::Region)
    }
}

fn check_size(path: &Path, bytes: u64, metadata: &Metadata) -> Result<(), ObjectsError> {
    let bad = || ObjectsError::BadSize { path: path.to_owned(), bytes };
    let Metadata::Node(directory) = metadata else {
        return Layout::of(bytes).map(drop).ok_or_else(bad);
    };
    if !directory.is_absolute() || directory.as_os_str().len() > DIRECTORY_BYTES {
        return Err(ObjectsError::BadDirectory { directory: directory.clone() });
    }
    Layout::of(bytes).ok_or_else(bad)?;
    Layout::node_local(bytes)
        .map(drop)
        .ok_or_else(|| ObjectsError::BadNodeSize { path: path.to_owned(), bytes })
}

fn fill(
    file: &File,
    path: &Path,
    bytes: u64,
    is_checked: bool,
    metadata: &Metadata,
) -> Result<(), ObjectsError> {
    let no_memory = || ObjectsError::io("get memory for the region", path);
    let flags = rustix::fs::FallocateFlags::empty();
    // Owner bytes at its end may lie elsewhere.
    let own = match metadata {
        Metadata::Region => bytes,
        Metadata::Node(_) => bytes - bytes / GRANULE_BYTES,
    };
    rustix::fs::fallocate(file, flags, 0, own).map_err(|errno| no_memory()(errno.into()))?;
    file.set_len(bytes).map_err(no_memory())?;
    let mut random = [0; 24];
    getrandom::fill(&mut random)
        .map_err(std::io::Error::from)
        .map_err(ObjectsError::io("get random numbers for the region", path))?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&random[..16]);
    let step = random[16..].iter().fold(0, |step, byte| step << 8 | u64::from(*byte));
    let address = FIRST_ADDRESS + step % ADDRESS_STEPS * ADDRESS_STEP;
    let header = Header { bytes, address, uuid, is_checked, metadata: metadata.clone() };
    // The last step: a file without a header is not a region.
    (&*file)
        .write_all(&header.encode())
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

impl<P: Platform> Region<P> {
    /// Opens a region and maps it.
    ///
    /// # Errors
    /// [`ObjectsError`] says why not.
    pub fn open(path: &Path) -> Result<Region<P>, ObjectsError> {
        let (file, header) = open_file(path)?;
        let damaged = || ObjectsError::DamagedHeader { path: path.to_owned() };
        let layout = header.layout().ok_or_else(damaged)?;
        match header.metadata {
            Metadata::Region => Region::map(file, header, layout, path, None),
            Metadata::Node(_) => metadata::open(file, header, layout, path),
        }
    }
}
