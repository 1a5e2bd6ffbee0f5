//! Words in the memory of a file that several processes map: they outlive each of them.
#![allow(unsafe_code)] // reason: hands out mapped memory

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// The first words of a file in memory whose length cannot change, mapped shared.
#[derive(Debug)]
pub struct SharedWords {
    start: *mut AtomicU64,
    count: usize,
}

// SAFETY: the mapping belongs to the value, and atomics may be used by any thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

/// The seals without which a process that has the file could cut it, and readers would get SIGBUS.
const LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl SharedWords {
    /// A new file of so many words, all zero, whose length is sealed.
    ///
    /// # Errors
    /// As `memfd_create(2)`, `ftruncate(2)`, `fcntl(2)`.
    pub fn create(name: &str, count: usize) -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(name, flags)?);
        file.set_len((count * size_of::<u64>()) as u64)?;
        fcntl_add_seals(&file, LENGTH)?;
        Ok(file)
    }

    /// Maps `count` words of a file that [`create`](SharedWords::create) has made.
    ///
    /// # Errors
    /// `InvalidInput` if it was not, or is shorter; as `mmap(2)`.
    pub fn map(file: impl AsFd, count: usize) -> io::Result<SharedWords> {
        let bytes = count * size_of::<u64>();
        let found = rustix::fs::fstat(&file)?;
        let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(LENGTH));
        if !is_sealed || count == 0 || (found.st_size as u64) < bytes as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedWords { start: start.cast(), count })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, is page-aligned, and lives as long as `self`; the file
        // cannot become shorter.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length, and no reference is left.
        unsafe { libc::munmap(self.start.cast(), self.count * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_show_the_same_words() {
        let file = SharedWords::create("words", 600).unwrap();
        let [one, other] = [0; 2].map(|_| SharedWords::map(&file, 600).unwrap());
        one[599].store(7, Ordering::Relaxed);
        assert_eq!((other.len(), other[599].load(Ordering::Relaxed)), (600, 7));
        assert!(file.set_len(8).is_err());
        assert!(SharedWords::map(&file, 601).is_err());
        assert!(SharedWords::map(tempfile::tempfile().unwrap(), 1).is_err());
    }
}
