//! The pool's file in this process's memory.
#![allow(unsafe_code)] // reason: hands out memory that other processes map

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;

use farfork_types::{CHUNK_BYTES, align_up};
use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::ids::Extent;

/// What may live in the pool's tables.
///
/// # Safety
/// The type is `repr(C)`, at most 8-byte aligned, valid for every bit pattern, made of atomics
/// only, and holds neither pointers nor file descriptors.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU64 {}

/// Linux 6.1.
const MADV_COLLAPSE: i32 = 25;
/// Chunks of an extent for which memory is looked for in vain: each time that takes milliseconds.
const MOST_IN_VAIN: u32 = 8;

/// The whole file, mapped shared and writable.
pub(crate) struct SharedMap(MmapRaw);

impl SharedMap {
    pub(crate) fn new(file: &File, size: u64) -> io::Result<SharedMap> {
        MmapOptions::new().len(size as usize).map_raw(file).map(SharedMap)
    }

    /// The whole file, which can be read and gathered only.
    pub(crate) fn read_only(file: &File, size: u64) -> io::Result<SharedMap> {
        MmapOptions::new().len(size as usize).map_raw_read_only(file).map(SharedMap)
    }

    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        let end = offset.checked_add(len).expect("a place in the pool");
        assert!(end <= self.0.len() as u64, "bytes {offset}+{len} lie outside of the pool");
        // SAFETY: `offset` was just shown to lie within the mapping.
        unsafe { self.0.as_mut_ptr().add(offset as usize) }
    }

    /// `count` records from `offset` on, a multiple of 8.
    pub(crate) fn table<T: Shared>(&self, offset: u64, count: usize) -> &[T] {
        let start = self.at(offset, (count * size_of::<T>()) as u64);
        assert!(start.cast::<T>().is_aligned());
        // SAFETY: in bounds and aligned as asserted; `Shared` says that every bit pattern is valid
        // and that other processes change the bytes through atomics only.
        unsafe { std::slice::from_raw_parts(start.cast::<T>(), count) }
    }

    /// Bytes of a published image, which are not written while the reference lives.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> &[u8] {
        // SAFETY: in bounds; callers hand out published ranges only, which no writer touches.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len as usize) }
    }

    /// The bytes of an extent.
    ///
    /// # Safety
    /// The extent belongs to an unpublished image of the caller, and no other reference to it
    /// exists as long as the returned one.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_mut(&self, extent: Extent) -> &mut [u8] {
        let start = self.at(extent.offset, extent.bytes());
        // SAFETY: in bounds; exclusive by the contract above.
        unsafe { std::slice::from_raw_parts_mut(start, extent.bytes() as usize) }
    }

    /// Has the pages of an extent made present and writable. A kernel that cannot (before Linux
    /// 5.14) makes them so at the first write, and so does a full medium.
    pub(crate) fn populate(&self, extent: Extent) {
        let (offset, len) = (extent.offset as usize, extent.bytes() as usize);
        let _ = self.0.advise_range(Advice::PopulateWrite, offset, len);
    }

    /// Gathers what the kernel could only give in small pages into huge ones. It gives a file of
    /// tmpfs what is at hand, and looks no further. What cannot be gathered stays, and so does all
    /// before Linux 6.1, or without `huge=always`; after a few chunks in vain nothing more is tried.
    ///
    /// Async-signal-safe.
    pub(crate) fn gather(&self, extent: Extent) {
        self.gather_part(extent.offset, extent.bytes(), &mut { MOST_IN_VAIN });
    }

    /// The kernel ends at the first chunk that it finds no memory for, and does not say which: the
    /// halves are tried then. What is gathered already takes it next to no time.
    fn gather_part(&self, offset: u64, bytes: u64, tries: &mut u32) {
        let start = self.at(offset, bytes);
        // SAFETY: the range lies in the mapping; no byte of it changes.
        let done = unsafe { libc::madvise(start.cast(), bytes as usize, MADV_COLLAPSE) } == 0;
        if done || *tries == 0 {
            return;
        }
        if bytes <= CHUNK_BYTES {
            *tries -= 1;
            return;
        }
        let half = align_up(bytes / 2, CHUNK_BYTES);
        self.gather_part(offset, half, tries);
        self.gather_part(offset + half, bytes - half, tries);
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    /// The place belongs to an unpublished image of the caller, and no reference to it exists.
    pub(crate) unsafe fn write(&self, offset: u64, bytes: &[u8]) {
        let target = self.at(offset, bytes.len() as u64);
        // SAFETY: in bounds; exclusive by the contract above, so it cannot overlap `bytes`.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Overwrites an extent with zeros.
    ///
    /// # Safety
    /// No image that is read or written owns the extent.
    pub(crate) unsafe fn zero(&self, extent: Extent) {
        let start = self.at(extent.offset, extent.bytes());
        // SAFETY: in bounds; unused by the contract above.
        unsafe { start.write_bytes(0, extent.bytes() as usize) }
    }
}
