//! Where the bytes of an image are: in its own file, and perhaps parts of them in others.
//!
//! A plan knows *places*: offsets in the image's own file. A node may have some of an image's bytes
//! elsewhere: a far part, a layer. Then its agent hands a table over to each init, a sealed file that is
//! mapped at [`window::SOURCES`](crate::window::SOURCES). Whatever maps or reads a place asks the table,
//! and so does what decides whether a mapping is of the image. Without a table every place
//! is in the image's own file.

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Table;

/// First word of a table of sources.
pub const SOURCES_MAGIC: u64 = u64::from_le_bytes(*b"ffsrcs01");
/// Most files beside the image's own.
pub const MAX_SOURCES: usize = 4;

/// Start of a table of sources.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SourcesHeader {
    /// [`SOURCES_MAGIC`].
    pub magic: u64,
    /// Bytes of the mapping, a multiple of the page size.
    pub bytes: u64,
    /// The files ([`SourceFile`]), in the order of their descriptors.
    pub files: Table,
    /// What is in them ([`SourcePart`]), sorted by place, none overlapping.
    pub parts: Table,
}

/// A file that has bytes of an image.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SourceFile {
    /// Device (major << 32 | minor), as in [`Request`](crate::protocol::Request).
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// A part of an image that is in another file than the image's own. All numbers are multiples of the page
/// size.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SourcePart {
    /// Its place in the image.
    pub place: u64,
    /// Length.
    pub bytes: u64,
    /// Which of the files.
    pub file: u64,
    /// Offset in that file.
    pub offset: u64,
}

/// Where some bytes of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Which of the other files; none for the image's own.
    pub file: Option<usize>,
    /// Offset in the file.
    pub offset: u64,
    /// How many of the bytes are there side by side.
    pub bytes: u64,
}

/// Where the first of `bytes` bytes at `place` are, given the parts that are in other files.
pub fn locate(parts: &[SourcePart], place: u64, bytes: u64) -> Located {
    let after = parts.partition_point(|part| part.place <= place);
    if let Some(part) = parts[..after].last() {
        let inside = place - part.place;
        if inside < part.bytes {
            let (file, offset) = (Some(part.file as usize), part.offset + inside);
            return Located { file, offset, bytes: bytes.min(part.bytes - inside) };
        }
    }
    let next = parts.get(after).map_or(u64::MAX, |part| part.place - place);
    Located { file: None, offset: place, bytes: bytes.min(next) }
}

/// The place of what another file has at an offset, and how many bytes follow it there; the reverse of
/// [`locate`].
pub fn place_of(parts: &[SourcePart], file: usize, offset: u64) -> Option<(u64, u64)> {
    let has = |part: &&SourcePart| {
        part.file as usize == file && part.offset <= offset && offset < part.offset + part.bytes
    };
    let part = parts.iter().find(has)?;
    let inside = offset - part.offset;
    Some((part.place + inside, part.bytes - inside))
}

const _: () = {
    assert!(size_of::<SourcesHeader>() == 48);
    assert!(size_of::<SourceFile>() == 16);
    assert!(size_of::<SourcePart>() == 32);
};

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_place_is_found_and_leads_back() {
        let part = |place, bytes, file, offset| SourcePart { place, bytes, file, offset };
        let parts = [part(10, 5, 0, 100), part(15, 5, 1, 0), part(30, 10, 0, 50)];
        let all = |start: u64, bytes: u64| {
            let mut found = Vec::new();
            let mut at = start;
            while at < start + bytes {
                let located = locate(&parts, at, start + bytes - at);
                found.push((located.file, located.offset, located.bytes));
                at += located.bytes;
            }
            found
        };
        assert_eq!(
            all(8, 40),
            [
                (None, 8, 2),
                (Some(0), 100, 5),
                (Some(1), 0, 5),
                (None, 20, 10),
                (Some(0), 50, 10),
                (None, 40, 8)
            ]
        );
        for (place, file, offset) in [(12, 0, 102), (19, 1, 4), (30, 0, 50)] {
            assert_eq!(locate(&parts, place, 1).offset, offset);
            assert_eq!(place_of(&parts, file, offset).map(|found| found.0), Some(place));
        }
        assert_eq!(place_of(&parts, 1, 5), None);
        assert_eq!(locate(&[], 7, 9), Located { file: None, offset: 7, bytes: 9 });
    }
}
