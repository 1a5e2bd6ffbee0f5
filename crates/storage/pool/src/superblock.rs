//! The first bytes of the file: what it is, in which version, how large.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Release;

use farfork_types::CHUNK_BYTES;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::device;
use crate::error::PoolError;
use crate::failpoint::step;
use crate::layout::{Layout, SUPERBLOCK_BYTES};
use crate::map::SharedMap;
use crate::words;

const MAGIC: u64 = u64::from_le_bytes(*b"farforkP");
/// Version of everything that stands in the pool's first chunks.
pub(crate) const VERSION: u32 = 3;

/// Written once, when the pool is made; the magic goes last.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Superblock {
    magic: u64,
    version: u32,
    /// crc32c of the superblock with 0 in this place.
    checksum: u32,
    pub(crate) size: u64,
    chunk_bytes: u64,
    pub(crate) uuid: [u8; 16],
}

impl Superblock {
    pub(crate) fn new(layout: &Layout, uuid: [u8; 16]) -> Superblock {
        let mut block = Superblock {
            magic: MAGIC,
            version: VERSION,
            checksum: 0,
            size: layout.size(),
            chunk_bytes: CHUNK_BYTES,
            uuid,
        };
        block.checksum = block.expected_checksum();
        block
    }

    fn expected_checksum(&self) -> u32 {
        crc32c::crc32c(Superblock { checksum: 0, ..*self }.as_bytes())
    }

    /// Writes the block; the pool exists from the last store on.
    pub(crate) fn store(&self, map: &SharedMap) {
        let target = map.table(0, size_of::<Superblock>() / 8);
        words::store_bytes(&target[1..], &self.as_bytes()[8..]);
        step();
        target[0].store(self.magic, Release);
        step();
    }

    /// Reads and verifies the block of the file at `path`, its length included.
    pub(crate) fn load(file: &File, path: &Path) -> Result<Superblock, PoolError> {
        let found = file.metadata().map_err(PoolError::io("look at", path))?;
        let is_device = device::is_one(file).map_err(PoolError::io("look at", path))?;
        let (bytes, len) = match found.is_file() {
            _ if is_device => Superblock::of_device(file).map_err(PoolError::io("map", path))?,
            true if found.len() >= SUPERBLOCK_BYTES as u64 => {
                let mut bytes = [0; size_of::<Superblock>()];
                file.read_exact_at(&mut bytes, 0).map_err(PoolError::io("read", path))?;
                (bytes, found.len())
            }
            _ => return Err(PoolError::NotAPool { path: path.to_owned() }),
        };
        let block: Superblock = zerocopy::transmute!(bytes);
        if is_device && block.magic == 0 {
            return Err(PoolError::NotAPool { path: path.to_owned() }); // as every empty device
        }
        block.verify(path, len)?;
        Ok(block)
    }

    /// Whether the pool with this random name is still what is mapped.
    pub(crate) fn is_there(map: &SharedMap, uuid: [u8; 16]) -> bool {
        let mut bytes = [0; size_of::<Superblock>()];
        bytes.copy_from_slice(map.bytes(0, size_of::<Superblock>() as u64));
        let block: Superblock = zerocopy::transmute!(bytes);
        (block.magic, block.uuid) == (MAGIC, uuid)
    }

    /// The block's bytes, which no call reads there, and those of the device.
    fn of_device(file: &File) -> io::Result<([u8; size_of::<Superblock>()], u64)> {
        let (size, alignment) = device::size_and_alignment(file)?;
        let map = SharedMap::new(file, alignment)?;
        let mut bytes = [0; size_of::<Superblock>()];
        bytes.copy_from_slice(map.bytes(0, size_of::<Superblock>() as u64));
        Ok((bytes, size))
    }

    fn verify(&self, path: &Path, found: u64) -> Result<(), PoolError> {
        let path = path.to_owned();
        let error = match self {
            block if block.magic == 0 => PoolError::Unfinished { path },
            block if block.magic != MAGIC => PoolError::NotAPool { path },
            block if block.version != VERSION => {
                PoolError::OtherVersion { path, found: block.version, known: VERSION }
            }
            block if block.checksum != block.expected_checksum() => {
                PoolError::DamagedSuperblock { path }
            }
            block if block.size > found => PoolError::Truncated { path, found, size: block.size },
            _ => return Ok(()),
        };
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn another_pool_in_the_same_place_is_another() {
        let file = tempfile::tempfile().unwrap();
        let layout = Layout::of(8 * CHUNK_BYTES).unwrap();
        file.set_len(layout.size()).unwrap();
        let map = SharedMap::new(&file, layout.size()).unwrap();
        assert!(!Superblock::is_there(&map, [0; 16]), "there is none");
        Superblock::new(&layout, [1; 16]).store(&map);
        assert!(Superblock::is_there(&map, [1; 16]));
        Superblock::new(&layout, [2; 16]).store(&map);
        assert!(!Superblock::is_there(&map, [1; 16]));
    }

    #[test]
    fn the_block_keeps_its_shape() {
        assert_eq!(size_of::<Superblock>(), 48);
        assert_eq!(offset_of!(Superblock, version), 8);
        assert_eq!(offset_of!(Superblock, checksum), 12);
        assert_eq!(offset_of!(Superblock, size), 16);
        assert_eq!(offset_of!(Superblock, uuid), 32);
    }
}
