//! How farfork knows that a file is the same on another node.
//!
//! A build-id is a hash that the linker put into an ELF file, so it names the contents wherever
//! and whenever the file was installed. It is read from the file itself: on the node nothing maps
//! the files, so that the kernel could not be asked (`PROCMAP_QUERY`).

use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use object::elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};

use crate::model::{FileIdentity, FileStamp};

/// Linkers write smaller notes. The limit keeps a damaged file from costing memory.
const MOST_NOTE_BYTES: u64 = 64 << 10;

impl FileStamp {
    /// The stamp of the regular file at `path`, which was `found` and can be opened as `at`. One
    /// that cannot be opened has no build-id, and is bound to its time.
    pub fn from_metadata(path: &Path, found: &Metadata, at: &Path) -> FileStamp {
        FileStamp {
            path: path.to_owned(),
            size: found.size(),
            mtime_ns: mtime_ns(found),
            build_id: build_id(at),
            identity: FileIdentity::from_metadata(found),
        }
    }
}

impl FileIdentity {
    /// The identity of what was `found` in an ordinary file system.
    pub fn from_metadata(found: &Metadata) -> FileIdentity {
        let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        FileIdentity {
            mode: found.mode(),
            user: found.uid(),
            group: found.gid(),
            device: (libc::major(found.rdev()), libc::minor(found.rdev())),
            inode: found.ino(),
            born_ns: born.map_or(0, |born| born.as_nanos() as u64),
            is_kernel_s: false,
        }
    }
}

/// Modification time in nanoseconds since the epoch.
pub fn mtime_ns(found: &Metadata) -> i128 {
    i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
}

/// The build-id of the ELF file at `path`; nothing for other files, and for those that were linked
/// without or cannot be opened.
pub fn build_id(path: &Path) -> Option<Vec<u8>> {
    // Whatever has been put there meanwhile, opening it must not wait.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let cache = ReadCache::new(file);
    match FileKind::parse(&cache).ok()? {
        FileKind::Elf64 => note::<FileHeader64<Endianness>, _>(&cache),
        FileKind::Elf32 => note::<FileHeader32<Endianness>, _>(&cache),
        _ => None,
    }
}

fn note<'d, Elf, R>(data: R) -> Option<Vec<u8>>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'d>,
{
    let header = Elf::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?.iter();
    let notes = segments.filter(|segment| {
        segment.p_type(endian) == PT_NOTE && segment.p_filesz(endian).into() <= MOST_NOTE_BYTES
    });
    for segment in notes {
        let Ok(Some(mut notes)) = segment.notes(endian, data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_of_this_program_is_found() {
        let own = Path::new("/proc/self/exe");
        let id = build_id(own).expect("rustc links with a build-id");
        assert!((8..=32).contains(&id.len()), "{id:?}");
        let found = own.metadata().unwrap();
        let stamp = FileStamp::from_metadata(Path::new("/own"), &found, own);
        assert_eq!((stamp.build_id, stamp.size), (Some(id), found.size()));
    }

    #[test]
    fn what_is_no_whole_elf_file_has_none() {
        assert_eq!(build_id(Path::new("/nowhere")), None);
        let dir = tempfile::tempdir().unwrap();
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &whole[..64], &whole[..200]] {
            let path = dir.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(build_id(&path), None, "{} bytes", bytes.len());
        }
    }
}
