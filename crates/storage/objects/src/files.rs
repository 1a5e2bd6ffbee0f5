//! The region as a file: made, opened, destroyed.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::ObjectsError;
use crate::header::{BadHeader, DIRECTORY_BYTES, HEADER_BYTES, Header, Metadata, VERSION};
use crate::layout::Layout;
use crate::liveness::{KernelLocks, claim_all};
use crate::metadata;
use crate::region::{Node, Platform, Region};
use crate::words;

/// Regions begin at multiples of this, a huge page, between 32 and 48 TiB: loaders, heaps and stacks lie elsewhere, and
/// so does the memory of clones.
const ADDRESS_STEP: u64 = 2 << 20;
const FIRST_ADDRESS: u64 = 0x2000_0000_0000;
const ADDRESS_STEPS: u64 = (16 << 40) / ADDRESS_STEP;

/// How many addresses are drawn until one is free in this process.
const MOST_DRAWS: usize = 64;

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
        let again = file.try_clone().map_err(ObjectsError::io("look at the region", path))?;
        let locks = KernelLocks::new(again);
        // Claims keep new clients out until the file is gone.
        let _claims = claim_all(&locks)
            .map_err(ObjectsError::io("look for clients of the region", path))?
            .map_err(|clients| ObjectsError::InUse { path: path.to_owned(), clients })?;
        // Before the region: without it, the file would stay for ever.
        metadata::remove(&file, path, &header)?;
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
    for own in own_parts(bytes, metadata) {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(file, flags, own.start, own.end - own.start)
            .map_err(|errno| no_memory()(errno.into()))?;
    }
    file.set_len(bytes).map_err(no_memory())?;
    let no_numbers = || ObjectsError::io("get random numbers for the region", path);
    let uuid = draw().map_err(no_numbers())?;
    let address = address(draw, |address| words::is_free(address, bytes)).map_err(no_numbers())?;
    let header = Header { bytes, address, uuid, is_checked, metadata: metadata.clone() };
    // The last step: a file without a header is not a region.
    (&*file)
        .write_all(&header.encode())
        .map_err(ObjectsError::io("write the header of the region", path))
}

fn draw<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    let mut random = [0; BYTES];
    getrandom::fill(&mut random)?;
    Ok(random)
}

/// An address for a region. It is drawn, as other processes will need the same one beside those of their other regions, and
/// it is one that is free in this process, which mostly uses the region, too. A process that has none left may still make
/// regions for others.
fn address(
    draw: impl Fn() -> std::io::Result<[u8; 8]>,
    is_free: impl Fn(u64) -> bool,
) -> std::io::Result<u64> {
    let of = |random| FIRST_ADDRESS + u64::from_le_bytes(random) % ADDRESS_STEPS * ADDRESS_STEP;
    let mut address = of(draw()?);
    for _ in 1..MOST_DRAWS {
        if is_free(address) {
            break;
        }
        address = of(draw()?);
    }
    Ok(address)
}

/// What of a region does not lie in node-local memory.
fn own_parts(bytes: u64, metadata: &Metadata) -> Vec<Range<u64>> {
    let layout = match metadata {
        Metadata::Region => None,
        Metadata::Node(_) => Layout::node_local(bytes),
    };
    let mut begin = 0;
    let mut own = Vec::new();
    for part in
        layout.iter().flat_map(Layout::node_local_parts).chain(std::iter::once(bytes..bytes))
    {
        own.push(begin..part.start);
        begin = part.end;
    }
    own.retain(|part| !part.is_empty());
    own
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// An address that another region of this process has is not given again.
    #[test]
    fn a_new_region_lies_beside_those_of_its_process() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("region");
        Region::create(&path, 2 << 20).expect("a region");
        let other = Region::<Node>::open(&path).expect("a region").header().address;
        let step = (other - FIRST_ADDRESS) / ADDRESS_STEP;
        // Of 64 MiB, it would reach into the other one from 31 steps before it, too.
        let steps = [step, step - 31, step + 1];
        let region = Region::<Node>::open(&path).expect("a region");
        let draws = Cell::new(0);
        let draw = || Ok(steps[draws.replace(draws.get() + 1)].to_le_bytes());
        let found = address(draw, |address| words::is_free(address, 64 << 20)).expect("drawn");
        assert_eq!((draws.get(), found), (3, other + ADDRESS_STEP));
        drop(region);
        assert!(words::is_free(other, 64 << 20), "it is free again");
    }

    /// Where none is free, as in a process that uses other memory there, the region is for others.
    #[test]
    fn drawing_ends() {
        let draws = Cell::new(0);
        let draw = || Ok((draws.replace(draws.get() + 1) as u64 + ADDRESS_STEPS).to_le_bytes());
        let found = address(draw, |_| false).expect("drawn");
        assert_eq!(draws.get(), MOST_DRAWS);
        assert_eq!(found, FIRST_ADDRESS + (MOST_DRAWS as u64 - 1) * ADDRESS_STEP);
    }
}
