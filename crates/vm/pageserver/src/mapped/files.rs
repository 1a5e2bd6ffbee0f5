//! The files: the memory and the state of a snapshot.

use std::ffi::CStr;
use std::io;
use std::ops::Range;

use farfork_image::vm::Snapshot;
use farfork_mount::{FileFacts, Files, Owner};
use farfork_pool::ImageFile;
use farfork_types::{PAGE_BYTES, align_down};

/// Name of the file of the guest's memory.
pub const MEMORY: &str = "memory";
/// Name of the file that the monitor wrote beside it.
pub const STATE: &str = "state";
const MEMORY_INODE: u64 = 2;
const STATE_INODE: u64 = 3;
const FILES: [(&str, u64); 2] = [(MEMORY, MEMORY_INODE), (STATE, STATE_INODE)];

/// Both files of a snapshot.
pub(super) struct SnapshotFiles {
    pub(super) snapshot: Snapshot,
    pub(super) file: ImageFile,
    pub(super) owner: Owner,
}

impl SnapshotFiles {
    /// Whole pages have checksums; a program that reads around the page cache may ask for parts of them.
    fn read_memory(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let first = align_down(range.start, PAGE_BYTES);
        let mut pages = vec![0; (range.end.next_multiple_of(PAGE_BYTES) - first) as usize];
        self.snapshot.read_memory(&self.file, first, &mut pages).map_err(|failure| {
            eprintln!("farfork: cannot read page {} of the memory: {failure}", first / PAGE_BYTES);
            io::Error::from_raw_os_error(libc::EIO)
        })?;
        pages.truncate((range.end - first) as usize);
        Ok(pages.split_off((range.start - first) as usize))
    }
}

impl Files for SnapshotFiles {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn by_name(&self, name: &CStr) -> io::Result<FileFacts> {
        let found = FILES.iter().find(|(known, _)| known.as_bytes() == name.to_bytes());
        let (_, inode) = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        self.by_inode(*inode)
    }

    fn by_inode(&self, inode: u64) -> io::Result<FileFacts> {
        let state_bytes = self.snapshot.state.len() as u64;
        let (bytes, stored_bytes) = match inode {
            MEMORY_INODE => (self.snapshot.map.memory_bytes(), self.snapshot.map.stored_bytes()),
            STATE_INODE => (state_bytes, state_bytes),
            _ => return Err(io::Error::from_raw_os_error(libc::ESTALE)),
        };
        let made_unix_ns = self.file.id.created_unix_s * 1_000_000_000;
        Ok(FileFacts { inode, bytes, stored_bytes, made_unix_ns })
    }

    fn read(&self, inode: u64, range: Range<u64>, _: u64, _: i32) -> io::Result<Vec<u8>> {
        match inode {
            STATE_INODE => {
                Ok(self.snapshot.state[range.start as usize..range.end as usize].to_vec())
            }
            _ => self.read_memory(range),
        }
    }

    fn list(&self) -> Vec<(String, u64)> {
        FILES.map(|(name, inode)| (name.to_owned(), inode)).to_vec()
    }
}
