//! The header of a region: its first page, which [`crate::layout`] draws.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::layout::Layout;

/// Version of the format.
pub const VERSION: u32 = 3;
/// Version of the format of a checked region: objects have trailers.
pub const CHECKED_VERSION: u32 = 4;
/// Version of the format of a region whose metadata is in node-local memory. (5 had intents and locks in the region.)
pub const NODE_VERSION: u32 = 6;
/// Most bytes of the path of a directory of node-local metadata.
pub(crate) const DIRECTORY_BYTES: usize = 256;
const DIRECTORY_AT: usize = 48;
pub(crate) const HEADER_BYTES: usize = 4096;
/// First bytes of a region.
pub const MAGIC: &[u8; 8] = b"FFREGION";
const CHECKSUM_AT: usize = HEADER_BYTES - 4;

/// Where a region keeps what it knows of clients and of the owners of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metadata {
    /// Beside the objects.
    Region,
    /// In a file of this directory, which lies in the node's own memory.
    Node(PathBuf),
}

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the region.
    pub bytes: u64,
    /// Address at which every client maps it.
    pub address: u64,
    /// Identity of the region.
    pub uuid: [u8; 16],
    /// Whether clients check what they are passed, see `trailers.rs`.
    pub is_checked: bool,
    /// Where its metadata lies.
    pub metadata: Metadata,
}

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadHeader {
    /// They begin with something else.
    NotARegion,
    /// They have another version.
    Version(u32),
    /// Their checksum is another.
    Checksum,
}

impl Header {
    /// Version of its format.
    pub fn version(&self) -> u32 {
        match self.metadata {
            Metadata::Node(_) => NODE_VERSION,
            Metadata::Region if self.is_checked => CHECKED_VERSION,
            Metadata::Region => VERSION,
        }
    }

    /// Where everything lies. `None` if a region cannot have this size.
    pub fn layout(&self) -> Option<Layout> {
        match self.metadata {
            Metadata::Region => Layout::of(self.bytes),
            Metadata::Node(_) => Layout::node_local(self.bytes),
        }
    }

    /// Its bytes. A directory's path is cut after 256 bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&self.version().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.address.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.uuid);
        if let Metadata::Node(directory) = &self.metadata {
            bytes[12] = u8::from(self.is_checked);
            let place = &mut bytes[DIRECTORY_AT..][..DIRECTORY_BYTES];
            place
                .iter_mut()
                .zip(directory.as_os_str().as_bytes())
                .for_each(|(at, byte)| *at = *byte);
        }
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`BadHeader`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, BadHeader> {
        if &bytes[..8] != MAGIC {
            return Err(BadHeader::NotARegion);
        }
        let version = number(&bytes[8..12]) as u32;
        if ![VERSION, CHECKED_VERSION, NODE_VERSION].contains(&version) {
            return Err(BadHeader::Version(version));
        }
        if number(&bytes[CHECKSUM_AT..]) != u64::from(crc32c::crc32c(&bytes[..CHECKSUM_AT])) {
            return Err(BadHeader::Checksum);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[32..48]);
        let mut directory = bytes[DIRECTORY_AT..][..DIRECTORY_BYTES].to_vec();
        directory.truncate(directory.iter().take_while(|byte| **byte != 0).count());
        let (is_checked, metadata) = match version {
            NODE_VERSION => (bytes[12] == 1, Metadata::Node(OsString::from_vec(directory).into())),
            _ => (version == CHECKED_VERSION, Metadata::Region),
        };
        let (size, address) = (number(&bytes[16..24]), number(&bytes[24..32]));
        Ok(Header { bytes: size, address, uuid, is_checked, metadata })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        bytes: 8 << 20,
        address: 0x2000_4000_0000,
        uuid: [7; 16],
        is_checked: false,
        metadata: Metadata::Region,
    };

    #[test]
    fn the_header_lies_as_drawn() {
        let bytes = HEADER.encode();
        assert_eq!(&bytes[..8], b"FFREGION");
        assert_eq!(bytes[8..16], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], (8u64 << 20).to_le_bytes());
        assert_eq!(bytes[24..32], 0x2000_4000_0000u64.to_le_bytes());
        assert_eq!(bytes[32..48], [7; 16]);
        assert!(bytes[48..4092].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[4092..], crc32c::crc32c(&bytes[..4092]).to_le_bytes());
        assert_eq!(Header::decode(&bytes), Ok(HEADER));
    }

    #[test]
    fn a_header_names_the_directory_of_node_local_metadata() {
        for (is_checked, path) in [(false, "/dev/shm"), (true, "/dev/shm/another")] {
            let metadata = Metadata::Node(path.into());
            let bytes = Header { is_checked, metadata, ..HEADER }.encode();
            assert_eq!(bytes[8..16], [6, 0, 0, 0, u8::from(is_checked), 0, 0, 0]);
            assert_eq!(bytes[48..48 + path.len()], *path.as_bytes());
            assert!(bytes[48 + path.len()..4092].iter().all(|byte| *byte == 0));
            let decoded = Header::decode(&bytes).expect("a header");
            assert_eq!(decoded.encode(), bytes);
            assert_eq!((decoded.is_checked, decoded.version()), (is_checked, NODE_VERSION));
        }
    }

    #[test]
    fn every_flipped_bit_of_the_header_is_seen() {
        let bytes = HEADER.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..8 => BadHeader::NotARegion,
                8..12 => BadHeader::Version(VERSION ^ 1 << (bit - 64)),
                _ => BadHeader::Checksum,
            };
            assert_eq!(Header::decode(&flipped), Err(expected), "bit {bit}");
        }
    }
}
