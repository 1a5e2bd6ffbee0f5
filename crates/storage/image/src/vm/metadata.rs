//! The metadata of a snapshot's image.

use farfork_types::{Cid, PAGE_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::MAX_STATE_BYTES;
use super::map::{PageMap, Run};
use crate::error::ImageError;
use crate::head::{Head, checked, seal};

/// Version of the metadata.
pub const VERSION: u32 = 1;

const MAGIC: u64 = u64::from_le_bytes(*b"farforkV");

/// First bytes of the metadata.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SnapshotHeader {
    head: Head,
    memory_bytes: u64,
    runs_offset: u64,
    runs_count: u64,
    sums_offset: u64,
    sums_count: u64,
    state_offset: u64,
    state_bytes: u64,
}

const _: () = assert!(size_of::<SnapshotHeader>() == 96);

/// The metadata of a snapshot's image, apart from where the image lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Where the pages of the guest's memory lie.
    pub map: PageMap,
    /// CRC-32C of each stored page, in the order of places.
    pub sums: Vec<u32>,
    /// The monitor's state file.
    pub state: Vec<u8>,
}

/// Bytes that the metadata has with so many runs, stored pages and bytes of state.
pub(super) fn encoded_bytes(runs: usize, pages: u64, state: u64) -> u64 {
    let runs = runs as u64 * size_of::<Run>() as u64;
    let sums = (pages * size_of::<u32>() as u64).next_multiple_of(8);
    size_of::<SnapshotHeader>() as u64 + runs + sums + state
}

/// Encodes metadata.
pub fn encode(metadata: &Metadata, cid: Cid) -> Vec<u8> {
    let Metadata { map, sums, state } = metadata;
    let mut bytes = vec![0; size_of::<SnapshotHeader>()];
    let mut append = |part: &[u8]| {
        let start = bytes.len().next_multiple_of(8);
        bytes.resize(start, 0);
        bytes.extend_from_slice(part);
        start as u64
    };
    let runs_offset = append(map.runs().as_bytes());
    let sums_offset = append(sums.as_bytes());
    let state_offset = append(state);
    let header = SnapshotHeader {
        head: Head::new((MAGIC, VERSION), cid, bytes.len()),
        memory_bytes: map.memory_bytes(),
        runs_offset,
        runs_count: map.runs().len() as u64,
        sums_offset,
        sums_count: sums.len() as u64,
        state_offset,
        state_bytes: state.len() as u64,
    };
    bytes[..size_of::<SnapshotHeader>()].copy_from_slice(header.as_bytes());
    seal(&mut bytes);
    bytes
}

/// Makes the checksum of metadata right again that a test has changed.
#[doc(hidden)]
pub fn reseal(bytes: &mut [u8]) {
    seal(bytes);
}

impl Metadata {
    /// Reads and verifies the metadata of the image `cid`.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::Version`].
    pub fn parse(bytes: &[u8], cid: Cid) -> Result<Metadata, ImageError> {
        let damaged = |what| ImageError::Damaged { cid, what };
        let header: SnapshotHeader = checked(bytes, (MAGIC, VERSION), cid)?;
        let part = |offset: u64, count: u64, each: usize| {
            let end = offset.checked_add(count.checked_mul(each as u64)?)?;
            bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
        };
        let runs = part(header.runs_offset, header.runs_count, size_of::<Run>())
            .ok_or(damaged("its runs of pages lie outside of the metadata"))?;
        let runs = runs.chunks_exact(size_of::<Run>());
        let runs = runs.filter_map(|run| Run::read_from_bytes(run).ok()).collect();
        let map = PageMap::checked(header.memory_bytes, runs).map_err(damaged)?;
        if map.stored_bytes() / PAGE_BYTES != header.sums_count {
            return Err(damaged("its numbers of checksums and of pages differ"));
        }
        let sums = part(header.sums_offset, header.sums_count, size_of::<u32>())
            .ok_or(damaged("its checksums lie outside of the metadata"))?;
        let sums = sums.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        let state = part(header.state_offset, header.state_bytes, 1)
            .filter(|_| header.state_bytes <= MAX_STATE_BYTES)
            .ok_or(damaged("its state lies outside of the metadata"))?;
        Ok(Metadata { map, sums, state: state.to_vec() })
    }
}
