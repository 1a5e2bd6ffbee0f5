//! An image in the pool.
//!
//! ```text
//!  chunk 0          ImageHeader   magic, version, checksum of the metadata, where things stand
//!  (and as many     model         what the checkpoint knows (postcard), not on the hot path
//!  as needed,       sums          CRC-32C of every data chunk
//!  side by side)    plan          page-aligned, mapped by every clone at `window::PLAN`
//!  the other chunks data          what is stored of the address space, as `layout` has it
//! ```
//!
//! Invariants: nothing is written after publication; the metadata's chunks are contiguous; the
//! checksum covers the metadata with the checksum itself as zero.

use farfork_plan::{PLAN_MAGIC, PlanHeader};
use farfork_pool::{Extent, ImageExtents, Pool};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES, align_up};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::compile::compile;
use crate::error::ImageError;
use crate::model::Model;

/// Version of the format.
pub const VERSION: u32 = 11;

const MAGIC: u64 = u64::from_le_bytes(*b"farfork\0");

/// First bytes of an image.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ImageHeader {
    magic: u64,
    version: u32,
    checksum: u32,
    cid: [u8; 16],
    meta_bytes: u64,
    model_offset: u64,
    model_bytes: u64,
    sums_offset: u64,
    sums_count: u64,
    plan_offset: u64,
    plan_bytes: u64,
}

const _: () = assert!(size_of::<ImageHeader>() == 88);

/// Encodes an image's metadata; `placement` has the pool offset of each chunk of the model's
/// segments and `sums` its checksum.
pub fn encode(model: &Model, cid: Cid, placement: &[u64], sums: &[u32]) -> Vec<u8> {
    let encoded = postcard::to_stdvec(model).unwrap_or_default();
    let plan = compile(model, placement);
    let mut bytes = vec![0u8; size_of::<ImageHeader>()];
    let model_offset = append(&mut bytes, &encoded, 8);
    let sums_offset = append(&mut bytes, sums.as_bytes(), 8);
    let plan_offset = append(&mut bytes, &plan, PAGE_BYTES as usize);
    let header = ImageHeader {
        magic: MAGIC,
        version: VERSION,
        checksum: 0,
        cid: cid.to_bytes(),
        meta_bytes: bytes.len() as u64,
        model_offset,
        model_bytes: encoded.len() as u64,
        sums_offset,
        sums_count: sums.len() as u64,
        plan_offset,
        plan_bytes: plan.len() as u64,
    };
    seal(&mut bytes, header);
    bytes
}

fn append(bytes: &mut Vec<u8>, part: &[u8], align: usize) -> u64 {
    let start = bytes.len().next_multiple_of(align);
    bytes.resize(start, 0);
    bytes.extend_from_slice(part);
    start as u64
}

fn seal(bytes: &mut [u8], mut header: ImageHeader) {
    let head = size_of::<ImageHeader>();
    bytes[..head].copy_from_slice(header.as_bytes());
    header.checksum = crc32c::crc32c(bytes);
    bytes[..head].copy_from_slice(header.as_bytes());
}

/// Chunks that metadata of `bytes` takes.
pub fn meta_chunks(bytes: u64) -> u32 {
    (align_up(bytes, CHUNK_BYTES) / CHUNK_BYTES) as u32
}

/// Pool offset of every chunk of `extents`, in order.
pub fn chunk_offsets(extents: &[Extent]) -> Vec<u64> {
    extents
        .iter()
        .flat_map(|run| (0..u64::from(run.chunks)).map(|i| run.offset + i * CHUNK_BYTES))
        .collect()
}

/// A published image, read and checked.
#[derive(Debug)]
pub struct Image {
    /// Where it lies.
    pub extents: ImageExtents,
    /// What it holds.
    pub model: Model,
    /// Pool offset of the plan.
    pub plan_offset: u64,
    /// Bytes of the plan's mapping.
    pub plan_bytes: u64,
    /// Checksums of the data chunks.
    pub sums: Vec<u32>,
    /// Pool offsets of the data chunks.
    pub placement: Vec<u64>,
}

impl Image {
    /// Reads the image `cid` and verifies its metadata.
    pub fn read(pool: &Pool, cid: Cid) -> Result<Image, ImageError> {
        Image::read_at(pool, pool.find(cid)?)
    }

    /// Reads the image in `extents` and verifies its metadata.
    pub fn read_at(pool: &Pool, extents: ImageExtents) -> Result<Image, ImageError> {
        let cid = extents.cid;
        let damaged = |what| ImageError::Damaged { cid, what };
        let first = extents.extents.first().ok_or(damaged("it has no chunks"))?;
        if extents.root_len > first.bytes() {
            return Err(damaged("its metadata is not in one piece"));
        }
        let bytes = pool.bytes(first.offset, extents.root_len)?;
        let Metadata { model, plan_offset, plan_bytes, sums } = Metadata::parse(bytes, cid)?;
        let meta = meta_chunks(extents.root_len) as usize;
        let placement: Vec<u64> = chunk_offsets(&extents.extents).into_iter().skip(meta).collect();
        if placement.len() != model.chunks() {
            return Err(damaged("its number of chunks does not match its model"));
        }
        let plan_offset = first.offset + plan_offset;
        Ok(Image { extents, model, plan_offset, plan_bytes, sums, placement })
    }

    /// Verifies the checksum of every data chunk; the pool offsets of those that do not match.
    pub fn damaged_chunks(&self, pool: &Pool) -> Result<Vec<u64>, ImageError> {
        let mut damaged = Vec::new();
        for (offset, sum) in self.placement.iter().zip(&self.sums) {
            if crc32c::crc32c(pool.bytes(*offset, CHUNK_BYTES)?) != *sum {
                damaged.push(*offset);
            }
        }
        Ok(damaged)
    }
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
        let header = checked_header(bytes, cid)?;
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
    if let Ok((header, _)) = ImageHeader::read_from_prefix(bytes) {
        seal(bytes, ImageHeader { checksum: 0, ..header });
    }
}

fn checked_header(bytes: &[u8], cid: Cid) -> Result<ImageHeader, ImageError> {
    let damaged = |what| ImageError::Damaged { cid, what };
    let (header, _) = ImageHeader::read_from_prefix(bytes)
        .map_err(|_| damaged("its metadata is too short for a header"))?;
    if header.magic != MAGIC {
        return Err(damaged("its magic number is wrong"));
    }
    if header.version != VERSION {
        let (found, expected) = (header.version, VERSION);
        return Err(ImageError::Version { cid, found, expected });
    }
    if header.meta_bytes != bytes.len() as u64 || header.cid != cid.to_bytes() {
        return Err(damaged("its header is that of another image"));
    }
    let without = ImageHeader { checksum: 0, ..header };
    let sum = crc32c::crc32c(without.as_bytes());
    if crc32c::crc32c_append(sum, &bytes[size_of::<ImageHeader>()..]) != header.checksum {
        return Err(damaged("the checksum of its metadata does not match"));
    }
    Ok(header)
}
