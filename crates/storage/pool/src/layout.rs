//! Where everything lies in a pool, and the records that live there.
//!
//! ```text
//!  0x00000  superblock    4 KiB, written once; its magic is stored last
//!  0x01000  node table    64 records of 128 B
//!  0x03000  image table   1024 records of 64 B
//!  0x13000  pin table     64 rows (nodes) of 1024 words (images); a row has one writer
//!  0x93000  chunk table   one record of 16 B per chunk of the file, these here included
//!           ... padding to a multiple of the chunk size
//!  catalog  one chunk of raw words for the users of the pool
//!  data     the chunks that images are made of
//! ```
//!
//! Everything but the superblock consists of atomic words, so that a reader in another process
//! never sees half of one. A change of any record is a change of `superblock::VERSION`.

use std::sync::atomic::{AtomicU32, AtomicU64};

use farfork_types::{CHUNK_BYTES, align_up};

use crate::ids::{ChunkIndex, Extent};
use crate::map::Shared;

/// Images, published or being written, that fit in one pool.
pub const MAX_IMAGES: usize = 1024;
/// Nodes that can use one pool.
pub const MAX_NODES: usize = 64;
/// Bytes of a node's name.
pub const MAX_NODE_NAME_BYTES: usize = 88;

/// Words that name the owner of a row of pins.
pub(crate) const HOLDER_WORDS: usize = 4;

pub(crate) const SUPERBLOCK_BYTES: usize = 4096;
pub(crate) const NODES_AT: u64 = SUPERBLOCK_BYTES as u64;
pub(crate) const IMAGES_AT: u64 = NODES_AT + (MAX_NODES * size_of::<NodeRecord>()) as u64;
pub(crate) const PINS_AT: u64 = IMAGES_AT + (MAX_IMAGES * size_of::<ImageRecord>()) as u64;
pub(crate) const CHUNKS_AT: u64 = PINS_AT + (MAX_NODES * MAX_IMAGES * 8) as u64;

/// A node that has registered.
#[repr(C)]
pub(crate) struct NodeRecord {
    /// 0 if the record is free, else crc32c of all that follows << 32 | length of the name.
    pub(crate) header: AtomicU64,
    /// Whose it is: a [`Holder`](crate::pinfile::Holder).
    pub(crate) holder: [AtomicU64; HOLDER_WORDS],
    pub(crate) name: [AtomicU64; MAX_NODE_NAME_BYTES / 8],
}

/// One image. `state` commits; the rest is valid from state Published on.
#[repr(C)]
pub(crate) struct ImageRecord {
    /// Generation << 32 | state.
    pub(crate) state: AtomicU64,
    pub(crate) cid: [AtomicU64; 2],
    pub(crate) root_bytes: AtomicU64,
    pub(crate) created_unix_s: AtomicU64,
    /// First chunk of the first extent; 0 if the image has none.
    pub(crate) first: AtomicU32,
    pub(crate) chunks: AtomicU32,
    pub(crate) checksum: AtomicU32,
    pub(crate) extents: AtomicU32,
    /// First chunk of the first of its side tables, which are a chain like extents; 0 if none.
    pub(crate) tables: AtomicU64,
}

/// One chunk. `owner` is the only truth about its owner; the other two words chain the extents of
/// a published image, and its side tables, and stand in the first chunk of each.
#[repr(C)]
pub(crate) struct ChunkRecord {
    pub(crate) owner: AtomicU64,
    pub(crate) run_chunks: AtomicU32,
    /// First chunk of the next extent; 0 at the end.
    pub(crate) next: AtomicU32,
}

// SAFETY: repr(C), made of atomic integers only, for which every bit pattern is valid.
#[allow(unsafe_code)]
unsafe impl Shared for NodeRecord {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Shared for ImageRecord {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Shared for ChunkRecord {}

/// The places that depend on the size of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) chunks: u32,
    pub(crate) catalog: ChunkIndex,
    pub(crate) first_data: ChunkIndex,
}

impl Layout {
    /// The layout of a pool of `size` bytes; `None` if no data chunk would be left, if the size is
    /// not a multiple of the chunk size, or if it exceeds what 32-bit chunk numbers reach.
    pub(crate) fn of(size: u64) -> Option<Layout> {
        let chunks = u32::try_from(size / CHUNK_BYTES).ok()?;
        let tables = CHUNKS_AT + u64::from(chunks) * size_of::<ChunkRecord>() as u64;
        let catalog = ChunkIndex((align_up(tables, CHUNK_BYTES) / CHUNK_BYTES) as u32);
        let first_data = ChunkIndex(catalog.0 + 1);
        let fits = size.is_multiple_of(CHUNK_BYTES) && first_data.0 < chunks;
        fits.then_some(Layout { chunks, catalog, first_data })
    }

    /// Bytes of the smallest pool: tables, catalog and one data chunk.
    pub(crate) const SMALLEST_BYTES: u64 = 3 * CHUNK_BYTES;

    /// One chunk more than 32-bit chunk numbers count.
    pub(crate) const TOO_MANY_BYTES: u64 = CHUNK_BYTES << 32;

    pub(crate) const fn size(&self) -> u64 {
        self.chunks as u64 * CHUNK_BYTES
    }

    pub(crate) const fn data_chunks(&self) -> u32 {
        self.chunks - self.first_data.0
    }

    /// Tables and catalog.
    pub(crate) const fn metadata(&self) -> Extent {
        ChunkIndex(0).run(self.first_data.0)
    }

    /// Everything.
    pub(crate) const fn all(&self) -> Extent {
        ChunkIndex(0).run(self.chunks)
    }

    /// Whether `run` lies in the data area.
    pub(crate) fn is_data(&self, run: Extent) -> bool {
        run.chunks > 0 && run.offset >= self.first_data.offset() && run.end() <= self.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_types::align_down;
    use proptest::prelude::*;
    use std::mem::offset_of;

    #[test]
    fn records_keep_their_shape() {
        assert_eq!(size_of::<NodeRecord>(), 128);
        assert_eq!(offset_of!(NodeRecord, holder), 8);
        assert_eq!(offset_of!(NodeRecord, name), 40);
        assert_eq!(size_of::<ImageRecord>(), 64);
        assert_eq!(offset_of!(ImageRecord, cid), 8);
        assert_eq!(offset_of!(ImageRecord, root_bytes), 24);
        assert_eq!(offset_of!(ImageRecord, created_unix_s), 32);
        assert_eq!(offset_of!(ImageRecord, first), 40);
        assert_eq!(offset_of!(ImageRecord, checksum), 48);
        assert_eq!(offset_of!(ImageRecord, tables), 56);
        assert_eq!(size_of::<ChunkRecord>(), 16);
        assert_eq!(offset_of!(ChunkRecord, run_chunks), 8);
        assert_eq!(offset_of!(ChunkRecord, next), 12);
    }

    #[test]
    fn tables_stand_where_the_diagram_says() {
        assert_eq!([NODES_AT, IMAGES_AT, PINS_AT, CHUNKS_AT], [0x1000, 0x3000, 0x13000, 0x93000]);
    }

    #[test]
    fn sizes_at_the_edge() {
        assert!(Layout::of(Layout::SMALLEST_BYTES).is_some());
        assert!(Layout::of(Layout::SMALLEST_BYTES - CHUNK_BYTES).is_none());
        assert!(Layout::of(Layout::SMALLEST_BYTES + 4096).is_none());
        assert!(Layout::of(align_down(u64::MAX, CHUNK_BYTES)).is_none());
    }

    proptest! {
        #[test]
        fn nothing_overlaps(chunks in 3u64..8 << 20) {
            let layout = Layout::of(chunks * CHUNK_BYTES).unwrap();
            let table_end = CHUNKS_AT + chunks * size_of::<ChunkRecord>() as u64;
            prop_assert!(table_end <= layout.catalog.offset());
            prop_assert!(layout.catalog.offset() < table_end + CHUNK_BYTES);
            prop_assert_eq!(layout.first_data.0, layout.catalog.0 + 1);
            prop_assert!(layout.first_data.0 < layout.chunks);
        }
    }
}
