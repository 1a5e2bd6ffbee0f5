//! From a model and its pages to a published image, wherever they come from.

use farfork_pool::{Extent, Held, ImageWriter, Pool};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::error::ImageError;
use crate::format;
use crate::model::Model;

/// An image that is not visible yet: chunks for what is stored. Room for its metadata is taken at the
/// end, when its size is known.
pub struct Draft<'p> {
    writer: ImageWriter<'p>,
    extents: Vec<Extent>,
    chunks: u32,
}

impl<'p> Draft<'p> {
    /// Begins an image in `pool`. What it takes is given back if the draft is dropped.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn begin(pool: &'p Pool) -> Result<Draft<'p>, ImageError> {
        Ok(Draft { writer: pool.begin()?, extents: Vec::new(), chunks: 0 })
    }

    /// Takes room for about `chunks` chunks, and has it cleared, before it is known how many
    /// there will be.
    ///
    /// # Errors
    /// [`ImageError::Pool`], and nothing is taken.
    pub fn reserve(&mut self, chunks: u32) -> Result<(), ImageError> {
        self.extents.extend(self.writer.allocate(chunks)?);
        self.writer.populate();
        Ok(())
    }

    /// Sees to it that there is room for what `model` stores. What is too much goes back with
    /// the publication.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn fit(&mut self, model: &Model) -> Result<(), ImageError> {
        self.chunks = model.chunks() as u32;
        let there: u32 = self.extents.iter().map(|extent| extent.chunks).sum();
        self.extents.extend(self.writer.allocate(self.chunks.saturating_sub(there))?);
        Ok(())
    }

    /// The writer, and the extents that hold the model's chunks in their order, and perhaps more.
    pub fn room(&mut self) -> (&mut ImageWriter<'p>, &[Extent]) {
        (&mut self.writer, &self.extents)
    }

    /// Seals the chunks as they are, with `model` as what they hold, and makes the image visible.
    ///
    /// # Errors
    /// [`ImageError::Scattered`], [`ImageError::Pool`].
    pub fn publish(mut self, model: &Model) -> Result<Published, ImageError> {
        self.writer.keep(self.chunks)?;
        let extents = self.writer.extents().to_vec();
        let placement = format::chunk_offsets(&extents);
        let mut sums = Vec::with_capacity(placement.len());
        for extent in extents {
            let bytes = self.writer.bytes_mut(extent);
            sums.extend(bytes.chunks(CHUNK_BYTES as usize).map(crc32c::crc32c));
        }
        let cid = self.writer.cid();
        let bytes = format::encode(model, cid, &placement, &sums);
        let chunks = format::meta_chunks(bytes.len() as u64);
        let [root] = self.writer.allocate(chunks)?[..] else {
            return Err(ImageError::Scattered { cid, chunks });
        };
        self.writer.put_first(root);
        self.writer.write(root.offset, &bytes);
        let pool_bytes = self.writer.extents().iter().map(|extent| extent.bytes()).sum();
        let (cid, held) = self.writer.publish_held(bytes.len() as u64)?;
        Ok(Published { cid, held, pool_bytes })
    }
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
