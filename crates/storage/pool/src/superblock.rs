//! The file by which a directory is known as a pool: what it is, in which version, how large.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use farfork_types::CHUNK_BYTES;
use rustix::fs::OFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::directory::Directory;
use crate::error::PoolError;
use crate::media::Medium;

const MAGIC: u64 = u64::from_le_bytes(*b"farforkP");
/// Version of the directory's layout. Up to 3 a pool was one file.
pub(crate) const VERSION: u32 = 4;
/// Its name in the directory. It appears last: a directory without it is not a pool.
pub(crate) const NAME: &str = "superblock";

/// Written once, when the pool is made.
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
    /// What it was made on: [`Medium::number`].
    medium: u32,
    reserved: u32,
}

impl Superblock {
    pub(crate) fn new(size: u64, uuid: [u8; 16], medium: Medium) -> Superblock {
        let mut block = Superblock {
            magic: MAGIC,
            version: VERSION,
            checksum: 0,
            size,
            chunk_bytes: CHUNK_BYTES,
            uuid,
            medium: medium.number(),
            reserved: 0,
        };
        block.checksum = block.expected_checksum();
        block
    }

    fn expected_checksum(&self) -> u32 {
        crc32c::crc32c(Superblock { checksum: 0, ..*self }.as_bytes())
    }

    /// Reads and verifies the block of the pool in `directory`, and the file that has it.
    pub(crate) fn load(directory: &Directory) -> Result<(Superblock, File), PoolError> {
        let path = directory.path();
        let not_a_pool = || PoolError::NotAPool { path: path.to_owned() };
        let file = directory
            .open_file(NAME, OFlags::RDWR)
            .map_err(directory.failed("open", NAME))?
            .ok_or_else(not_a_pool)?;
        let mut bytes = [0; size_of::<Superblock>()];
        let found = file.metadata().map_err(PoolError::io("look at", path))?.len();
        if found != bytes.len() as u64 {
            return Err(PoolError::DamagedSuperblock { path: path.to_owned() });
        }
        file.read_exact_at(&mut bytes, 0).map_err(directory.failed("read", NAME))?;
        let block: Superblock = zerocopy::transmute!(bytes);
        block.verify(path)?;
        Ok((block, file))
    }

    /// Whether processes of other kernels may map the pool's files, if it lies on `found` now.
    ///
    /// A file system may be mounted with DAX here and without there, and its memory is the same one: both
    /// times removed images wait for the pins of all nodes. A tmpfs never becomes anything else, nor
    /// anything else a tmpfs: such a pool is a copy, with the name of the first one.
    pub(crate) fn shares(&self, path: &Path, found: Medium) -> Result<bool, PoolError> {
        let made_on = Medium::of_number(self.medium);
        match (made_on, found) {
            (Some(made_on), found) if made_on == found => Ok(found.is_shared_by_kernels()),
            (Some(Medium::Dax), Medium::Other) | (Some(Medium::Other), Medium::Dax) => Ok(true),
            _ => Err(PoolError::OtherMedium {
                path: path.to_owned(),
                made_on: made_on.map_or("a medium that this farfork does not know", Medium::name),
                found: found.name(),
            }),
        }
    }

    /// Whether a file begins as pools did that were one file.
    pub(crate) fn is_old_pool(file: &File) -> bool {
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0).is_ok() && u64::from_le_bytes(magic) == MAGIC
    }

    fn verify(&self, path: &Path) -> Result<(), PoolError> {
        let path = path.to_owned();
        let error = match self {
            block if block.magic != MAGIC => PoolError::NotAPool { path },
            block if block.version != VERSION => {
                PoolError::OtherVersion { path, found: block.version, known: VERSION }
            }
            block if block.checksum != block.expected_checksum() => {
                PoolError::DamagedSuperblock { path }
            }
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
    fn the_block_keeps_its_shape() {
        assert_eq!(size_of::<Superblock>(), 56);
        assert_eq!(offset_of!(Superblock, version), 8);
        assert_eq!(offset_of!(Superblock, checksum), 12);
        assert_eq!(offset_of!(Superblock, size), 16);
        assert_eq!(offset_of!(Superblock, chunk_bytes), 24);
        assert_eq!(offset_of!(Superblock, uuid), 32);
        assert_eq!(offset_of!(Superblock, medium), 48);
    }
}
