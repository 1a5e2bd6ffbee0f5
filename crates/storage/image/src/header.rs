//! The first bytes of the file of an image, whatever it is an image of.
//!
//! ```text
//!  0         FileHeader    magic, version, checksum, id, kind, where the rest is; a page
//!  4 KiB     metadata      as the kind has it, if it fits below 2 MiB
//!  2 MiB     data          chunks of 2 MiB
//!  the end   metadata      if it does not fit below 2 MiB
//! ```

use farfork_pool::ImageFile;
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};
use serde::Serialize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::ImageError;
use crate::layout::DATA_AT;

/// Version of the header, and of the metadata of processes.
pub const VERSION: u32 = 14;

const MAGIC: u64 = u64::from_le_bytes(*b"farforkI");

/// Where the metadata begins, if it fits before the data.
const META_AT: u64 = PAGE_BYTES;

/// What an image is an image of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A process, or a tree of processes ([`Image`](crate::format::Image)).
    Processes,
    /// A virtual machine ([`Snapshot`](crate::vm::Snapshot)).
    VirtualMachine,
}

impl Kind {
    /// The kind of the image in `file`.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::Version`], [`ImageError::Pool`].
    pub fn of(file: &ImageFile) -> Result<Kind, ImageError> {
        FileHeader::read(file).map(|(_, kind)| kind)
    }

    const fn number(self) -> u32 {
        match self {
            Kind::Processes => 1,
            Kind::VirtualMachine => 2,
        }
    }

    fn numbered(number: u32) -> Option<Kind> {
        [Kind::Processes, Kind::VirtualMachine].into_iter().find(|kind| kind.number() == number)
    }
}

/// First bytes of the file.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct FileHeader {
    magic: u64,
    version: u32,
    checksum: u32,
    cid: [u8; 16],
    kind: u32,
    reserved: u32,
    pub(crate) meta_offset: u64,
    pub(crate) meta_bytes: u64,
    data_offset: u64,
    pub(crate) data_chunks: u64,
    file_bytes: u64,
}

const _: () = assert!(size_of::<FileHeader>() == 80);

impl FileHeader {
    fn sealed(self) -> FileHeader {
        let without = FileHeader { checksum: 0, ..self };
        FileHeader { checksum: crc32c::crc32c(without.as_bytes()), ..self }
    }

    /// Reads and verifies the header of an image of this kind.
    pub(crate) fn read_of(file: &ImageFile, expected: Kind) -> Result<FileHeader, ImageError> {
        match FileHeader::read(file)? {
            (header, kind) if kind == expected => Ok(header),
            (_, Kind::Processes) => Err(ImageError::IsProcesses { cid: file.id.cid }),
            (_, Kind::VirtualMachine) => Err(ImageError::IsVirtualMachine { cid: file.id.cid }),
        }
    }

    /// Reads and verifies the header of an image of any kind.
    pub(crate) fn read(file: &ImageFile) -> Result<(FileHeader, Kind), ImageError> {
        let cid = file.id.cid;
        let damaged = |what| ImageError::Damaged { cid, what };
        let bytes = file.read(0, size_of::<FileHeader>() as u64)?;
        let header =
            FileHeader::read_from_bytes(&bytes).map_err(|_| damaged("it has no header"))?;
        if header.magic != MAGIC {
            return Err(damaged("its magic number is wrong"));
        }
        if header.version != VERSION {
            return Err(ImageError::Version { cid, found: header.version, expected: VERSION });
        }
        if header.checksum != header.sealed().checksum {
            return Err(damaged("the checksum of its header does not match"));
        }
        if header.cid != cid.to_bytes() || header.data_offset != DATA_AT {
            return Err(damaged("its header is that of another image"));
        }
        let kind = Kind::numbered(header.kind)
            .ok_or(damaged("it is an image of a kind that this farfork does not know"))?;
        if header.file_bytes != file.id.bytes {
            return Err(damaged("its file is not as long as it was"));
        }
        if header.meta_offset != meta_offset(header.meta_bytes, header.data_chunks) {
            return Err(damaged("its metadata is not where it should be"));
        }
        Ok((header, kind))
    }
}

/// Where the metadata of `bytes` lies in the file of an image with so many chunks of data. Numbers that
/// no file has lead beyond the end of any.
pub fn meta_offset(bytes: u64, chunks: u64) -> u64 {
    match bytes <= DATA_AT - META_AT {
        true => META_AT,
        false => chunks.saturating_mul(CHUNK_BYTES).saturating_add(DATA_AT),
    }
}

/// The first bytes of the file of an image.
pub fn file_header(cid: Cid, kind: Kind, meta_bytes: u64, chunks: u64, file_bytes: u64) -> Vec<u8> {
    let header = FileHeader {
        magic: MAGIC,
        version: VERSION,
        cid: cid.to_bytes(),
        kind: kind.number(),
        meta_offset: meta_offset(meta_bytes, chunks),
        meta_bytes,
        data_offset: DATA_AT,
        data_chunks: chunks,
        file_bytes,
        ..FileHeader::default()
    };
    header.sealed().as_bytes().to_vec()
}

/// Where a data chunk lies in the file.
pub const fn chunk_offset(chunk: usize) -> u64 {
    DATA_AT + chunk as u64 * CHUNK_BYTES
}
