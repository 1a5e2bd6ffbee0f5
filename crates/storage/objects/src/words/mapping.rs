//! Mappings of regions.
#![allow(unsafe_code)] // reason: maps regions

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::forks::PerProcess;
use crate::keys::Key;

/// Lets [`super::Words::order_with_others`] of other processes order this one's stores, too (Linux 4.16). Without it, a
/// sleeping client wakes up by its timer.
fn register() {
    let _ = membarrier(MembarrierCommand::RegisterGlobalExpedited);
}

/// Device and inode.
type Identity = (u64, u64);

/// A mapping of a region. All handles of one process share it, as there is only one address.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    file: Identity,
    /// What has the parts that lie in another file.
    other: Option<Identity>,
    /// A forked child has the handle, and nothing mapped.
    process: u32,
    /// The protection key that its metadata has.
    pub(super) key: Option<Key>,
}

// SAFETY: the pointer is used to unmap only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of this process alone, at a multiple of `alignment`.
    pub(super) fn private(bytes: u64, alignment: usize) -> io::Result<Mapping> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let bytes = bytes as usize;
        let all = NonZero::new(bytes + alignment).ok_or_else(invalid)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: new memory, which nothing refers to.
        let mapped = unsafe { mmap_anonymous(None, all, protection, flags) }?.cast::<u8>();
        let before = mapped.as_ptr().align_offset(alignment);
        // SAFETY: within the mapping, as `before` is at most `alignment`.
        let (start, end) = unsafe { (mapped.add(before), mapped.add(before + bytes)) };
        for (from, length) in [(mapped, before), (end, alignment - before)] {
            if length > 0 {
                // SAFETY: unmaps parts of the new mapping that nothing uses.
                let _ = unsafe { munmap(from.cast(), length) };
            }
        }
        let (file, process) = (Identity::default(), std::process::id());
        Ok(Mapping { start, bytes, file, other: None, process, key: None })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: made by `mmap` with this length in this process, and no handle is left.
            let _ = unsafe { munmap(self.start.cast(), self.bytes) };
        }
    }
}

/// What a process has mapped. A forked child has none of its parent's mappings.
static MAPPINGS: PerProcess<Vec<Weak<Mapping>>> = PerProcess::new();

/// Parts of a region that lie in another file, at the same offsets. Whole pages.
pub(crate) struct Parts<'a> {
    pub(crate) file: &'a File,
    pub(crate) ranges: &'a [Range<u64>],
}

/// Parts of a region that only this library writes, by a key. Whole pages.
pub(crate) struct Protected<'a> {
    pub(crate) key: Key,
    pub(crate) ranges: &'a [Range<u64>],
}

fn identity(file: &File) -> io::Result<Identity> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}

/// See [`super::Mapped::map`].
pub(super) fn map(
    file: &File,
    parts: Option<&Parts<'_>>,
    protected: Option<&Protected<'_>>,
    (address, bytes): (u64, u64),
) -> io::Result<Arc<Mapping>> {
    register();
    let of_file = identity(file)?;
    let other = parts.map(|parts| identity(parts.file)).transpose()?;
    let mut mappings = MAPPINGS.lock();
    mappings.retain(|mapping| mapping.strong_count() > 0);
    let process = std::process::id();
    let is_it = |known: &Arc<Mapping>| {
        known.file == of_file && known.other == other && known.process == process
    };
    let known: Vec<Arc<Mapping>> = mappings.iter().filter_map(Weak::upgrade).collect();
    let is_stale = |known: &Arc<Mapping>| known.file == of_file && known.process == process;
    let mapping = match known.iter().find(|known| is_it(known)) {
        Some(known) => Arc::clone(known),
        None if known.iter().any(is_stale) => {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        None => {
            let bytes = bytes as usize;
            let start = map_at(file, address, bytes)?;
            // Owns the mapping from here on.
            let key = protected.map(|protected| protected.key);
            let mapping = Arc::new(Mapping { start, bytes, file: of_file, other, process, key });
            if let Some(parts) = parts {
                parts.ranges.iter().try_for_each(|range| map_part(&mapping, parts.file, range))?;
            }
            if let Some(protected) = protected {
                protected
                    .ranges
                    .iter()
                    .try_for_each(|range| protect(&mapping, protected.key, range))?;
            }
            // A child that forks is not a client: it must not use its parent's handle.
            // SAFETY: changes what a fork copies, and nothing in this process.
            let _ = unsafe { madvise(start.cast(), bytes, MmapAdvise::MADV_DONTFORK) };
            mappings.push(Arc::downgrade(&mapping));
            mapping
        }
    };
    Ok(mapping)
}

/// Gives a part of a mapping a protection key.
fn protect(mapping: &Mapping, key: Key, range: &Range<u64>) -> io::Result<()> {
    let (from, to) = (range.start as usize, range.end as usize);
    assert!(from <= to && to <= mapping.bytes, "a part outside of the region");
    let start = mapping.start.addr().get();
    key.protect(&(start + from..start + to))
}

fn map_at(file: &File, address: u64, bytes: usize) -> io::Result<NonNull<u8>> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let length = NonZero::new(bytes).ok_or_else(invalid)?;
    let wanted = NonZero::new(address as usize).ok_or_else(invalid)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces no mapping.
    let start = unsafe { mmap(Some(wanted), length, protection, flags, file, 0) }?;
    if start.as_ptr() as usize != wanted.get() {
        // A kernel before Linux 4.17 takes the address for a hint.
        // SAFETY: just mapped, and not used yet.
        let _ = unsafe { munmap(start, bytes) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(start.cast())
}

/// Whether nothing is mapped there.
pub(crate) fn is_free(address: u64, bytes: u64) -> bool {
    let wanted = NonZero::new(address as usize).zip(NonZero::new(bytes as usize));
    let Some((wanted, length)) = wanted else { return false };
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces no mapping.
    let mapped = unsafe { mmap_anonymous(Some(wanted), length, ProtFlags::PROT_NONE, flags) };
    let Ok(start) = mapped else { return false };
    // SAFETY: just mapped, and never used.
    let _ = unsafe { munmap(start, length.get()) };
    // A kernel before Linux 4.17 takes the address for a hint.
    start.as_ptr() as usize == wanted.get()
}

/// Maps a part of another file over the same offsets of a region.
fn map_part(mapping: &Mapping, file: &File, range: &Range<u64>) -> io::Result<()> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let offset = i64::try_from(range.start).map_err(|_| invalid())?;
    let is_inside = range.start <= range.end && range.end <= mapping.bytes as u64;
    let start = mapping.start.addr().checked_add(range.start as usize).filter(|_| is_inside);
    let length = NonZero::new((range.end - range.start) as usize);
    let (start, length) = start.zip(length).ok_or_else(invalid)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: replaces pages of a mapping that was just made, which nothing refers to yet.
    unsafe { mmap(Some(start), length, protection, flags, file, offset) }?;
    Ok(())
}
