//! Memory that clients share, as bytes and words.
//!
//! One trait, so that the same code can run on simulated memory, and on memory between nodes that is not
//! coherent: there [`Words::flush`] makes one's stores visible, and [`Words::invalidate`] drops what loads
//! have cached. On coherent memory both do nothing.
#![allow(unsafe_code)] // reason: maps the region and hands out its bytes

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::forks::PerProcess;

/// Shared memory. Offsets are in bytes; those of words are multiples of 8. An offset outside of the memory
/// panics.
///
/// Stores of one client become visible to all others in their order. A load sees every store that
/// was visible before it.
pub trait Words {
    /// Polls before a waiting client sleeps.
    const POLLS: u32 = 2000;

    /// Loads a byte.
    fn byte(&self, at: usize) -> u8;
    /// Loads a byte, unless it is outside of the memory.
    fn byte_within(&self, at: usize) -> Option<u8>;
    /// Stores a byte.
    fn set_byte(&self, at: usize, value: u8);
    /// The same memory from a place on, with offsets from there. Panics unless it is inside, and a multiple of 8.
    fn tail(&self, at: usize) -> Self
    where
        Self: Sized;
    /// Stores a byte, unless it is outside of the memory; returns whether it is inside.
    fn set_byte_within(&self, at: usize, value: u8) -> bool {
        let is_inside = self.byte_within(at).is_some();
        if is_inside {
            self.set_byte(at, value);
        }
        is_inside
    }
    /// Stores a byte that this client alone writes, if it is `from`; returns whether it was. False outside of the
    /// memory.
    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool;
    /// Stores a byte if it is `from`; returns whether it was. Not for fast paths: it locks the memory.
    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool;
    /// Loads a word.
    fn word(&self, at: usize) -> u64;
    /// Stores a word.
    fn set_word(&self, at: usize, value: u64);
    /// Stores a word if it is `from`; returns whether it was. Not for fast paths: it locks the memory.
    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool;
    /// Sleeps until [`Words::wake`] is called for this word, or the time is over. Returns at once if the low half of the
    /// word is not `seen`. Returns whether the time was over.
    fn sleep(&self, at: usize, seen: u32, time: Duration) -> bool;
    /// Wakes clients that sleep at this word.
    fn wake(&self, at: usize);
    /// After it, stores that others did before are visible, and others see the stores done before it. Others need no
    /// fence for that.
    fn order_with_others(&self);
    /// Lets the processor do something else between two looks at memory that another client is about to change.
    #[inline]
    fn relax(&self) {
        std::hint::spin_loop();
    }
    /// Lets others go on for about this time.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
    /// Makes stores to these bytes visible to other nodes.
    fn flush(&self, at: usize, bytes: usize);
    /// Drops cached copies of these bytes, so that loads see the stores of other nodes.
    fn invalidate(&self, at: usize, bytes: usize);
}

/// A region in the memory of this process, at its own address. Coherent.
#[derive(Debug, Clone)]
pub struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: the mapping lives as long as any clone of `_mapping`; bytes are accessed by atomics only.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    #[inline]
    fn byte_at(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.bytes, "a byte outside of the region");
        // SAFETY: in bounds of a mapping that is readable, writable and lives as long as `self`.
        unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU8>() }
    }

    #[inline]
    fn word_at(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.bytes, "a word outside of the region");
        // SAFETY: as above. The region is whole pages, so that a multiple of 8 in it is a whole word.
        // Owner bytes are loaded as words, too, when they are scanned: x86-64 loads them at once.
        unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU64>() }
    }
}

impl Mapped {
    /// The low half of a word: what a futex is.
    fn half_at(&self, at: usize) -> &AtomicU32 {
        let word: *const AtomicU64 = self.word_at(at);
        // SAFETY: the first four bytes of a valid word, aligned to 8. Others store whole words there, which x86-64 does at
        // once; the kernel loads these bytes.
        unsafe { &*word.cast::<AtomicU32>() }
    }
}

/// Lets [`Words::order_with_others`] of other processes order this one's stores, too (Linux 4.16). Without it, a
/// sleeping client wakes up by its timer.
fn register() {
    let _ = membarrier(MembarrierCommand::RegisterGlobalExpedited);
}

impl Words for Mapped {
    #[inline]
    fn byte(&self, at: usize) -> u8 {
        self.byte_at(at).load(Ordering::Acquire)
    }

    #[inline]
    fn byte_within(&self, at: usize) -> Option<u8> {
        (at < self.bytes).then(|| self.byte(at))
    }

    #[inline]
    fn set_byte(&self, at: usize, value: u8) {
        self.byte_at(at).store(value, Ordering::Release);
    }

    fn tail(&self, at: usize) -> Mapped {
        assert!(at.is_multiple_of(8) && at < self.bytes, "a place outside of the region");
        // SAFETY: in bounds of the mapping, which lives as long as the new handle.
        let start = unsafe { self.start.add(at) };
        Mapped { start, bytes: self.bytes - at, _mapping: Arc::clone(&self._mapping) }
    }

    #[inline]
    fn set_byte_within(&self, at: usize, value: u8) -> bool {
        let is_inside = at < self.bytes;
        if is_inside {
            self.set_byte(at, value);
        }
        is_inside
    }

    #[inline]
    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        let is_from = at < self.bytes && self.byte(at) == from;
        if is_from {
            self.set_byte(at, to);
        }
        is_from
    }

    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.byte_at(at).compare_exchange(from, to, order.0, order.1).is_ok()
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.word_at(at).load(Ordering::Acquire)
    }

    #[inline]
    fn set_word(&self, at: usize, value: u64) {
        self.word_at(at).store(value, Ordering::Release);
    }

    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.word_at(at).compare_exchange(from, to, order.0, order.1).is_ok()
    }

    fn sleep(&self, at: usize, seen: u32, time: Duration) -> bool {
        let time = Timespec::try_from(time).ok();
        let slept = futex::wait(self.half_at(at), futex::Flags::empty(), seen, time.as_ref());
        slept == Err(Errno::TIMEDOUT)
    }

    fn wake(&self, at: usize) {
        // An error would mean a wrong address.
        let _ = futex::wake(self.half_at(at), futex::Flags::empty(), u32::MAX >> 1);
    }

    fn order_with_others(&self) {
        // Interrupts the processors on which registered processes run; see `register`.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }

    #[inline]
    fn flush(&self, _at: usize, _bytes: usize) {}

    #[inline]
    fn invalidate(&self, _at: usize, _bytes: usize) {}
}

/// Device and inode.
type Identity = (u64, u64);

/// A mapping of a region. All handles of one process share it, as there is only one address.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    file: Identity,
    /// What has the parts that lie in another file.
    other: Option<Identity>,
    /// A forked child has the handle, and nothing mapped.
    process: u32,
}

// SAFETY: the pointer is used to unmap only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

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

fn identity(file: &File) -> io::Result<Identity> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}

/// Maps the first bytes of `file` at `address`, and `parts` of another file over them. The same files again give the same
/// mapping.
///
/// # Errors
/// `EEXIST` if something else is mapped there. Other errors of `mmap`.
pub(crate) fn map(
    file: &File,
    parts: Option<&Parts<'_>>,
    address: u64,
    bytes: u64,
) -> io::Result<Mapped> {
    register();
    let of_file = identity(file)?;
    let other = parts.map(|parts| identity(parts.file)).transpose()?;
    let mut mappings = MAPPINGS.lock();
    mappings.retain(|mapping| mapping.strong_count() > 0);
    let process = std::process::id();
    let is_it = |known: &Arc<Mapping>| {
        known.file == of_file && known.other == other && known.process == process
    };
    let known = mappings.iter().filter_map(Weak::upgrade).find(is_it);
    let mapping = match known {
        Some(known) => known,
        None => {
            let bytes = bytes as usize;
            let start = map_at(file, address, bytes)?;
            // Owns the mapping from here on.
            let mapping = Arc::new(Mapping { start, bytes, file: of_file, other, process });
            if let Some(parts) = parts {
                parts.ranges.iter().try_for_each(|range| map_part(&mapping, parts.file, range))?;
            }
            // A child that forks is not a client: it must not use its parent's handle.
            // SAFETY: changes what a fork copies, and nothing in this process.
            let _ = unsafe { madvise(start.cast(), bytes, MmapAdvise::MADV_DONTFORK) };
            mappings.push(Arc::downgrade(&mapping));
            mapping
        }
    };
    Ok(Mapped { start: mapping.start, bytes: mapping.bytes, _mapping: mapping })
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
