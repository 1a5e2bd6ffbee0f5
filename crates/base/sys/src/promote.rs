//! Giving another process pages of its own where it maps a file privately, without a change to any
//! byte, and asking what it maps.
//!
//! What a write to such a page does, the kernel does for a write from outside, too:
//! `process_vm_writev` has it make the pages writable, hold them, and only then read what is to be
//! written. From memory that cannot be read nothing comes, so that nothing is written: what is left
//! of the call is the copy that the kernel has made under the lock of the page table, as for a
//! write of the process's own, which therefore is never lost. The process gets no signal and no
//! task, makes no call, and nothing that it forbids itself matters.
#![allow(unsafe_code)] // reason: process_vm_writev with such memory

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::procmap::{self, Mapping, Which};

/// Most bytes that one call makes local: the kernel holds the lock of the address space during the
/// call.
pub const MOST_BYTES: u64 = 64 * 4096;

/// Makes the pages at `address` of process `pid` its own, `bytes` of them and [`MOST_BYTES`] at
/// most, as far as it may write to them; which that were has to be looked at.
///
/// # Errors The process is dead, or the caller may not access its memory.
pub fn make_local(pid: i32, address: u64, bytes: u64) -> io::Result<()> {
    let nowhere = unreadable()?;
    let local = libc::iovec { iov_base: nowhere as *mut _, iov_len: 1 };
    let remote =
        libc::iovec { iov_base: address as *mut _, iov_len: bytes.min(MOST_BYTES) as usize };
    // SAFETY: the kernel reads nothing from a page that may not be read, and so writes nothing.
    let got = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
    let error = io::Error::last_os_error();
    match (got, error.raw_os_error()) {
        (-1, Some(libc::EFAULT)) => Ok(()),
        (-1, _) => Err(error),
        _ => unreachable!("a byte came from a page that may not be read"),
    }
}

/// The address of an unreadable page of this process.
fn unreadable() -> io::Result<usize> {
    static PAGE: OnceLock<usize> = OnceLock::new();
    if let Some(page) = PAGE.get() {
        return Ok(*page);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping wherever there is room; it stays.
    let page = unsafe { libc::mmap(null_mut(), 4096, libc::PROT_NONE, flags, -1, 0) };
    match page {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        page => Ok(*PAGE.get_or_init(|| page as usize)),
    }
}

/// What is mapped at `address`, if anything is. `maps` is `/proc/PID/maps`.
///
/// # Errors
/// The kernel is older than 6.11, or the process has ended.
pub fn mapping_at(maps: &File, address: u64) -> io::Result<Option<Mapping>> {
    procmap::query(maps.as_raw_fd(), address, Which::Covering)
        .map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PAGE_FILE, present_pages};
    use std::io::Write;
    use std::os::fd::FromRawFd;

    const PAGE: usize = 4096;
    const BYTES: usize = 8 * PAGE;

    /// A private mapping of a file of eight pages, each page full of its number, and the file.
    fn mapped(prot: i32) -> (u64, File) {
        // SAFETY: a new descriptor, owned here.
        let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"promote".as_ptr(), 0)) };
        (0..8u8).for_each(|page| file.write_all(&[page; PAGE]).unwrap());
        // SAFETY: a new mapping wherever there is room.
        let at =
            unsafe { libc::mmap(null_mut(), BYTES, prot, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: mapped above, and readable.
        (0..8).for_each(|page| assert_eq!(unsafe { byte(at as u64, page) }, page as u8));
        (at as u64, file)
    }

    /// # Safety
    /// The page must be mapped, readable.
    unsafe fn byte(at: u64, page: usize) -> u8 {
        // SAFETY: passed on to the caller.
        unsafe { *((at as usize + page * PAGE + 77) as *const u8) }
    }

    fn of_file(at: u64) -> Vec<(u64, u64)> {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let runs = present_pages(&pagemap, at, at + BYTES as u64).unwrap();
        let files = runs.iter().filter(|run| run.categories & PAGE_FILE != 0);
        files.map(|run| ((run.start - at) / 4096, (run.end - at) / 4096)).collect()
    }

    #[test]
    fn pages_become_the_process_s_own_and_keep_their_bytes() {
        let (at, _file) = mapped(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(of_file(at), [(0, 8)]);
        make_local(std::process::id() as i32, at + 2 * 4096, 3 * 4096).unwrap();
        assert_eq!(of_file(at), [(0, 2), (5, 8)]);
        // SAFETY: as in `mapped`.
        (0..8).for_each(|page| assert_eq!(unsafe { byte(at, page) }, page as u8));
    }

    #[test]
    fn what_may_not_be_written_stays() {
        let (at, _file) = mapped(libc::PROT_READ);
        make_local(std::process::id() as i32, at, BYTES as u64).unwrap();
        assert_eq!(of_file(at), [(0, 8)]);
    }

    #[test]
    fn mappings_are_found() {
        let (at, _file) = mapped(libc::PROT_READ | libc::PROT_WRITE);
        let maps = File::open("/proc/self/maps").unwrap();
        let found = mapping_at(&maps, at + 5000).unwrap().unwrap();
        assert_eq!((found.start, found.end, found.offset), (at, at + BYTES as u64, 0));
        assert!(found.is_private_writable() && found.inode != 0);
        assert_eq!(mapping_at(&maps, 0).unwrap(), None);
    }
}
