//! Names for places in the pool. None of them is a pointer: they mean the same in every process.

use farfork_types::CHUNK_BYTES;
use serde::Serialize;

/// A run of neighbouring chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// Bytes from the start of the pool, a multiple of the chunk size.
    pub offset: u64,
    /// Length in chunks.
    pub chunks: u32,
}

impl Extent {
    /// Length in bytes.
    pub const fn bytes(self) -> u64 {
        self.chunks as u64 * CHUNK_BYTES
    }

    /// The first byte after the extent.
    pub const fn end(self) -> u64 {
        self.offset + self.bytes()
    }

    pub(crate) fn single_chunks(self) -> impl Iterator<Item = Extent> {
        let first = self.first().0;
        (first..first + self.chunks).map(|chunk| ChunkIndex(chunk).run(1))
    }

    pub(crate) fn first(self) -> ChunkIndex {
        ChunkIndex((self.offset / CHUNK_BYTES) as u32)
    }

    pub(crate) fn contains(self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        self.offset <= offset && end.is_some_and(|end| end <= self.end())
    }
}

/// The number of a chunk, counted from the start of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkIndex(pub(crate) u32);

impl ChunkIndex {
    pub(crate) const fn offset(self) -> u64 {
        self.0 as u64 * CHUNK_BYTES
    }

    pub(crate) const fn run(self, chunks: u32) -> Extent {
        Extent { offset: self.offset(), chunks }
    }
}

/// The place of an image in the pool's image table. It is used again for another image once the
/// image is removed and not pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct ImageSlot(pub(crate) u32);

impl ImageSlot {
    /// The number of the slot, below [`MAX_IMAGES`](crate::MAX_IMAGES).
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The place of a node in the pool's node table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct NodeSlot(pub(crate) u32);

impl NodeSlot {
    /// The number of the slot, below [`MAX_NODES`](crate::MAX_NODES).
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One use of an image slot: the slot and how often it has been used. Never equal to 0 as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) slot: ImageSlot,
    pub(crate) generation: u32,
}

impl Owner {
    pub(crate) const fn word(self) -> u64 {
        (self.slot.0 as u64) << 32 | self.generation as u64
    }

    /// The word of its side tables, which come and go while the image is sealed.
    pub(crate) const fn side_word(self) -> u64 {
        self.word() | SIDE
    }

    /// Whose word it is, be it the image's own or that of its side tables.
    pub(crate) const fn from_word(word: u64) -> Option<Owner> {
        let generation = word as u32;
        if generation == 0 {
            return None;
        }
        Some(Owner { slot: ImageSlot(((word & !SIDE) >> 32) as u32), generation })
    }
}

/// No slot has so high a number.
const SIDE: u64 = 1 << 63;
