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
//!  name   "farfork-region-", 32 digits of a hash of uuid, device and inode of the region, generation, boot id
//! ```
//! Other users see the name of a file in a directory like `/dev/shm`, but do not know the uuid. So none can take the name of the next
//! one before it is there.
//!
//! Invariants:
//! 1. The file belongs to the region if its identity, the generation in the region and the boot id are its own, and the region
//!    has counted as many clients as it has, or more. Else it is lost, like one that is missing, or is not the owner's, or has
//!    another length. A client counts in the region first: an older copy in the region's place has counted fewer.
//! 2. Lost metadata is rebuilt by one process at a time (the turn), which holds the claims of all clients: there is none. A
//!    living client goes on with what it has mapped, and others are refused meanwhile.
//! 3. A rebuild makes a file without a name, and says in the region's generation that it has begun. From then on no metadata is
//!    valid, neither mapped nor found. Then it rebuilds, counts the generation up, and names the file. Killed before, it has
//!    made none, and the next one begins with the same generation.
//! 4. Whatever acts for a dead client compares generations after it has the claim: one of lost metadata does nothing.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, Uid, fchown, linkat, openat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::ObjectsError;
use crate::header::{Header, Metadata};
use crate::layout::{GENERATION_AT, Layout, OPENS_AT, OPENS_NODE_AT, PAGE_BYTES};
use crate::liveness::{Liveness, claim_all};
use crate::rebuild::rebuild;
use crate::region::{NodeLocal, Platform, Region, has_fault, step};
use crate::words::Words;

const MAGIC: &[u8; 8] = b"FFREGNOD";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_ID_BYTES: usize = 36;
const CHECKSUM_AT: usize = PAGE_BYTES as usize - 4;
/// In the generation of a region: its metadata is being rebuilt. No file and no process has such a generation.
const UNFINISHED: u64 = 1 << 63;

/// Where a region's metadata belongs.
struct Place<'a> {
    region: &'a Path,
    header: &'a Header,
    found: fs::Metadata,
    parent: &'a Path,
    directory: OwnedFd,
}

/// The region's file is part of the name: a copy of it has the same uuid, but locks and clients of its own.
fn name(header: &Header, file: &fs::Metadata, generation: u64) -> std::io::Result<String> {
    let hash = Sha256::new()
        .chain_update(header.uuid)
        .chain_update([file.dev(), file.ino(), generation].map(u64::to_le_bytes).concat())
        .chain_update(fs::read(BOOT_ID)?)
        .finalize();
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("farfork-region-{digits}"))
}

/// Removes the metadata of a region that no client uses.
pub(crate) fn remove(file: &File, path: &Path, header: &Header) -> Result<(), ObjectsError> {
    let Metadata::Node(directory) = &header.metadata else { return Ok(()) };
    let named = generation(file)
        .and_then(|generation| name(header, &file.metadata()?, generation & !UNFINISHED))
        .map_err(ObjectsError::io("look for the metadata of the region", path))?;
    let path = directory.join(named);
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
    let found = generation(&file).map_err(failed())?;
    let last = found & !UNFINISHED;
    let lies_at = place.path(last)?;
    let _claims = claim_all(&liveness).map_err(failed())?.map_err(|clients| {
        let (metadata, path) = (lies_at, path.to_owned());
        ObjectsError::MetadataLost { path, metadata, clients }
    })?;
    // It may have been destroyed since it was opened. From here on it cannot be.
    if file.metadata().map_err(failed())?.nlink() == 0 {
        return Err(failed()(Errno::NOENT.into()));
    }
    let generation = match has_fault!(P, RebuildKeepsGeneration) {
        true => last.max(1),
        false => last.wrapping_add(1) & !UNFINISHED,
    };
    let fresh = NodeLocal {
        file: place.make(&layout, generation)?,
        generation,
        path: place.path(generation)?,
    };
    if has_fault!(P, RebuildPublishesFirst) {
        place.publish::<P>(&fresh, last)?;
    }
    let region = Region::<P>::map(file, header, layout, path, Some(&fresh))?;
    let begun = match () {
        _ if has_fault!(P, RebuildPublishesFirst) => generation,
        _ if has_fault!(P, RebuildInvalidatesLast) => found,
        _ => last | UNFINISHED,
    };
    region.words.set_word(GENERATION_AT, begun); // what was lost is of no use to any process
    rebuild(&region, last);
    region.words.set_word(GENERATION_AT, generation);
    place.publish::<P>(&fresh, last)?;
    Ok(region)
}

fn generation(file: &File) -> std::io::Result<u64> {
    word(file, GENERATION_AT)
}

fn word(file: &File, at: usize) -> std::io::Result<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, at as u64)?;
    Ok(u64::from_le_bytes(word))
}

/// Counts a client that opens the region.
pub(crate) fn count_open<P: Platform>(region: &Region<P>) {
    if region.generation.is_none() {
        return;
    }
    let count = |at: usize, next: &dyn Fn(u64) -> u64| loop {
        let (found, words) = (region.words.word(at), &region.words);
        if words.claim_word(at, found, next(found)) {
            return next(found);
        }
    };
    let opens = count(OPENS_AT, &|found| found.wrapping_add(1));
    count(OPENS_NODE_AT, &|found| found.max(opens));
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
        // The owner names the directory. Another user, such as root, puts files only where the owner can, too.
        let is_shared = stat.st_mode & 0o1002 == 0o1002;
        let owner = found.uid();
        let is_own = rustix::process::geteuid().as_raw() == owner || stat.st_uid == owner;
        if !is_shared && !is_own {
            let (path, metadata) = (region.to_owned(), directory.clone());
            return Err(ObjectsError::ForeignMetadata { path, metadata, owner });
        }
        Ok(Place { region, header, found, parent: directory, directory: opened })
    }

    fn name(&self, generation: u64) -> Result<String, ObjectsError> {
        let failed = ObjectsError::io("look for the metadata of the region", self.region);
        name(self.header, &self.found, generation).map_err(failed)
    }

    fn path(&self, generation: u64) -> Result<PathBuf, ObjectsError> {
        Ok(self.parent.join(self.name(generation)?))
    }

    /// The file, unless it is lost.
    fn find(&self, region: &File) -> Result<Option<NodeLocal>, ObjectsError> {
        let look = || ObjectsError::io("look for the metadata of the region", self.region);
        let generation = generation(region).map_err(look())?;
        if generation & UNFINISHED != 0 {
            return Ok(None);
        }
        let name = self.name(generation)?;
        let path = self.parent.join(&name);
        let failed = || ObjectsError::io("open the metadata of the region,", &path);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::ACCESS) => return Ok(None),
            Err(error) => return Err(failed()(error.into())),
        };
        let found = file.metadata().map_err(failed())?;
        let is_own = found.is_file() && found.uid() == self.found.uid();
        if !is_own || found.len() != self.header.bytes {
            return Ok(None);
        }
        let mut bytes = [0; PAGE_BYTES as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed())?;
        // In this order: clients count in the region first.
        let known = word(&file, OPENS_NODE_AT).map_err(failed())?;
        let is_it = bytes == self.encode(generation).map_err(failed())?
            && known <= word(region, OPENS_AT).map_err(look())?;
        Ok(is_it.then_some(NodeLocal { file, generation, path }))
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
        let path = self.path(generation)?;
        let failed = || ObjectsError::io("get node-local memory for", &path);
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(&self.directory, ".", flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed()(errno.into()))?;
        let file = File::from(file);
        if rustix::process::geteuid().as_raw() != self.found.uid() {
            let owner = (Uid::from_raw(self.found.uid()), Gid::from_raw(self.found.gid()));
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

    /// Gives the file its name, and removes what is left of the lost generation.
    fn publish<P: Platform>(&self, fresh: &NodeLocal, last: u64) -> Result<(), ObjectsError> {
        let failed =
            |errno: Errno| ObjectsError::io("name the metadata of the region,", &fresh.path)(errno);
        step!(P);
        // What is not the owner's stays.
        let _ = unlinkat(&self.directory, self.name(last)?, AtFlags::empty());
        step!(P);
        let name = self.name(fresh.generation)?;
        // Of a region that was replaced by an older copy.
        match unlinkat(&self.directory, name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        step!(P);
        let unnamed = format!("/proc/self/fd/{}", fresh.file.as_raw_fd());
        linkat(CWD, unnamed, &self.directory, name, AtFlags::SYMLINK_FOLLOW).map_err(failed)
    }
}
