//! Reading another process's memory and asking which of its pages are there.
#![allow(unsafe_code)] // reason: process_vm_readv and the PAGEMAP_SCAN ioctl

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// A run of pages in the same state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PageRun {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Bits of [`PAGE_PRESENT`] and the like.
    pub categories: u64,
}

/// The page is backed by a file.
pub const PAGE_FILE: u64 = 1 << 2;
/// The page is in memory.
pub const PAGE_PRESENT: u64 = 1 << 3;
/// The page is in swap.
pub const PAGE_SWAPPED: u64 = 1 << 4;
/// The page is the shared page of zeros.
pub const PAGE_ZERO: u64 = 1 << 5;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScanArgs {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)` (Linux 6.7).
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

const _: () = {
    assert!(size_of::<ScanArgs>() == 96);
    assert!(size_of::<PageRun>() == 24);
};

/// The page is a guard (Linux 6.15, which has guards since 6.13).
pub const PAGE_GUARD: u64 = 1 << 8;

/// Runs of pages of `start..end` that are in memory or swap, and are neither the zero page nor a
/// guard. `pagemap` is `/proc/PID/pagemap`.
pub fn pages_with_content(pagemap: &File, start: u64, end: u64) -> io::Result<Vec<PageRun>> {
    let scan = |without| {
        let query = ScanArgs {
            category_inverted: without,
            category_mask: without,
            category_anyof_mask: PAGE_PRESENT | PAGE_SWAPPED,
            return_mask: PAGE_PRESENT | PAGE_SWAPPED | PAGE_FILE,
            ..ScanArgs::default()
        };
        scan(pagemap, start, end, query)
    };
    match scan(PAGE_ZERO | PAGE_GUARD) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => scan(PAGE_ZERO),
        other => other,
    }
}

/// The page is not protected against writes by a userfaultfd, or has been written since.
const PAGE_UNPROTECTED: u64 = 1 << 1;

/// Runs of pages of `start..end` that are in memory, and are not the zero page: [`PAGE_FILE`] marks
/// those that a file's mapping shows, of which those are left out that a userfaultfd protects.
pub fn present_pages(pagemap: &File, start: u64, end: u64) -> io::Result<Vec<PageRun>> {
    let query = ScanArgs {
        category_inverted: PAGE_ZERO,
        category_mask: PAGE_PRESENT | PAGE_UNPROTECTED | PAGE_ZERO,
        return_mask: PAGE_FILE,
        ..ScanArgs::default()
    };
    scan(pagemap, start, end, query)
}

/// The page's mapping is watched by a userfaultfd whose write-protection is asynchronous.
pub const PAGE_WATCHED: u64 = 1 << 0;

/// Runs of pages of `start..end` that are in memory or swap, where their mapping is watched:
/// [`PAGE_FILE`] marks those that were only read.
pub fn watched_pages(pagemap: &File, start: u64, end: u64) -> io::Result<Vec<PageRun>> {
    let query = ScanArgs {
        category_mask: PAGE_WATCHED,
        category_anyof_mask: PAGE_PRESENT | PAGE_SWAPPED,
        return_mask: PAGE_FILE,
        ..ScanArgs::default()
    };
    scan(pagemap, start, end, query)
}

/// Whether the mapping of a page is watched by a userfaultfd whose write-protection is asynchronous:
/// such a one changes nothing for the program.
pub fn is_watched(pagemap: &File, page: u64) -> io::Result<bool> {
    let query =
        ScanArgs { category_mask: PAGE_WATCHED, return_mask: PAGE_WATCHED, ..ScanArgs::default() };
    Ok(!scan(pagemap, page, page + 4096, query)?.is_empty())
}

/// Runs of guard pages; empty on kernels that do not show them.
pub fn guards(pagemap: &File, start: u64, end: u64) -> io::Result<Vec<PageRun>> {
    let query =
        ScanArgs { category_mask: PAGE_GUARD, return_mask: PAGE_GUARD, ..ScanArgs::default() };
    match scan(pagemap, start, end, query) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Vec::new()),
        other => other,
    }
}

fn scan(pagemap: &File, start: u64, end: u64, query: ScanArgs) -> io::Result<Vec<PageRun>> {
    let mut all = Vec::new();
    let mut at = start;
    while at < end {
        let mut batch = [PageRun::default(); 512];
        let mut args = ScanArgs {
            size: size_of::<ScanArgs>() as u64,
            start: at,
            end,
            vec: batch.as_mut_ptr() as u64,
            vec_len: batch.len() as u64,
            ..query
        };
        // SAFETY: the kernel reads `args`, writes at most `vec_len` runs to `batch`, and sets
        // `walk_end`.
        let got = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut args) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        all.extend_from_slice(&batch[..got as usize]);
        at = args.walk_end.max(at + 1);
    }
    Ok(all)
}

/// Reads a process's memory at `address` into `to`; returns how many bytes there were before
/// the first that cannot be read that way.
pub fn read(pid: i32, address: u64, to: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: to.len() };
    // SAFETY: the kernel writes at most `to.len()` bytes to `to`.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
}

/// Fills `to` from a process's memory, also where its own protection forbids it to read. `mem`
/// is `/proc/PID/mem`.
pub fn read_exact(pid: i32, mem: &File, address: u64, to: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < to.len() {
        done += match read(pid, address + done as u64, &mut to[done..]) {
            Ok(got) if got > 0 => got,
            _ => forced(mem, address + done as u64, &mut to[done..])?,
        };
    }
    Ok(())
}

/// One page at most, so that the faster way is tried again after it.
fn forced(mem: &File, address: u64, to: &mut [u8]) -> io::Result<usize> {
    let page = 4096 - (address % 4096) as usize;
    let part = page.min(to.len());
    mem.read_exact_at(&mut to[..part], address)?;
    Ok(part)
}
