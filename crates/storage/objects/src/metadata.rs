//! Metadata in node-local memory: clients, marks and owner bytes lie in a file of this node (tmpfs), objects in the region.
//!
//! ```text
//!  region file    header, generation │ ······· │ mailboxes, locks, spans │ ····· │ objects │ ···········
//!  node-local     header, generation │ clients │ ······················· │ marks │ ······· │ owner bytes
//!                                    one range of addresses: `layout.rs` holds for both
//! ```
//! Which half a word belongs to follows from what a lost node may cost. Mailboxes are what outlives all clients, and spans
//! give the sizes of objects: both stay in the region. All else is rebuilt from them ([`crate::rebuild`]): without
//! clients, an object is either reached from a mailbox or free.
//!
//! ```text
//!  file    0  magic "FFREGNOD"   8  bytes   16  uuid of the region   32  generation   40  boot id, 36 bytes   76  0 …
//!       4092  CRC-32C of the 4,092 bytes before it
//! ```
//! Invariants:
//! 1. The file belongs to the region if its identity, the generation in the region and the boot id are its own. Else it is
//!    lost, like one that is missing, or has another length.
//! 2. Lost metadata is rebuilt by one process at a time (the turn), which holds the claims of all clients: there is none. A
//!    living client goes on with what it has mapped, and others are refused meanwhile.
//! 3. A rebuild makes a file without a name, counts the generation in the region up, and then names the file. Killed
//!    before, it has made none.
//! 4. Whatever acts for a dead client compares generations after it has the claim: one of lost metadata does nothing.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, Uid, fchown, linkat, openat, unlinkat,
};
use rustix::io::Errno;

use crate::error::ObjectsError;
use crate::header::{Header, Metadata};
use crate::layout::{GENERATION_AT, Layout, PAGE_BYTES};
use crate::liveness::{Liveness, claim_all};
use crate::rebuild::rebuild;
use crate::region::{NodeLocal, Platform, Region, has_fault};
use crate::words::Words;

const MAGIC: &[u8; 8] = b"FFREGNOD";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_ID_BYTES: usize = 36;
const CHECKSUM_AT: usize = PAGE_BYTES as usize - 4;

/// Where a region's metadata belongs.
struct Place<'a> {
    region: &'a Path,
    header: &'a Header,
    /// Owner of the region, and of its metadata.
    owner: (u32, u32),
    directory: OwnedFd,
    name: String,
    named: PathBuf,
}

/// The region's file is part of the name: a copy of it has the same uuid, but locks and clients of its own.
fn name(header: &Header, file: &fs::Metadata) -> String {
    let uuid: String = header.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("farfork-region-{uuid}-{:x}-{:x}", file.dev(), file.ino())
}

/// Removes the metadata of a region that no client uses.
pub(crate) fn remove(file: &fs::Metadata, header: &Header) -> Result<(), ObjectsError> {
    let Metadata::Node(directory) = &header.metadata else { return Ok(()) };
    let path = directory.join(name(header, file));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ObjectsError::io("remove the metadata of the region,", &path)(error))
        }
        _ => Ok(()),
    }
}

/// Opens a region with node-local metadata, which is rebuilt if it is lost.
pub(crate) fn open<P: Platform>(
    file: File,
    header: Header,
    layout: Layout,
    path: &Path,
) -> Result<Region<P>, ObjectsError> {
    let failed = || ObjectsError::io("look for the metadata of the region", path);
    let known = header.clone();
    let place = Place::of(&file, &known, path)?;
    if let Some(found) = place.find(&file)? {
        return Region::map(file, header, layout, path, Some(&found));
    }
    let liveness = P::Liveness::from(file.try_clone().map_err(failed())?);
    let _turn = liveness.turn().map_err(failed())?;
    // Another process may have rebuilt it meanwhile.
    if let Some(found) = place.find(&file)? {
        return Region::map(file, header, layout, path, Some(&found));
    }
    let (_claims, living) = claim_all(&liveness).map_err(failed())?;
    if living > 0 {
        let (metadata, path) = (place.path(), path.to_owned());
        return Err(ObjectsError::MetadataLost { path, metadata, clients: living });
    }
    // It may have been destroyed since it was opened. From here on it cannot be.
    if file.metadata().map_err(failed())?.nlink() == 0 {
        return Err(failed()(Errno::NOENT.into()));
    }
    let last = generation(&file).map_err(failed())?;
    let generation =
        if has_fault!(P, RebuildKeepsGeneration) { last.max(1) } else { last.wrapping_add(1) };
    let fresh =
        NodeLocal { file: place.make(&layout, generation)?, generation, path: place.path() };
    if has_fault!(P, RebuildPublishesFirst) {
        place.publish(&fresh.file)?;
    }
    let region = Region::<P>::map(file, header, layout, path, Some(&fresh))?;
    if has_fault!(P, RebuildPublishesFirst) {
        region.words.set_word(GENERATION_AT, generation);
    }
    rebuild(&region, last);
    region.words.set_word(GENERATION_AT, generation);
    place.publish(&fresh.file)?;
    Ok(region)
}

fn generation(file: &File) -> std::io::Result<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, GENERATION_AT as u64)?;
    Ok(u64::from_le_bytes(word))
}

impl<'a> Place<'a> {
    fn of(file: &File, header: &'a Header, region: &'a Path) -> Result<Place<'a>, ObjectsError> {
        let Metadata::Node(directory) = &header.metadata else {
            return Err(ObjectsError::DamagedHeader { path: region.to_owned() });
        };
        let failed = || ObjectsError::io("look for the metadata of a region in", directory);
        let found = file.metadata().map_err(failed())?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened =
            openat(CWD, directory, flags, Mode::empty()).map_err(|errno| failed()(errno.into()))?;
        let stat = rustix::fs::fstat(&opened).map_err(|errno| failed()(errno.into()))?;
        let owner = (found.uid(), found.gid());
        // The owner names the directory. Another user, such as root, puts files only where the owner can, too.
        let is_shared = stat.st_mode & 0o1002 == 0o1002;
        let is_own = rustix::process::geteuid().as_raw() == owner.0 || stat.st_uid == owner.0;
        if !is_shared && !is_own {
            let (path, metadata) = (region.to_owned(), directory.clone());
            return Err(ObjectsError::ForeignMetadata { path, metadata, owner: owner.0 });
        }
        let name = name(header, &found);
        Ok(Place { region, header, owner, named: directory.join(&name), directory: opened, name })
    }

    fn path(&self) -> PathBuf {
        self.named.clone()
    }

    /// The file, unless it is lost.
    fn find(&self, region: &File) -> Result<Option<NodeLocal>, ObjectsError> {
        let path = self.path();
        let failed = || ObjectsError::io("open the metadata of the region,", &path);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.directory, self.name.as_str(), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::ACCESS) => return Err(self.foreign()),
            Err(error) => return Err(failed()(error.into())),
        };
        let found = file.metadata().map_err(failed())?;
        if !found.is_file() || found.uid() != self.owner.0 {
            return Err(self.foreign());
        }
        if found.len() != self.header.bytes {
            return Ok(None);
        }
        let generation = generation(region).map_err(failed())?;
        let mut bytes = [0; PAGE_BYTES as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed())?;
        let is_it = bytes == self.encode(generation).map_err(failed())?;
        Ok(is_it.then_some(NodeLocal { file, generation, path }))
    }

    fn foreign(&self) -> ObjectsError {
        let (path, metadata, owner) = (self.region.to_owned(), self.path(), self.owner.0);
        ObjectsError::ForeignMetadata { path, metadata, owner }
    }

    /// First page of the file in this generation.
    fn encode(&self, generation: u64) -> std::io::Result<[u8; PAGE_BYTES as usize]> {
        let boot = fs::read(BOOT_ID)?;
        let mut bytes = [0; PAGE_BYTES as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.header.bytes.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.header.uuid);
        bytes[32..40].copy_from_slice(&generation.to_le_bytes());
        bytes[40..]
            .iter_mut()
            .zip(boot.iter().take(BOOT_ID_BYTES))
            .for_each(|(at, byte)| *at = *byte);
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// Makes a file without a name. All its memory is there from the beginning.
    fn make(&self, layout: &Layout, generation: u64) -> Result<File, ObjectsError> {
        let path = self.path();
        let failed = || ObjectsError::io("get node-local memory for", &path);
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(&self.directory, ".", flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed()(errno.into()))?;
        let file = File::from(file);
        if rustix::process::geteuid().as_raw() != self.owner.0 {
            let owner = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
            fchown(&file, Some(owner.0), Some(owner.1)).map_err(|errno| failed()(errno.into()))?;
        }
        file.set_len(self.header.bytes).map_err(failed())?;
        let header = std::iter::once(0..PAGE_BYTES);
        for part in header.chain(layout.node_local_parts()) {
            let bytes = part.end - part.start;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), part.start, bytes)
                .map_err(|errno| failed()(errno.into()))?;
        }
        let header = self.encode(generation).map_err(failed())?;
        file.write_all_at(&header, 0).map_err(failed())?;
        Ok(file)
    }

    /// Gives the file its name, which a lost one may have.
    fn publish(&self, file: &File) -> Result<(), ObjectsError> {
        let path = self.path();
        let failed =
            |errno: Errno| ObjectsError::io("name the metadata of the region,", &path)(errno);
        match unlinkat(&self.directory, self.name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, unnamed, &self.directory, self.name.as_str(), AtFlags::SYMLINK_FOLLOW)
            .map_err(failed)
    }
}
