//! From a model and its pages to a published image, wherever they come from.

use farfork_pool::{Extent, Held, ImageWriter, Pool};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::error::ImageError;
use crate::format;
use crate::model::Model;

/// An image that nobody sees yet: room for its metadata, and a chunk for each window.
pub struct Draft<'p> {
    writer: ImageWriter<'p>,
    metadata_offset: u64,
    extents: Vec<Extent>,
}

impl<'p> Draft<'p> {
    /// Takes the room that `model` needs in `pool`; given back if the draft is dropped.
    ///
    /// # Errors
    /// [`ImageError::Scattered`], [`ImageError::Pool`].
    pub fn begin(pool: &'p Pool, model: &Model) -> Result<Draft<'p>, ImageError> {
        let mut writer = pool.begin()?;
        let chunks = format::meta_chunks(format::bytes_bound(model));
        let metadata_offset = match writer.allocate(chunks)?.as_slice() {
            [extent] => extent.offset,
            _ => return Err(ImageError::Scattered { cid: writer.cid(), chunks }),
        };
        let extents = writer.allocate(model.memory.windows.len() as u32)?;
        Ok(Draft { writer, metadata_offset, extents })
    }

    /// The writer, and the extents that hold the windows in their order.
    pub fn chunks(&mut self) -> (&mut ImageWriter<'p>, &[Extent]) {
        (&mut self.writer, &self.extents)
    }

    /// Bytes of the pool that the image takes.
    pub fn bytes(&self) -> u64 {
        self.writer.extents().iter().map(|extent| extent.bytes()).sum()
    }

    /// Seals the chunks as they are, with `model` as what they hold, and makes the image visible.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn publish(mut self, model: &Model) -> Result<(Cid, Held), ImageError> {
        let placement = format::chunk_offsets(&self.extents);
        let mut sums = Vec::with_capacity(placement.len());
        for extent in &self.extents {
            let bytes = self.writer.bytes_mut(*extent);
            sums.extend(bytes.chunks(CHUNK_BYTES as usize).map(crc32c::crc32c));
        }
        let bytes = format::encode(model, self.writer.cid(), &placement, &sums);
        self.writer.write(self.metadata_offset, &bytes);
        Ok(self.writer.publish_held(bytes.len() as u64)?)
    }
}
