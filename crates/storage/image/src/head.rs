//! What the metadata of every kind of image begins with.

use farfork_types::Cid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::ImageError;

/// First bytes of the metadata.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    magic: u64,
    version: u32,
    /// CRC-32C of the metadata with this as zero.
    checksum: u32,
    cid: [u8; 16],
    meta_bytes: u64,
}

const _: () = assert!(size_of::<Head>() == 40);

impl Head {
    /// That of metadata with so many bytes, not [sealed](seal) yet.
    pub(crate) fn new((magic, version): (u64, u32), cid: Cid, bytes: usize) -> Head {
        Head { magic, version, checksum: 0, cid: cid.to_bytes(), meta_bytes: bytes as u64 }
    }
}

/// Writes the checksum of metadata, which begins with a [`Head`].
pub(crate) fn seal(bytes: &mut [u8]) {
    let Ok((head, _)) = Head::read_from_prefix(bytes) else { return };
    let write = |checksum, bytes: &mut [u8]| {
        bytes[..size_of::<Head>()].copy_from_slice(Head { checksum, ..head }.as_bytes());
    };
    write(0, bytes);
    write(crc32c::crc32c(bytes), bytes);
}

/// Reads the header of the metadata of image `cid`, which begins with a [`Head`] of this magic number and version, and
/// verifies the checksum of all.
///
/// # Errors
/// [`ImageError::Damaged`], [`ImageError::Version`].
pub(crate) fn checked<H: FromBytes + KnownLayout + Immutable>(
    bytes: &[u8],
    (magic, version): (u64, u32),
    cid: Cid,
) -> Result<H, ImageError> {
    let damaged = |what| ImageError::Damaged { cid, what };
    let (header, _) = H::read_from_prefix(bytes)
        .map_err(|_| damaged("its metadata is too short for a header"))?;
    let (head, rest) = Head::read_from_prefix(bytes)
        .map_err(|_| damaged("its metadata is too short for a header"))?;
    if head.magic != magic {
        return Err(damaged("its magic number is wrong"));
    }
    if head.version != version {
        let (found, expected) = (head.version, version);
        return Err(ImageError::Version { cid, found, expected });
    }
    if head.meta_bytes != bytes.len() as u64 || head.cid != cid.to_bytes() {
        return Err(damaged("its header is that of another image"));
    }
    let without = Head { checksum: 0, ..head };
    let sum = crc32c::crc32c(without.as_bytes());
    if crc32c::crc32c_append(sum, rest) != head.checksum {
        return Err(damaged("the checksum of its metadata does not match"));
    }
    Ok(header)
}
