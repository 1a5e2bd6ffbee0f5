//! From a model and its pages to a published image, wherever they come from.

use std::ops::Range;

use farfork_pool::{Held, ImageWriter, Pool};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::error::ImageError;
use crate::format::{self, DATA_AT};
use crate::header::Kind;
use crate::model::Model;

/// An image that is not visible yet: room for what is stored. Room for its metadata is there already, or
/// taken at the end, when its size is known.
pub struct Draft<'p> {
    writer: ImageWriter<'p>,
    chunks: u64,
}

impl<'p> Draft<'p> {
    /// Begins an image in `pool`, which counts towards what `user` may have. What it takes is given back
    /// if the draft is dropped.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn begin(pool: &'p Pool, user: Option<&str>) -> Result<Draft<'p>, ImageError> {
        Ok(Draft { writer: pool.begin(user)?, chunks: 0 })
    }

    /// Takes room for about `chunks` chunks, and has it cleared, before it is known how many
    /// there will be.
    ///
    /// # Errors
    /// [`ImageError::Pool`], and nothing is taken.
    pub fn reserve(&mut self, chunks: u64) -> Result<(), ImageError> {
        self.writer.reserve(DATA_AT + chunks * CHUNK_BYTES)?;
        self.writer.populate();
        Ok(())
    }

    /// Sees to it that there is room for what `model` stores. What is too much goes back with
    /// the publication.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn fit(&mut self, model: &Model) -> Result<(), ImageError> {
        self.chunks = model.chunks() as u64;
        Ok(self.writer.reserve(DATA_AT + self.chunks * CHUNK_BYTES)?)
    }

    /// The bytes of the model's chunks, in their order.
    pub fn data(&mut self) -> &mut [u8] {
        self.writer.bytes_mut(DATA_AT..DATA_AT + self.chunks * CHUNK_BYTES)
    }

    /// Seals the chunks as they are, with `model` as what they hold, and makes the image visible.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn publish(mut self, model: &Model) -> Result<Published, ImageError> {
        let sums: Vec<u32> = self.data().chunks(CHUNK_BYTES as usize).map(crc32c::crc32c).collect();
        let cid = self.writer.cid();
        let metadata = format::encode(model, cid, &sums);
        let meta_bytes = metadata.len() as u64;
        let meta_at = format::meta_offset(meta_bytes, self.chunks);
        self.writer.reserve(meta_at + meta_bytes)?;
        self.writer.bytes_mut(meta_at..meta_at + meta_bytes).copy_from_slice(&metadata);
        let kept = kept(model, meta_at..meta_at + meta_bytes);
        let file_bytes = ImageWriter::file_bytes(&kept);
        let header = format::file_header(cid, Kind::Processes, meta_bytes, self.chunks, file_bytes);
        self.writer.bytes_mut(0..header.len() as u64).copy_from_slice(&header);
        self.writer.keep(&kept)?;
        let pool_bytes = self.writer.taken()?;
        let (cid, held) = self.writer.publish()?;
        Ok(Published { cid, held, pool_bytes })
    }
}

/// An image whose data lie elsewhere: what the file of a published image holds besides them.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Its id.
    pub cid: Cid,
    /// The first bytes of the file.
    pub header: Vec<u8>,
    /// Where the metadata begin.
    pub meta_at: u64,
    /// The metadata. The checksums of the chunks in there are zero: the data were not read.
    pub metadata: Vec<u8>,
    /// Length of the file.
    pub file_bytes: u64,
}

impl Descriptor {
    /// That of the image `cid` of `model`.
    pub fn of(model: &Model, cid: Cid) -> Descriptor {
        let chunks = model.chunks() as u64;
        let metadata = format::encode(model, cid, &vec![0; chunks as usize]);
        let meta_bytes = metadata.len() as u64;
        let meta_at = format::meta_offset(meta_bytes, chunks);
        let file_bytes = ImageWriter::file_bytes(&kept(model, meta_at..meta_at + meta_bytes));
        let header = format::file_header(cid, Kind::Processes, meta_bytes, chunks, file_bytes);
        Descriptor { cid, header, meta_at, metadata, file_bytes }
    }
}

/// The parts of the file that hold something, in order.
pub(crate) fn kept(model: &Model, metadata: Range<u64>) -> Vec<Range<u64>> {
    let segments = model.stored().flat_map(|stored| &stored.segments);
    let data = segments.map(|part| DATA_AT + part.place..DATA_AT + part.place + part.bytes);
    let mut parts: Vec<Range<u64>> = data.chain([0..farfork_types::PAGE_BYTES, metadata]).collect();
    parts.sort_by_key(|part| part.start);
    parts
}

/// An image that others can see.
#[derive(Debug)]
pub struct Published {
    /// Its id.
    pub cid: Cid,
    /// The proof that its writer lives.
    pub held: Held,
    /// Bytes of the pool that it takes.
    pub pool_bytes: u64,
}
