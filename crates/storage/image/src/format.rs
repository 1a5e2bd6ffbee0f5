//! An image of processes in its file.
//!
//! ```text
//!  0         FileHeader    magic, version, checksum, kind, id, where the rest is; a page (`header`)
//!  4 KiB     metadata      ImageHeader: magic, version, checksum of the metadata, where things stand in it
//!                          model: what the checkpoint knows (postcard), not on the hot path
//!                          sums: CRC-32C of every data chunk
//!                          plan: page-aligned, mapped by every clone at `window::PLAN`
//!  2 MiB     data          chunks of 2 MiB: what is stored of the address space, as `layout` has it;
//!                          what no segment covers is a hole
//!  the end   metadata      if it does not fit below 2 MiB
//! ```
//!
//! Invariants: nothing is written after publication; each checksum covers its part with the checksum itself
//! as zero; a place in the data and the address that it is mapped at are congruent modulo 2 MiB, as
//! `layout` says.

use std::collections::BTreeSet;

use farfork_plan::{PLAN_MAGIC, PlanHeader};
use farfork_pool::{ImageFile, ImageId, Pool};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::compile::compile;
use crate::error::ImageError;
use crate::head::{Head, checked, seal};
use crate::header::{FileHeader, Kind};
pub use crate::header::{VERSION, chunk_offset, file_header, meta_offset};
pub use crate::layout::DATA_AT;
use crate::model::Model;

const MAGIC: u64 = u64::from_le_bytes(*b"farfork\0");

/// Where the data of a model ends in the file.
fn data_end(model: &Model) -> u64 {
    let segments = model.stored().flat_map(|stored| &stored.segments);
    segments.map(|part| DATA_AT + part.place + part.bytes).max().unwrap_or(DATA_AT)
}

/// First bytes of the metadata.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ImageHeader {
    head: Head,
    model_offset: u64,
    model_bytes: u64,
    sums_offset: u64,
    sums_count: u64,
    plan_offset: u64,
    plan_bytes: u64,
}

const _: () = assert!(size_of::<ImageHeader>() == 88);

/// Encodes an image's metadata; `sums` has the checksum of each chunk.
pub fn encode(model: &Model, cid: Cid, sums: &[u32]) -> Vec<u8> {
    let encoded = postcard::to_stdvec(model).unwrap_or_default();
    let plan = compile(model);
    let mut bytes = vec![0u8; size_of::<ImageHeader>()];
    let model_offset = append(&mut bytes, &encoded, 8);
    let sums_offset = append(&mut bytes, sums.as_bytes(), 8);
    let plan_offset = append(&mut bytes, &plan, PAGE_BYTES as usize);
    let header = ImageHeader {
        head: Head::new((MAGIC, VERSION), cid, bytes.len()),
        model_offset,
        model_bytes: encoded.len() as u64,
        sums_offset,
        sums_count: sums.len() as u64,
        plan_offset,
        plan_bytes: plan.len() as u64,
    };
    bytes[..size_of::<ImageHeader>()].copy_from_slice(header.as_bytes());
    seal(&mut bytes);
    bytes
}

fn append(bytes: &mut Vec<u8>, part: &[u8], align: usize) -> u64 {
    let start = bytes.len().next_multiple_of(align);
    bytes.resize(start, 0);
    bytes.extend_from_slice(part);
    start as u64
}

/// A published image, read and checked.
#[derive(Debug)]
pub struct Image {
    /// Which file it is.
    pub id: ImageId,
    /// What it holds.
    pub model: Model,
    /// Where the plan begins in the file.
    pub plan_offset: u64,
    /// Bytes of the plan's mapping.
    pub plan_bytes: u64,
    /// The plan, by whose texts failures of a start are explained.
    pub plan: Vec<u8>,
    /// Checksums of the data chunks.
    pub sums: Vec<u32>,
}

impl Image {
    /// Reads the image `cid` and verifies its metadata.
    pub fn read(pool: &Pool, cid: Cid) -> Result<Image, ImageError> {
        Image::read_from(&pool.find(cid)?)
    }

    /// Reads the image in `file` and verifies its metadata.
    pub fn read_from(file: &ImageFile) -> Result<Image, ImageError> {
        let cid = file.id.cid;
        let damaged = |what| ImageError::Damaged { cid, what };
        let header = FileHeader::read_of(file, Kind::Processes)?;
        let bytes = file.read(header.meta_offset, header.meta_bytes)?;
        let Metadata { model, plan_offset, plan_bytes, sums } = Metadata::parse(&bytes, cid)?;
        if header.data_chunks != model.chunks() as u64 {
            return Err(damaged("its number of chunks does not match its model"));
        }
        if data_end(&model) > file.id.bytes {
            // A clone would meet SIGBUS there.
            return Err(damaged("its file ends before its data"));
        }
        let in_metadata = plan_offset as usize..(plan_offset + plan_bytes) as usize;
        let plan = bytes[in_metadata].to_vec();
        let plan_offset = header.meta_offset + plan_offset;
        Ok(Image { id: file.id, model, plan_offset, plan_bytes, plan, sums })
    }

    /// Reads a data chunk to `to`, which has the length of one, and verifies its checksum: whether that
    /// matches.
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
        // The last one ends where the last segment does.
        let there = self.id.bytes.saturating_sub(offset).min(CHUNK_BYTES) as usize;
        file.read_to(offset, &mut to[..there])?;
        to[there..].fill(0);
        Ok(crc32c::crc32c(to) == self.sums[chunk])
    }

    /// Verifies the checksum of every data chunk; the numbers of those that do not match. Chunks that lie on
    /// another node are left out, unless `file` has a [far file](ImageFile::with_far_file).
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn damaged_chunks(&self, file: &ImageFile) -> Result<Vec<usize>, ImageError> {
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        let mut damaged = Vec::new();
        let far = if file.far_file().is_none() { far_chunks(file) } else { BTreeSet::new() };
        for chunk in (0..self.sums.len()).filter(|chunk| !far.contains(chunk)) {
            if !self.read_chunk(file, chunk, &mut buffer)? {
                damaged.push(chunk);
            }
        }
        Ok(damaged)
    }
}

/// The numbers of the chunks that lie far.
pub fn far_chunks(file: &ImageFile) -> BTreeSet<usize> {
    let parts = file.far().into_iter().flat_map(|far| &far.parts);
    let number = |place: u64| ((place - DATA_AT) / CHUNK_BYTES) as usize;
    parts.flat_map(|part| number(part.start)..number(part.end - 1) + 1).collect()
}

/// The metadata of an image, apart from where the image lies.
#[derive(Debug)]
pub struct Metadata {
    /// What the image holds.
    pub model: Model,
    /// Where the plan begins in the metadata.
    pub plan_offset: u64,
    /// Bytes of the plan.
    pub plan_bytes: u64,
    /// Checksums of the data chunks.
    pub sums: Vec<u32>,
}

impl Metadata {
    /// Reads and verifies the metadata of the image `cid`.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::Version`].
    pub fn parse(bytes: &[u8], cid: Cid) -> Result<Metadata, ImageError> {
        let damaged = |what| ImageError::Damaged { cid, what };
        let header: ImageHeader = checked(bytes, (MAGIC, VERSION), cid)?;
        let part = |offset: u64, len: u64| {
            let end = offset.checked_add(len)?;
            bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
        };
        let model = part(header.model_offset, header.model_bytes)
            .and_then(|encoded| postcard::from_bytes::<Model>(encoded).ok())
            .ok_or(damaged("the model cannot be read"))?;
        model.validate().map_err(damaged)?;
        let sums: Vec<u32> = header
            .sums_count
            .checked_mul(4)
            .and_then(|len| part(header.sums_offset, len))
            .ok_or(damaged("its checksums lie outside of the metadata"))?
            .chunks_exact(4)
            .map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]))
            .collect();
        if sums.len() != model.chunks() {
            return Err(damaged("its numbers of checksums and of chunks differ"));
        }
        let (plan_offset, plan_bytes) = (header.plan_offset, header.plan_bytes);
        let plan = part(plan_offset, plan_bytes)
            .ok_or(damaged("its plan lies outside of the metadata"))?;
        let (plan, _) = PlanHeader::read_from_prefix(plan)
            .map_err(|_| damaged("its metadata is too short for a plan"))?;
        let is_plan = plan.magic == PLAN_MAGIC && plan.bytes == plan_bytes;
        if !is_plan || !(plan_offset | plan_bytes).is_multiple_of(PAGE_BYTES) {
            return Err(damaged("its plan is not a plan"));
        }
        Ok(Metadata { model, plan_offset, plan_bytes, sums })
    }
}

/// Makes the checksum of metadata right again that a test has changed.
#[doc(hidden)]
pub fn reseal(bytes: &mut [u8]) {
    seal(bytes);
}
