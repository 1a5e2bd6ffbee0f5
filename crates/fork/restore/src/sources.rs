//! Files beside an image's own that have some of its bytes, and the table by which clones find them:
//! `farfork_plan::sources`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use farfork_plan::sources::{
    Located, MAX_SOURCES, SOURCES_MAGIC, SourceFile, SourcePart, SourcesHeader, locate,
};
use farfork_plan::{Table, window};
use farfork_sys::memfd;
use farfork_types::{PAGE_BYTES, align_up};
use rustix::fs::{MemfdFlags, memfd_create};
use zerocopy::IntoBytes;

/// Device (major << 32 | minor) and inode of a file, as a clone's init sees them.
pub fn identity(file: &File) -> io::Result<SourceFile> {
    let found = file.metadata()?;
    let device = found.dev();
    let (major, minor) = (u64::from(libc::major(device)), u64::from(libc::minor(device)));
    Ok(SourceFile { device: major << 32 | minor, inode: found.ino() })
}

/// Where an image is.
#[derive(Debug)]
pub struct Sources {
    own: SourceFile,
    others: Vec<(OwnedFd, SourceFile)>,
    parts: Vec<SourcePart>,
    /// The sealed table, if there are others.
    table: Option<OwnedFd>,
    bytes: u64,
}

impl Sources {
    /// All of the image is in one file.
    pub fn one(own: SourceFile) -> Sources {
        Sources { own, others: Vec::new(), parts: Vec::new(), table: None, bytes: 0 }
    }

    /// `parts`, which are sorted by place, are in `others`, the rest in the image's own file.
    ///
    /// # Errors
    /// The table cannot be made, or does not fit.
    pub fn several(
        own: SourceFile,
        others: Vec<File>,
        parts: Vec<SourcePart>,
    ) -> io::Result<Sources> {
        let files = others.iter().map(identity).collect::<io::Result<Vec<_>>>()?;
        let table = table(&files, &parts);
        if table.len() as u64 > window::SOURCES_BYTES || files.len() > MAX_SOURCES {
            return Err(io::Error::other("the image is scattered over too many places"));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("farfork-sources", flags)?);
        file.write_all(&table)?;
        memfd::seal(&file)?;
        let others = others.into_iter().map(OwnedFd::from).zip(files).collect();
        Ok(Sources { own, others, parts, table: Some(file.into()), bytes: table.len() as u64 })
    }

    /// Device and inode of the image's own file.
    pub fn own(&self) -> SourceFile {
        self.own
    }

    /// Bytes of the table, 0 if there is none.
    pub fn table_bytes(&self) -> u64 {
        self.bytes
    }

    /// How many other files there are.
    pub fn other_count(&self) -> usize {
        self.others.len()
    }

    /// What goes with a request: the table and the other files, or nothing.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.table.iter().chain(self.others.iter().map(|(file, _)| file)).map(AsFd::as_fd)
    }

    /// Which file has the byte at a place, and where.
    pub fn at(&self, place: u64) -> (SourceFile, u64) {
        let Located { file, offset, .. } = locate(&self.parts, place, 1);
        let file = file.and_then(|file| self.others.get(file)).map_or(self.own, |other| other.1);
        (file, offset)
    }
}

fn table(files: &[SourceFile], parts: &[SourcePart]) -> Vec<u8> {
    let files_at = size_of::<SourcesHeader>();
    let parts_at = files_at + size_of_val(files);
    let end = parts_at + size_of_val(parts);
    let address = |at: usize| window::SOURCES + at as u64;
    let header = SourcesHeader {
        magic: SOURCES_MAGIC,
        bytes: align_up(end as u64, PAGE_BYTES),
        files: Table { address: address(files_at), count: files.len() as u64 },
        parts: Table { address: address(parts_at), count: parts.len() as u64 },
    };
    let mut bytes = [header.as_bytes(), files.as_bytes(), parts.as_bytes()].concat();
    bytes.resize(header.bytes as usize, 0);
    bytes
}
