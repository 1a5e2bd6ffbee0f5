//! What images of all kinds have in common: chunks of 2 MiB with checksums, and ranges of the file that hold
//! something.

use std::ops::Range;

use farfork_pool::{ImageFile, ImageId};
use farfork_types::{CHUNK_BYTES, PAGE_BYTES};

use crate::error::ImageError;
use crate::format::{Image, chunk_offset};
use crate::header::{FileHeader, Kind};
use crate::layout::DATA_AT;
use crate::store;
use crate::vm::Snapshot;

/// An image of either kind, whose metadata was verified.
#[derive(Debug)]
pub enum Chunked {
    /// A process, or a tree of processes.
    Processes(Box<Image>),
    /// A virtual machine.
    VirtualMachine(Box<Snapshot>),
}

impl Chunked {
    /// Reads the image in `file` and verifies its metadata.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::Version`], [`ImageError::Pool`].
    pub fn read_from(file: &ImageFile) -> Result<Chunked, ImageError> {
        Ok(match Kind::of(file)? {
            Kind::Processes => Chunked::Processes(Box::new(Image::read_from(file)?)),
            Kind::VirtualMachine => Chunked::VirtualMachine(Box::new(Snapshot::read_from(file)?)),
        })
    }

    /// Which file it is.
    pub fn id(&self) -> ImageId {
        match self {
            Chunked::Processes(image) => image.id,
            Chunked::VirtualMachine(snapshot) => snapshot.id,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Chunked::Processes(_) => Kind::Processes,
            Chunked::VirtualMachine(_) => Kind::VirtualMachine,
        }
    }

    /// How many chunks its data takes.
    pub fn chunks(&self) -> usize {
        match self {
            Chunked::Processes(image) => image.sums.len(),
            Chunked::VirtualMachine(snapshot) => snapshot.map.chunks() as usize,
        }
    }

    /// Bytes of its metadata in the file.
    pub(crate) fn metadata(&self, file: &ImageFile) -> Result<Range<u64>, ImageError> {
        let header = FileHeader::read_of(file, self.kind())?;
        Ok(header.meta_offset..header.meta_offset + header.meta_bytes)
    }

    /// The ranges of the file that hold something.
    pub(crate) fn kept(&self, metadata: Range<u64>) -> Vec<Range<u64>> {
        match self {
            Chunked::Processes(image) => store::kept(&image.model, metadata),
            Chunked::VirtualMachine(snapshot) => {
                let mut kept = vec![0..PAGE_BYTES, metadata];
                let stored = snapshot.map.stored_bytes();
                kept.extend((stored > 0).then_some(DATA_AT..DATA_AT + stored));
                kept.sort_by_key(|range| range.start);
                kept
            }
        }
    }

    /// Reads a chunk to `to`, which has the length of one; zeros follow the last bytes of the image. Whether its
    /// checksums match.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn read_chunk(
        &self,
        file: &ImageFile,
        chunk: usize,
        to: &mut [u8],
    ) -> Result<bool, ImageError> {
        let offset = chunk_offset(chunk);
        let there = self.id().bytes.saturating_sub(offset).min(CHUNK_BYTES) as usize;
        file.read_to(offset, &mut to[..there])?;
        to[there..].fill(0);
        Ok(self.is_sound(chunk, to))
    }

    /// Whether the bytes of a chunk match its checksums.
    pub(crate) fn is_sound(&self, chunk: usize, bytes: &[u8]) -> bool {
        match self {
            Chunked::Processes(image) => crc32c::crc32c(bytes) == image.sums[chunk],
            Chunked::VirtualMachine(snapshot) => {
                snapshot.is_sound(chunk as u64 * CHUNK_BYTES, bytes)
            }
        }
    }
}
