//! Images of which some bytes lie on another node: which bytes, and where.
//!
//! ```text
//!  page 0 of the image's file
//!       0  what the image's format has there
//!    2048  magic "farforkF"         8    2072  offset of the table      8
//!          version (1)              4    2080  bytes of the table       8
//!          CRC-32C of pointer       4    2088  CID                     16
//!          and table
//!  the table, after the last page of the image
//!       0  deadline of a read, ms   8       24  source, key: bytes   4, 4
//!       8  parts                    8       32  parts: place, bytes  8, 8
//!      16  bytes of paths for TLS   8           source, path of the key, paths for TLS
//! ```
//! Paths for TLS are those of certificate, private key and authority, with a zero byte between two. A table that has
//! them has version 2, so that an older farfork does not read the image without them; others have version 1.
//!
//! Without the magic at 2048 all of the image is in the file. A table whose magic is damaged makes the file
//! longer than its image, which the formats of images refuse. In the file the parts are holes: they read as
//! zeros, so nothing may read them there. [`ImageFile`](crate::ImageFile) prevents that.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES, TlsFiles};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: u64 = u64::from_le_bytes(*b"farforkF");
/// Of tables without paths for TLS, and with them.
const VERSION: u32 = 1;
const TLS_VERSION: u32 = 2;
/// Where the pointer stands in the file. The formats of images leave the second half of their first page
/// alone.
const POINTER_AT: u64 = 2048;
/// A table of 64 TiB of parts, and the paths.
const MOST_TABLE_BYTES: u64 = 2 << 30;

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Pointer {
    magic: u64,
    version: u32,
    /// crc32c of the pointer with 0 in this place, and of the table.
    checksum: u32,
    reserved: u64,
    offset: u64,
    bytes: u64,
    cid: [u8; 16],
}

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TableHeader {
    deadline_ms: u64,
    parts: u64,
    tls_bytes: u64,
    source_bytes: u32,
    key_bytes: u32,
}

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Part {
    place: u64,
    bytes: u64,
}

const _: () = {
    assert!(size_of::<Pointer>() == 56);
    assert!(size_of::<TableHeader>() == 32);
    assert!(size_of::<Part>() == 16);
};

/// The bytes of an image that lie on another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarParts {
    /// Address and port of the node that serves them.
    pub source: String,
    /// The file of the key that this node needs. The key itself is nowhere in the pool.
    pub key: PathBuf,
    /// The files that prove this node to it beside the key; none without TLS.
    pub tls: Option<TlsFiles>,
    /// Limit of a read from there, in milliseconds.
    pub deadline_ms: u64,
    /// Ranges of the file, in order. They begin at multiples of 2 MiB and end at such, or with the image.
    pub parts: Vec<Range<u64>>,
}

impl FarParts {
    /// Bytes that lie far.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }

    /// Whether a place lies far, and up to where that, or the opposite, holds.
    pub(crate) fn at(&self, place: u64) -> (bool, u64) {
        let after = self.parts.partition_point(|part| part.end <= place);
        match self.parts.get(after) {
            Some(part) if part.start <= place => (true, part.end),
            Some(part) => (false, part.start),
            None => (false, u64::MAX),
        }
    }

    /// What stands in the file of an image of `image_bytes`: the pointer, and the table, which follows the
    /// image.
    pub(crate) fn encode(&self, cid: Cid, image_bytes: u64) -> (Vec<u8>, Vec<u8>) {
        let (source, key) = (self.source.as_bytes(), self.key.as_os_str().as_bytes());
        let tls = self.tls.as_ref().map(encode_files).unwrap_or_default();
        let header = TableHeader {
            deadline_ms: self.deadline_ms,
            parts: self.parts.len() as u64,
            tls_bytes: tls.len() as u64,
            source_bytes: source.len() as u32,
            key_bytes: key.len() as u32,
        };
        let part = |part: &Range<u64>| Part { place: part.start, bytes: part.end - part.start };
        let parts: Vec<Part> = self.parts.iter().map(part).collect();
        let table = [header.as_bytes(), parts.as_bytes(), source, key, &tls].concat();
        let pointer = Pointer {
            magic: MAGIC,
            version: if self.tls.is_some() { TLS_VERSION } else { VERSION },
            checksum: 0,
            reserved: 0,
            offset: image_bytes,
            bytes: table.len() as u64,
            cid: cid.to_bytes(),
        };
        let sum = crc32c::crc32c_append(crc32c::crc32c(pointer.as_bytes()), &table);
        (Pointer { checksum: sum, ..pointer }.as_bytes().to_vec(), table)
    }

    /// Where the pointer stands in the file.
    pub(crate) const fn pointer() -> Range<u64> {
        POINTER_AT..POINTER_AT + size_of::<Pointer>() as u64
    }

    /// Reads what the file of the image `cid` has of it, with the length of the image without the table;
    /// none if the image is all there.
    pub(crate) fn read(file: &File, cid: Cid) -> io::Result<Option<(FarParts, u64)>> {
        let mut bytes = [0; size_of::<Pointer>()];
        match file.read_exact_at(&mut bytes, POINTER_AT) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let damaged = || io::Error::other("its table of far parts is damaged");
        let pointer: Pointer = zerocopy::transmute!(bytes);
        if pointer.magic != MAGIC {
            return Ok(None);
        }
        if ![VERSION, TLS_VERSION].contains(&pointer.version) {
            let (found, own) = (pointer.version, TLS_VERSION);
            let text = format!(
                "its table of far parts has version {found}, this farfork reads {own}; use the farfork \
                 that made it"
            );
            return Err(io::Error::other(text));
        }
        if pointer.cid != cid.to_bytes() || pointer.bytes > MOST_TABLE_BYTES {
            return Err(damaged());
        }
        let mut table = vec![0; pointer.bytes as usize];
        file.read_exact_at(&mut table, pointer.offset).map_err(|_| damaged())?;
        let without = Pointer { checksum: 0, ..pointer };
        let sum = crc32c::crc32c_append(crc32c::crc32c(without.as_bytes()), &table);
        if sum != pointer.checksum {
            return Err(damaged());
        }
        let parts = FarParts::decode(&table, pointer.offset).ok_or_else(damaged)?;
        if parts.tls.is_some() != (pointer.version == TLS_VERSION) {
            return Err(damaged());
        }
        Ok(Some((parts, pointer.offset)))
    }

    fn decode(table: &[u8], image_bytes: u64) -> Option<FarParts> {
        let (header, rest) = TableHeader::read_from_prefix(table).ok()?;
        let parts_bytes = usize::try_from(header.parts).ok()?.checked_mul(size_of::<Part>())?;
        let (parts, rest) = rest.split_at_checked(parts_bytes)?;
        let (source, rest) = rest.split_at_checked(header.source_bytes as usize)?;
        let (key, files) = rest.split_at_checked(header.key_bytes as usize)?;
        let tls_bytes = usize::try_from(header.tls_bytes).ok()?;
        let tls = if tls_bytes > 0 { Some(decode_files(files)?) } else { None };
        let mut before = CHUNK_BYTES;
        let mut ranges = Vec::new();
        for part in parts.chunks_exact(size_of::<Part>()) {
            let Part { place, bytes } = Part::read_from_bytes(part).ok()?;
            let end = place.checked_add(bytes).filter(|end| *end <= image_bytes)?;
            let is_whole = place.is_multiple_of(CHUNK_BYTES)
                && end.is_multiple_of(PAGE_BYTES)
                && (end.is_multiple_of(CHUNK_BYTES) || end == image_bytes);
            if !is_whole || bytes == 0 || place < before {
                return None;
            }
            before = end;
            ranges.push(place..end);
        }
        (files.len() == tls_bytes && !ranges.is_empty()).then_some(FarParts {
            source: String::from_utf8(source.to_vec()).ok()?,
            key: path(key),
            tls,
            deadline_ms: header.deadline_ms,
            parts: ranges,
        })
    }
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn encode_files(files: &TlsFiles) -> Vec<u8> {
    [&files.cert, &files.key, &files.ca].map(|path| path.as_os_str().as_bytes()).join(&0)
}

fn decode_files(bytes: &[u8]) -> Option<TlsFiles> {
    let paths: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
    let [cert, key, ca] = paths[..] else { return None };
    Some(TlsFiles { cert: path(cert), key: path(key), ca: path(ca) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    const CID: Cid = Cid::from_bytes([3; 16]);
    const IMAGE_BYTES: u64 = 4 * CHUNK_BYTES + 8192;

    fn parts(of: &[Range<u64>]) -> FarParts {
        let (source, key) = ("10.0.0.1:7".to_owned(), PathBuf::from("/k"));
        FarParts { source, key, tls: None, deadline_ms: 5000, parts: of.to_vec() }
    }

    fn written(parts: &FarParts) -> File {
        let file = tempfile::tempfile().unwrap();
        let (pointer, table) = parts.encode(CID, IMAGE_BYTES);
        file.write_all_at(&pointer, POINTER_AT).unwrap();
        file.write_all_at(&table, IMAGE_BYTES).unwrap();
        file
    }

    fn several() -> FarParts {
        parts(&[CHUNK_BYTES..2 * CHUNK_BYTES, 3 * CHUNK_BYTES..IMAGE_BYTES])
    }

    #[test]
    fn the_bytes_keep_their_places() {
        assert_eq!(FarParts::pointer(), 2048..2104);
        assert_eq!((offset_of!(Pointer, checksum), offset_of!(Pointer, offset)), (12, 24));
        assert_eq!((offset_of!(Pointer, bytes), offset_of!(Pointer, cid)), (32, 40));
        let (pointer, table) = several().encode(CID, IMAGE_BYTES);
        assert_eq!(&pointer[..12], b"farforkF\x01\0\0\0");
        assert_eq!(&table[..8], 5000u64.to_le_bytes());
        assert_eq!(&table[24..32], [10, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&table[32..40], CHUNK_BYTES.to_le_bytes());
        assert_eq!(&table[64..], b"10.0.0.1:7/k");
    }

    #[test]
    fn what_was_written_comes_back() {
        let read = FarParts::read(&written(&several()), CID).unwrap();
        assert_eq!(read, Some((several(), IMAGE_BYTES)));
        assert_eq!(several().bytes(), CHUNK_BYTES + CHUNK_BYTES + 8192);
        assert!(FarParts::read(&written(&several()), Cid::from_bytes([4; 16])).is_err());
        let plain = tempfile::tempfile().unwrap();
        assert_eq!(FarParts::read(&plain, CID).unwrap(), None);
        plain.set_len(1 << 20).unwrap();
        assert_eq!(FarParts::read(&plain, CID).unwrap(), None);
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        let file = written(&several());
        let (pointer, table) = several().encode(CID, IMAGE_BYTES);
        for (at, bytes) in [(POINTER_AT, &pointer), (IMAGE_BYTES, &table)] {
            for (index, byte) in bytes.iter().enumerate() {
                let place = at + index as u64;
                file.write_all_at(&[byte ^ 1], place).unwrap();
                let read = FarParts::read(&file, CID);
                let is_magic = (POINTER_AT..POINTER_AT + 8).contains(&place);
                assert!(if is_magic { matches!(read, Ok(None)) } else { read.is_err() }, "{place}");
                file.write_all_at(&[*byte], place).unwrap();
            }
        }
        assert!(FarParts::read(&file, CID).is_ok());
        file.set_len(IMAGE_BYTES + table.len() as u64 - 1).unwrap();
        assert!(FarParts::read(&file, CID).is_err());
    }

    #[test]
    fn files_of_tls_come_back_and_are_not_left_out() {
        let files = |letter: &str| TlsFiles {
            cert: format!("/{letter}c").into(),
            key: format!("/{letter}k").into(),
            ca: "/ca".into(),
        };
        let far = FarParts { tls: Some(files("a")), ..several() };
        let (pointer, table) = far.encode(CID, IMAGE_BYTES);
        assert_eq!(pointer[8..12], 2u32.to_le_bytes());
        assert_eq!(table[16..24], 11u64.to_le_bytes());
        assert!(table.ends_with(b"10.0.0.1:7/k/ac\0/ak\0/ca"));
        let read = FarParts::read(&written(&far), CID).unwrap();
        assert_eq!(read, Some((far, IMAGE_BYTES)));
        assert_eq!(decode_files(b"/a\0/b"), None);
        assert_eq!(decode_files(b"/a\0/b\0/c\0/d"), None);
    }

    #[test]
    fn ranges_that_no_writer_makes_are_refused() {
        let c = CHUNK_BYTES;
        let wrong: [&[(u64, u64)]; 7] = [
            &[],
            &[(0, c)],
            &[(c + 4096, 2 * c)],
            &[(c, 2 * c - 4096)],
            &[(2 * c, 3 * c), (c, 2 * c)],
            &[(c, 3 * c), (2 * c, 4 * c)],
            &[(4 * c, IMAGE_BYTES + 4096)],
        ];
        for ranges in wrong {
            let ranges: Vec<Range<u64>> = ranges.iter().map(|(start, end)| *start..*end).collect();
            assert!(FarParts::read(&written(&parts(&ranges)), CID).is_err(), "{ranges:?}");
        }
    }

    #[test]
    fn every_place_is_near_or_far() {
        let far = several();
        assert_eq!(far.at(0), (false, CHUNK_BYTES));
        assert_eq!(far.at(CHUNK_BYTES), (true, 2 * CHUNK_BYTES));
        assert_eq!(far.at(2 * CHUNK_BYTES), (false, 3 * CHUNK_BYTES));
        assert_eq!(far.at(IMAGE_BYTES - 1), (true, IMAGE_BYTES));
        assert_eq!(far.at(IMAGE_BYTES), (false, u64::MAX));
    }
}
