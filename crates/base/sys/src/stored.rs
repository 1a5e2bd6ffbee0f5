//! Files with holes in memory.
//!
//! A mapping of a hole is a promise: the kernel gives a page of the file to any access, to a device that pins it, and to a
//! huge page that it makes of the small ones around it (khugepaged). Then the file takes more memory than what it stores.
#![allow(unsafe_code)] // reason: maps a file

use std::fs::File;
use std::io;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

const PAGE_BYTES: u64 = 4096;

/// Where the first bytes of a file are stored, from and to, in whole pages.
///
/// # Errors
/// Those of `lseek`.
pub fn parts(file: &File, bytes: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < bytes {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start - start % PAGE_BYTES,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        at = seek(file, SeekFrom::Hole(start.max(at)))?.next_multiple_of(PAGE_BYTES);
        match parts.last_mut() {
            Some(last) if last.1 >= start => last.1 = at,
            _ => parts.push((start, at)),
        }
    }
    Ok(parts)
}

/// Maps the first bytes of a file for reading: what it stores, and memory of zeros of this process for its holes.
///
/// # Errors
/// Those of `mmap` and `lseek`.
pub fn map(file: &File, bytes: usize) -> io::Result<MmapRaw> {
    let memory: MmapRaw = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?.into();
    for (from, to) in parts(file, bytes as u64)? {
        let to = to.min(bytes as u64);
        if from >= to {
            break;
        }
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces pages of the mapping above, which nothing refers to yet, and which ends with all that is mapped over it.
        unsafe {
            let start = memory.as_mut_ptr().add(from as usize);
            mmap(start.cast(), (to - from) as usize, ProtFlags::READ, flags, file, from)?;
        }
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{FileExt, MetadataExt};

    fn read(memory: &MmapRaw) -> Vec<u8> {
        // SAFETY: the mapping is readable, and nothing writes to its file.
        unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) }.to_vec()
    }

    #[test]
    fn holes_are_left_out() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(b"x", 3 * 4096 + 7).unwrap();
        file.write_all_at(&[1; 8192], 1 << 20).unwrap();
        file.set_len((1 << 30) + 5).unwrap();
        file.write_all_at(b"end", 1 << 30).unwrap();
        let end = (1 << 30, (1 << 30) + 4096);
        let found = parts(&file, (1 << 30) + 5).unwrap();
        assert_eq!(found, [(3 * 4096, 4 * 4096), (1 << 20, (1 << 20) + 8192), end]);
        assert_eq!(parts(&file, 0).unwrap(), []);
    }

    #[test]
    fn holes_are_read_and_stay() {
        let page = PAGE_BYTES;
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(40 * page).unwrap();
        for at in [0, 1, 7, 30 * page, 31 * page - 1, 38 * page + 5] {
            file.write_all_at(b"stored", at).unwrap();
        }
        let blocks = || file.metadata().unwrap().blocks();
        let before = blocks();
        for bytes in [40 * page, 31 * page, 30 * page + 3, 20 * page, 1] {
            let mut expected = vec![0; bytes as usize];
            file.read_exact_at(&mut expected, 0).unwrap();
            let memory = map(&file, bytes as usize).unwrap();
            assert!(read(&memory) == expected, "{bytes} bytes");
        }
        assert_eq!(blocks(), before, "a read filled a hole");
        let whole = MmapOptions::new().len(40 * page as usize).map_raw_read_only(&file).unwrap();
        read(&whole);
        assert!(
            blocks() > before,
            "holes of plain mappings stay here, so that the test shows nothing"
        );
    }

    #[test]
    fn other_files_are_refused_or_read() {
        let (mut zeros, file) = (Vec::new(), tempfile::tempfile().unwrap());
        file.set_len(3 * PAGE_BYTES).unwrap();
        (&file).read_to_end(&mut zeros).unwrap();
        assert_eq!(read(&map(&file, zeros.len()).unwrap()), zeros);
        let (pipe, _end) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        assert!(map(&pipe, 4096).is_err());
    }
}
