//! The file of an image in the memory of its writer.
#![allow(unsafe_code)] // reason: hands out mapped memory

use std::fs::File;
use std::io;
use std::ops::Range;

use farfork_types::{CHUNK_BYTES, align_up};
use memmap2::{Advice, MmapOptions, MmapRaw};

/// Linux 6.1.
const MADV_COLLAPSE: i32 = 25;
/// Chunks of a range for which memory is looked for in vain: each time that takes milliseconds.
const MOST_IN_VAIN: u32 = 8;

/// The first bytes of a file, mapped shared.
pub(crate) struct SharedMap(MmapRaw);

impl SharedMap {
    pub(crate) fn new(file: &File, bytes: u64) -> io::Result<SharedMap> {
        MmapOptions::new().len(bytes as usize).map_raw(file).map(SharedMap)
    }

    fn at(&self, range: &Range<u64>) -> *mut u8 {
        within(&self.0, range)
    }

    /// Bytes of a file that no other process can reach.
    pub(crate) fn bytes_mut(&mut self, range: Range<u64>) -> &mut [u8] {
        let start = self.at(&range);
        // SAFETY: in bounds; the file has no name yet, or one that only its writer uses, and the map is
        // borrowed as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(start, (range.end - range.start) as usize) }
    }

    /// The same, to be read.
    pub(crate) fn bytes(&self, range: Range<u64>) -> &[u8] {
        let start = self.at(&range);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(start, (range.end - range.start) as usize) }
    }

    /// Has the pages of a range made present and writable. A kernel that cannot (before Linux
    /// 5.14) makes them so at the first write, and so does a full medium.
    pub(crate) fn populate(&self, range: &Range<u64>) {
        let (offset, len) = (range.start as usize, (range.end - range.start) as usize);
        let _ = self.0.advise_range(Advice::PopulateWrite, offset, len);
    }
}

/// The same, to gather pages by, and for nothing else.
///
/// Memory that a file was given (`fallocate`) and that was never touched counts as a hole until its first fault or
/// write clears it. `MADV_COLLAPSE` maps such a huge page as it is (seen in Linux 6.12 and 6.18): what is then written by that mapping
/// meets no fault, so that it reads as zeros, and the next fault of another mapping clears it. So no byte is read
/// or written by this one.
pub(crate) struct GatherMap(MmapRaw);

impl GatherMap {
    pub(crate) fn new(file: &File, bytes: u64) -> io::Result<GatherMap> {
        MmapOptions::new().len(bytes as usize).map_raw_read_only(file).map(GatherMap)
    }

    /// Gathers what the kernel could only give in small pages into huge ones. It gives a file of
    /// tmpfs what is at hand, and looks no further. What cannot be gathered stays, and so does all
    /// before Linux 6.1, or without `huge=always`; after a few chunks in vain nothing more is tried.
    ///
    /// Async-signal-safe.
    pub(crate) fn gather(&self, range: &Range<u64>) {
        self.gather_part(range.start, range.end - range.start, &mut { MOST_IN_VAIN });
    }

    /// The kernel ends at the first chunk that it finds no memory for, and does not say which: the
    /// halves are tried then. What is gathered already takes it next to no time.
    fn gather_part(&self, offset: u64, bytes: u64, tries: &mut u32) {
        let start = within(&self.0, &(offset..offset + bytes));
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
}

/// Where a range of a mapping begins.
fn within(map: &MmapRaw, range: &Range<u64>) -> *mut u8 {
    let is_inside = range.start <= range.end && range.end <= map.len() as u64;
    assert!(is_inside, "bytes {range:?} lie outside of the mapped file");
    // SAFETY: `start` was just shown to lie within the mapping.
    unsafe { map.as_mut_ptr().add(range.start as usize) }
}
