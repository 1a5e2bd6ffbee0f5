//! From the files of a monitor to a published image.
//!
//! The memory is read twice: once to find out what has to be stored, so that a pool without room is known
//! before anything is copied, and once to copy it.
//!
//! Firecracker writes a snapshot of what changed (`Diff`) as a memory file with a hole for each page that did not. On top of
//! its base it becomes an image that is whole by itself: the base may be removed.

use std::fs::{File, Metadata as FileMetadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use farfork_pool::{Held, ImageFile, ImageWriter, Pool};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};

use super::error::{MAX_STATE_BYTES, VmError};
use super::map::PageMap;
use super::metadata::{self, Metadata};
use super::scan::{Scanned, Windows};
use super::snapshot::Snapshot;
use super::state::Monitor;
use crate::header::{Kind, file_header, meta_offset};
use crate::layout::DATA_AT;

/// Called with what is being done, the bytes that are done, and all of them.
pub type Progress<'p> = &'p mut dyn FnMut(&'static str, u64, u64);

/// An image that others can see.
#[derive(Debug)]
pub struct Imported {
    /// Its id.
    pub cid: Cid,
    /// The proof that its writer lives.
    pub held: Held,
    /// Which monitor wrote the state.
    pub monitor: Monitor,
    /// Bytes of the guest's memory.
    pub raw_bytes: u64,
    /// Bytes of pages that are stored.
    pub stored_bytes: u64,
    /// How many of them are pages of the base.
    pub base_bytes: u64,
    /// Bytes of the pool that it takes.
    pub pool_bytes: u64,
}

/// A file of a monitor, open, as it was when it was opened.
struct Input {
    path: PathBuf,
    file: File,
    found: FileMetadata,
}

impl Input {
    fn open(path: &Path) -> Result<Input, VmError> {
        // Opening a pipe would wait for its writer.
        let found = std::fs::metadata(path).map_err(VmError::io("open", path))?;
        if !found.is_file() {
            return Err(VmError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(VmError::io("open", path))?;
        let found = file.metadata().map_err(VmError::io("look at", path))?;
        match found.len() {
            0 => Err(VmError::Empty { path: path.to_owned() }),
            _ => Ok(Input { path: path.to_owned(), file, found }),
        }
    }

    fn bytes(&self) -> u64 {
        self.found.len()
    }

    /// An error of reading: a file that has become shorter has changed.
    fn failed(&self, source: io::Error) -> VmError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => VmError::Changed { path: self.path.clone() },
            _ => VmError::io("read", &self.path)(source),
        }
    }

    /// Demands that holes show which pages are not in the file. Some file systems know them only in larger pieces (tmpfs with
    /// huge pages, ZFS), others report all of a file as data.
    fn demand_holes(&self, present: &Windows) -> Result<(), VmError> {
        let allocated_bytes = self.found.blocks() * 512;
        let are_known = self.found.blksize() <= PAGE_BYTES
            && present.count_pages() * PAGE_BYTES <= allocated_bytes;
        match are_known {
            true => Ok(()),
            false => Err(VmError::HolesUnknown { path: self.path.clone() }),
        }
    }

    fn demand_unchanged(&self) -> Result<(), VmError> {
        let now = self.file.metadata().map_err(VmError::io("look at", &self.path))?;
        let stamp = |of: &FileMetadata| (of.len(), of.mtime(), of.mtime_nsec());
        match stamp(&now) == stamp(&self.found) {
            true => Ok(()),
            false => Err(VmError::Changed { path: self.path.clone() }),
        }
    }
}

/// A snapshot that was imported earlier, and its file.
pub type Base<'b> = (&'b Snapshot, &'b ImageFile);

/// Makes an image of the files that a monitor wrote: its state and the guest's memory. With a base, pages that are holes
/// of the memory file are those of the base. The image counts towards what `user` may have. It is there at once or not
/// at all.
///
/// # Errors
/// [`VmError`]; nothing is left in the pool.
pub fn import(
    pool: &Pool,
    user: Option<&str>,
    snapshot: &Path,
    memory: &Path,
    base: Option<Base<'_>>,
    progress: Progress<'_>,
) -> Result<Imported, VmError> {
    let (snapshot, memory) = (Input::open(snapshot)?, Input::open(memory)?);
    let (state, monitor) = read_state(&snapshot)?;
    let raw_bytes = memory.bytes();
    if !raw_bytes.is_multiple_of(PAGE_BYTES) {
        return Err(VmError::Unaligned { path: memory.path.clone(), bytes: raw_bytes });
    }
    let scanned = &mut |done| progress("reading", done, raw_bytes);
    let scanned = Windows::scan(&memory.file, raw_bytes, scanned);
    let pages = Pages::of(&memory, scanned.map_err(|error| memory.failed(error))?, base)?;
    let map = PageMap::arrange(&pages.stored, &[]);
    let mut writer = pool.begin(user)?;
    let meta_bytes = reserve(&mut writer, &map, state.len() as u64)?;
    let copied = &mut |done, all| progress("importing", done, all);
    let sums = copy(&mut writer, &pages, &map, copied)?;
    memory.demand_unchanged()?;
    snapshot.demand_unchanged()?;
    let (stored_bytes, base_bytes) = (map.stored_bytes(), pages.base_bytes);
    seal(&mut writer, Metadata { map, sums, state }, meta_bytes)?;
    let pool_bytes = writer.taken()?;
    let (cid, held) = writer.publish()?;
    Ok(Imported { cid, held, monitor, raw_bytes, stored_bytes, base_bytes, pool_bytes })
}

fn read_state(snapshot: &Input) -> Result<(Vec<u8>, Monitor), VmError> {
    let (path, bytes) = (&snapshot.path, snapshot.bytes());
    if bytes > MAX_STATE_BYTES {
        return Err(VmError::StateTooLarge { path: path.clone(), bytes });
    }
    let mut state = Vec::with_capacity(bytes as usize);
    let mut limited = (&snapshot.file).take(bytes);
    limited.read_to_end(&mut state).map_err(|error| snapshot.failed(error))?;
    if state.len() as u64 != bytes {
        return Err(VmError::Changed { path: path.clone() });
    }
    let monitor = Monitor::demand(&state, path)?;
    Ok((state, monitor))
}

/// Takes room for all that will be written, and has it cleared; returns the bytes of the metadata.
pub(super) fn reserve(
    writer: &mut ImageWriter<'_>,
    map: &PageMap,
    state: u64,
) -> Result<u64, VmError> {
    let pages = map.stored_bytes() / PAGE_BYTES;
    let meta_bytes = metadata::encoded_bytes(map.runs().len(), pages, state);
    let meta_end = meta_offset(meta_bytes, map.chunks()) + meta_bytes;
    writer.reserve(meta_end.max(DATA_AT + map.chunks() * CHUNK_BYTES))?;
    writer.populate();
    Ok(meta_bytes)
}

/// Where the pages of a memory come from.
struct Pages<'a> {
    memory: &'a Input,
    /// Pages that are not zeros, wherever they come from.
    stored: Windows,
    /// The base, and the pages that are not its.
    base: Option<(Base<'a>, Windows)>,
    /// Bytes of those that are the base's.
    base_bytes: u64,
}

impl<'a> Pages<'a> {
    fn of(
        memory: &'a Input,
        scanned: Scanned,
        base: Option<Base<'a>>,
    ) -> Result<Pages<'a>, VmError> {
        let Scanned { mut stored, present } = scanned;
        let Some((snapshot, file)) = base else {
            return Ok(Pages { memory, stored, base: None, base_bytes: 0 });
        };
        let changed = stored.count_pages();
        memory.demand_holes(&present)?;
        let (bytes, base_bytes) = (memory.bytes(), snapshot.map.memory_bytes());
        if bytes != base_bytes {
            return Err(VmError::OtherSize { path: memory.path.clone(), bytes, base_bytes });
        }
        for run in snapshot.map.runs() {
            let pages = run.offset / PAGE_BYTES..(run.offset + run.bytes) / PAGE_BYTES;
            pages.filter(|page| !present.has(*page)).for_each(|page| stored.add(page));
        }
        let base_bytes = (stored.count_pages() - changed) * PAGE_BYTES;
        Ok(Pages { memory, stored, base: Some(((snapshot, file), present)), base_bytes })
    }

    /// Reads pages from `offset` on.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), VmError> {
        let from_memory = |to: &mut [u8], offset| {
            self.memory.file.read_exact_at(to, offset).map_err(|error| self.memory.failed(error))
        };
        let Some(((snapshot, file), present)) = &self.base else {
            return from_memory(to, offset);
        };
        let is_present = |at: usize| present.has((offset + at as u64) / PAGE_BYTES);
        let (mut start, page) = (0, PAGE_BYTES as usize);
        while start < to.len() {
            let is_changed = is_present(start);
            let pages = (start + page..to.len()).step_by(page);
            let end = pages.take_while(|at| is_present(*at) == is_changed).last();
            let end = end.map_or(start + page, |last| last + page);
            let (part, at) = (&mut to[start..end], offset + start as u64);
            match is_changed {
                true => from_memory(part, at)?,
                false => snapshot.read_memory(file, at, part)?,
            }
            start = end;
        }
        Ok(())
    }
}

/// Copies all runs; returns the checksums of their pages in the order of places.
fn copy(
    writer: &mut ImageWriter<'_>,
    pages: &Pages<'_>,
    map: &PageMap,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<u32>, VmError> {
    let mut sums = vec![0; (map.stored_bytes() / PAGE_BYTES) as usize];
    let mut done = 0;
    for run in map.runs() {
        for step in (0..run.bytes).step_by(CHUNK_BYTES as usize) {
            let bytes = (run.bytes - step).min(CHUNK_BYTES);
            let place = run.place + step;
            let to = writer.bytes_mut(DATA_AT + place..DATA_AT + place + bytes);
            pages.read(run.offset + step, to)?;
            let first = (place / PAGE_BYTES) as usize;
            for (sum, page) in sums[first..].iter_mut().zip(to.chunks(PAGE_BYTES as usize)) {
                *sum = crc32c::crc32c(page);
            }
            done += bytes;
            progress(done, map.stored_bytes());
        }
    }
    Ok(sums)
}

/// Writes metadata and header, and gives back what is left over.
pub(super) fn seal(
    writer: &mut ImageWriter<'_>,
    metadata: Metadata,
    meta_bytes: u64,
) -> Result<(), VmError> {
    let (cid, map) = (writer.cid(), &metadata.map);
    let encoded = metadata::encode(&metadata, cid);
    debug_assert_eq!(encoded.len() as u64, meta_bytes);
    let meta_at = meta_offset(meta_bytes, map.chunks());
    let meta = meta_at..meta_at + meta_bytes;
    writer.bytes_mut(meta.clone()).copy_from_slice(&encoded);
    let mut kept = vec![0..PAGE_BYTES, meta];
    if map.stored_bytes() > 0 {
        kept.push(DATA_AT..DATA_AT + map.stored_bytes());
    }
    kept.sort_by_key(|part| part.start);
    let file_bytes = ImageWriter::file_bytes(&kept);
    let header = file_header(cid, Kind::VirtualMachine, meta_bytes, map.chunks(), file_bytes);
    writer.bytes_mut(0..header.len() as u64).copy_from_slice(&header);
    Ok(writer.keep(&kept)?)
}
