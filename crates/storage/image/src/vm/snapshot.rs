//! A published snapshot, read and checked.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use farfork_pool::{FarParts, ImageFile, ImageId, Pool};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};
use serde::Serialize;

use super::map::{Extent, PageMap};
use super::metadata::Metadata;
use super::state::Monitor;
use crate::error::ImageError;
use crate::format::far_chunks;
use crate::header::{FileHeader, Kind};
use crate::layout::DATA_AT;

/// What a snapshot takes. All numbers are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// The guest's memory.
    pub raw_bytes: u64,
    /// Pages of zeros, which are not stored.
    pub zero_bytes: u64,
    /// Stored pages that are known to be needed early.
    pub hot_bytes: u64,
    /// Stored pages of which that is not known.
    pub cold_bytes: u64,
    /// Stored pages that the pool has once for this and other snapshots: none in this version of the format, in which each
    /// snapshot has copies of its own.
    pub shared_bytes: u64,
    /// What the image takes in the pool: pages, metadata, and the rest of its last pages.
    pub pool_bytes: u64,
    /// What it takes in far memory.
    pub far_bytes: u64,
}

/// A snapshot of a virtual machine in the pool, whose metadata was verified.
#[derive(Debug)]
pub struct Snapshot {
    /// Which file it is.
    pub id: ImageId,
    /// Where the pages of the guest's memory lie.
    pub map: PageMap,
    /// The monitor's state file.
    pub state: Vec<u8>,
    /// The checksum of each stored page, by places.
    pub(super) sums: Vec<u32>,
}

impl Snapshot {
    /// Reads the snapshot `cid` and verifies its metadata.
    ///
    /// # Errors
    /// As [`read_from`](Snapshot::read_from).
    pub fn read(pool: &Pool, cid: Cid) -> Result<Snapshot, ImageError> {
        Snapshot::read_from(&pool.find(cid)?)
    }

    /// Reads the snapshot in `file` and verifies its metadata.
    ///
    /// # Errors
    /// [`ImageError::IsProcesses`], [`ImageError::Damaged`], [`ImageError::Version`],
    /// [`ImageError::Pool`].
    pub fn read_from(file: &ImageFile) -> Result<Snapshot, ImageError> {
        let cid = file.id.cid;
        let header = FileHeader::read_of(file, Kind::VirtualMachine)?;
        let bytes = file.read(header.meta_offset, header.meta_bytes)?;
        let Metadata { map, sums, state } = Metadata::parse(&bytes, cid)?;
        if header.data_chunks != map.chunks() {
            let what = "its number of chunks does not match its pages";
            return Err(ImageError::Damaged { cid, what });
        }
        if DATA_AT + map.stored_bytes() > file.id.bytes && map.stored_bytes() > 0 {
            return Err(ImageError::Damaged { cid, what: "its file ends before its data" });
        }
        Ok(Snapshot { id: file.id, map, state, sums })
    }

    /// Which monitor wrote the state.
    pub fn monitor(&self) -> Monitor {
        Monitor::of(&self.state)
    }

    /// Reads stored pages from `place` on, which lie in one run, and verifies the checksum of each.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::Pool`].
    pub fn read_pages(
        &self,
        file: &ImageFile,
        place: u64,
        to: &mut [u8],
    ) -> Result<(), ImageError> {
        file.read_to(DATA_AT + place, to)?;
        match self.is_sound(place, to) {
            true => Ok(()),
            false => {
                let what = "a page of its memory does not match its checksum";
                Err(ImageError::Damaged { cid: self.id.cid, what })
            }
        }
    }

    /// Whether the bytes of stored pages from `place` on match their checksums. Bytes after the last stored page
    /// have none.
    pub fn is_sound(&self, place: u64, bytes: &[u8]) -> bool {
        let sums = &self.sums[(place / PAGE_BYTES) as usize..];
        let mut pages = bytes.chunks(PAGE_BYTES as usize).zip(sums);
        pages.all(|(page, sum)| crc32c::crc32c(page) == *sum)
    }

    /// The chunks that have no page of `hot`, where page n of the memory is hot if bit n % 64 of word n / 64 is
    /// set.
    pub fn cold_chunks(&self, hot: &[u64]) -> BTreeSet<usize> {
        let mut cold: BTreeSet<usize> = (0..self.map.chunks() as usize).collect();
        for run in self.map.runs() {
            for step in (0..run.bytes).step_by(PAGE_BYTES as usize) {
                if is_set(hot, (run.offset + step) / PAGE_BYTES) {
                    cold.remove(&(((run.place + step) / CHUNK_BYTES) as usize));
                }
            }
        }
        cold
    }

    /// Reads the guest's memory from `offset` on, pages of zeros too. Both ends lie in the memory, on pages.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::Pool`].
    pub fn read_memory(
        &self,
        file: &ImageFile,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), ImageError> {
        let (mut at, mut rest) = (offset, to);
        while !rest.is_empty() {
            let extent = self.map.at(at);
            let bytes = (extent.bytes() as usize).min(rest.len());
            let (part, more) = rest.split_at_mut(bytes);
            match extent {
                Extent::Zeros(_) => part.fill(0),
                Extent::Stored { place, .. } => self.read_pages(file, place, part)?,
            }
            at += bytes as u64;
            rest = more;
        }
        Ok(())
    }

    /// Verifies the checksum of every stored page; the numbers of the chunks that have others. Chunks that lie
    /// on another node are left out, unless `file` has a [far file](ImageFile::with_far_file).
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn damaged_chunks(&self, file: &ImageFile) -> Result<Vec<usize>, ImageError> {
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        let mut damaged = Vec::new();
        let far = if file.far_file().is_none() { far_chunks(file) } else { BTreeSet::new() };
        for chunk in (0..self.map.chunks()).filter(|chunk| !far.contains(&(*chunk as usize))) {
            let place = chunk * CHUNK_BYTES;
            let bytes = (self.map.stored_bytes() - place).min(CHUNK_BYTES) as usize;
            match self.read_pages(file, place, &mut buffer[..bytes]) {
                Ok(()) => {}
                Err(ImageError::Damaged { .. }) => damaged.push(chunk as usize),
                Err(error) => return Err(error),
            }
        }
        Ok(damaged)
    }

    /// What it takes; page n of the memory is hot if bit n % 64 of word n / 64 of `hot` is set.
    ///
    /// # Errors
    /// [`ImageError::Pool`].
    pub fn footprint(&self, file: &ImageFile, hot: &[u64]) -> Result<Footprint, ImageError> {
        let cid = self.id.cid;
        let found = file.file().metadata();
        let found = found.map_err(|source| farfork_pool::PoolError::ReadImage { cid, source })?;
        let (raw_bytes, stored) = (self.map.memory_bytes(), self.map.stored_bytes());
        let is_hot = |page: &u64| is_set(hot, *page);
        let pages = self.map.runs().iter().map(|run| {
            (run.offset / PAGE_BYTES..(run.offset + run.bytes) / PAGE_BYTES).filter(is_hot).count()
        });
        let hot_bytes = pages.sum::<usize>() as u64 * PAGE_BYTES;
        Ok(Footprint {
            raw_bytes,
            zero_bytes: raw_bytes - stored,
            hot_bytes,
            cold_bytes: stored - hot_bytes,
            pool_bytes: found.blocks() * 512,
            far_bytes: file.far().map_or(0, FarParts::bytes),
            ..Footprint::default()
        })
    }
}

fn is_set(bits: &[u64], page: u64) -> bool {
    bits.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
}
