//! The memory of a guest in the address space of its monitor.
#![allow(unsafe_code)] // reason: maps memory, and reads and writes it while a guest does

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// A private mapping, of zeros or of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: u64,
}

// SAFETY: the mapping belongs to the value; it is accessed by volatile words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Anonymous memory, at a multiple of its pages; `is_huge` asks for huge pages that are set aside.
    pub(crate) fn anonymous(bytes: u64, is_huge: bool) -> io::Result<Mapping> {
        let huge = if is_huge { libc::MAP_HUGETLB } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | huge;
        Mapping::map(bytes, flags, -1, 0)
    }

    /// Part of a file, copied on write. `is_resident` has all of it mapped now.
    pub(crate) fn file(
        file: &File,
        offset: u64,
        bytes: u64,
        is_resident: bool,
    ) -> io::Result<Mapping> {
        let populate = if is_resident { libc::MAP_POPULATE } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | populate;
        Mapping::map(bytes, flags, file.as_raw_fd(), offset)
    }

    /// Anonymous memory, where some parts of a file, `(offset, bytes)` of whole pages, lie over it.
    pub(crate) fn regions(
        file: &File,
        (first, bytes): (u64, u64),
        regions: &[(u64, u64)],
    ) -> io::Result<Mapping> {
        let mapping = Mapping::anonymous(bytes, false)?;
        for &(offset, length) in regions {
            let (start, end) = (offset.max(first), (offset + length).min(first + bytes));
            if start >= end {
                continue;
            }
            let at = mapping.at(start - first, end - start);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
            let (fd, length) = (file.as_raw_fd(), (end - start) as usize);
            // SAFETY: replaces pages of the mapping, in its bounds, to which nothing refers yet.
            let mapped =
                unsafe { libc::mmap(at.cast(), length, protection, flags, fd, start as i64) };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(mapping)
    }

    fn map(bytes: u64, flags: i32, fd: i32, offset: u64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start = unsafe {
            let none = std::ptr::null_mut();
            libc::mmap(none, bytes as usize, protection, flags, fd, offset as i64)
        };
        match start == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Mapping { start: start.cast(), bytes }),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(offset + bytes <= self.bytes, "{offset:#x} lies outside of the memory");
        // SAFETY: in bounds of the mapping.
        unsafe { self.start.add(offset as usize) }
    }

    /// The word at an offset that is a multiple of eight.
    pub(crate) fn load(&self, offset: u64) -> u64 {
        let word = self.at(offset, 8).cast::<u64>();
        assert!(word.is_aligned());
        // SAFETY: aligned and in bounds; volatile, because the guest may write at any time.
        unsafe { word.read_volatile() }
    }

    pub(crate) fn store(&self, offset: u64, value: u64) {
        let word = self.at(offset, 8).cast::<u64>();
        assert!(word.is_aligned());
        // SAFETY: as above.
        unsafe { word.write_volatile(value) }
    }

    /// Gives pages back to the kernel, as a balloon does.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let start = self.at(offset, bytes);
        // SAFETY: in bounds; what was there is lost, as the caller wants.
        match unsafe { libc::madvise(start.cast(), bytes as usize, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length; no guest runs any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes as usize) };
    }
}
