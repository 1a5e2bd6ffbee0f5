//! Images of which chunks lie on another node, and copies of images on other nodes.
//!
//! ```text
//!  before   header  metadata  │ chunk 0 │ chunk 1 │ chunk 2 │
//!  after    header  metadata  │ chunk 0 │ (hole)  │ (hole)  │  table: 1 and 2 lie far
//!           + pointer
//! ```
//! The file is written anew and takes the old one's place in one step. Invariants:
//! 1. No chunk leaves the pool before all its bytes were read from the other node and found equal.
//! 2. A chunk lies in the pool or far, never partly: it is one huge page, and one checksum.
//! 3. Header, metadata and plan stay in the pool: reading an image needs no other node.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use farfork_pool::{FarParts, Held, ImageFile, Pool};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES, TlsFiles};

use crate::archive::Progress;
use crate::chunked::Chunked;
use crate::error::ImageError;
use crate::format::{chunk_offset, far_chunks};
use crate::header::FileHeader;
use crate::holds;

/// Another node, as an image in the pool names it.
#[derive(Clone, Debug)]
pub struct FarNode {
    /// Its address and port.
    pub address: String,
    /// The file of the key that this node needs.
    pub key: std::path::PathBuf,
    /// The files that prove this node to it beside the key; none without TLS.
    pub tls: Option<TlsFiles>,
    /// Limit of a read from there, in milliseconds.
    pub deadline_ms: u64,
}

/// Demands that the far file of `file` is the same image: as long, with the same header and metadata, which
/// have the checksums of all its chunks.
///
/// # Errors
/// [`ImageError::OtherFar`]; [`ImageError::Pool`] if one of them cannot be read.
pub fn demand_same(file: &ImageFile, node: &str) -> Result<(), ImageError> {
    let (header, _) = FileHeader::read(file)?;
    let metadata = header.meta_offset..header.meta_offset + header.meta_bytes;
    let far = far_file(file)?.metadata().map_err(|source| unreadable(file.id.cid, source))?;
    let differs = |what| ImageError::OtherFar { cid: file.id.cid, node: node.to_owned(), what };
    if far.len() != file.id.bytes {
        return Err(differs("its length"));
    }
    for (what, range) in
        [("its header", 0..size_of::<FileHeader>() as u64), ("its metadata", metadata)]
    {
        let own = file.read(range.start, range.end - range.start)?;
        if own != read_far(file, &range)? {
            return Err(differs(what));
        }
    }
    Ok(())
}

/// Refuses a node that serves the very file that is about to be replaced: its bytes would be lost. That file
/// was changed at the same nanosecond.
fn demand_other_file(file: &ImageFile, node: &str) -> Result<(), ImageError> {
    let cid = file.id.cid;
    let changed = |file: &std::fs::File| {
        let found = file.metadata().map_err(|source| unreadable(cid, source))?;
        Ok::<_, ImageError>((found.mtime(), found.mtime_nsec()))
    };
    let is_other = file.far().is_some() || changed(file.file())? != changed(far_file(file)?)?;
    let same = || ImageError::SameFile { cid, node: node.to_owned() };
    if is_other { Ok(()) } else { Err(same()) }
}

fn far_file(file: &ImageFile) -> Result<&std::fs::File, ImageError> {
    let missing = || std::io::Error::other("the other node's image is not open");
    file.far_file().ok_or_else(|| unreadable(file.id.cid, missing()))
}

fn unreadable(cid: Cid, source: std::io::Error) -> ImageError {
    farfork_pool::PoolError::ReadImage { cid, source }.into()
}

fn read_far(file: &ImageFile, range: &Range<u64>) -> Result<Vec<u8>, ImageError> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let read = far_file(file)?.read_exact_at(&mut bytes, range.start);
    read.map_err(|source| unreadable(file.id.cid, source))?;
    Ok(bytes)
}

/// The place of a chunk in the file, whose last chunk may be a part of one.
fn place_of(image: &Chunked, chunk: usize) -> Range<u64> {
    let start = chunk_offset(chunk);
    start..(start + CHUNK_BYTES).min(image.id().bytes)
}

/// Writes the image in `file` anew, so that exactly the chunks of `far` lie at `node`: others come back. The
/// image of the node is the [far file](ImageFile::with_far_file) of `file`. Clones that run go on with what
/// they map. Without far chunks the image is whole again, and needs no node.
///
/// # Errors
/// [`ImageError::OtherFar`]: the node has other bytes; [`ImageError::Held`]: another node counts on these
/// bytes; [`ImageError::Damaged`]; [`ImageError::Pool`]. The
/// image stays as it was.
pub fn retier(
    pool: &Pool,
    file: &ImageFile,
    far: &BTreeSet<usize>,
    node: &FarNode,
    progress: Progress<'_>,
) -> Result<(), ImageError> {
    // A node that serves this pool's own file has just held it for this pool: that is refused below.
    let own = holds::holder(pool);
    let demand_unheld = || -> Result<(), ImageError> {
        let holds = holds::of(pool, file.id.cid)?;
        match holds.into_iter().find(|hold| !far.is_empty() && hold.tag() != own) {
            Some(hold) => Err(ImageError::Held { cid: file.id.cid, hold }),
            None => Ok(()),
        }
    };
    demand_unheld()?;
    let image = Chunked::read_from(file)?;
    let (metadata, image_bytes) = (image.metadata(file)?, image.id().bytes);
    demand_same(file, &node.address)?;
    demand_other_file(file, &node.address)?;
    verify(file, &image, far, node, progress)?;
    let near: Vec<Range<u64>> =
        image.kept(metadata).into_iter().flat_map(|range| outside(&image, range, far)).collect();
    let mut writer = pool.begin_as(image.id().cid, None)?;
    let parts = side_by_side(far.iter().map(|chunk| place_of(&image, *chunk)));
    // Room for the table: 16 bytes for each part, and the paths.
    let table_room = align_table(parts.len());
    let end = image_bytes..image_bytes + table_room;
    let reserved = match parts.is_empty() {
        true => near.clone(),
        false => near.iter().cloned().chain([end]).collect(),
    };
    let bytes = reserved.iter().map(|range| range.end).max().unwrap_or(0).max(image_bytes);
    writer.reserve_parts(bytes, &reserved)?;
    for range in &near {
        file.read_to(range.start, writer.bytes_mut(range.clone()))?;
    }
    // What an earlier table left.
    writer.bytes_mut(size_of::<FileHeader>() as u64..PAGE_BYTES).fill(0);
    let mut kept = near;
    if !parts.is_empty() {
        let FarNode { address, key, tls, deadline_ms } = node.clone();
        let table = FarParts { source: address, key, tls, deadline_ms, parts };
        kept.push(writer.put_far_parts(&table, image_bytes));
    }
    writer.keep_until(&kept, image_bytes)?;
    let _no_new_hold = pool.lock_names()?;
    demand_unheld()?;
    Ok(writer.replace()?)
}

fn align_table(parts: usize) -> u64 {
    farfork_types::align_up(parts as u64 * 16 + 6 * PAGE_BYTES, PAGE_BYTES)
}

/// Verifies the checksum of each chunk that stays or comes, and that each that goes is there.
fn verify(
    file: &ImageFile,
    image: &Chunked,
    far: &BTreeSet<usize>,
    node: &FarNode,
    progress: Progress<'_>,
) -> Result<(), ImageError> {
    let (cid, all) = (image.id().cid, image.chunks());
    let mut verified = BTreeSet::new();
    if file.far().is_some_and(|before| before.source == node.address) {
        verified = far_chunks(file);
    }
    let mut own = vec![0; CHUNK_BYTES as usize];
    for chunk in 0..all {
        if !(far.contains(&chunk) && verified.contains(&chunk)) {
            if !image.read_chunk(file, chunk, &mut own)? {
                let what = "a chunk does not match its checksum";
                return Err(ImageError::Damaged { cid, what });
            }
            let place = place_of(image, chunk);
            let bytes = (place.end - place.start) as usize;
            if far.contains(&chunk) && read_far(file, &place)? != own[..bytes] {
                let node = node.address.clone();
                return Err(ImageError::OtherFar { cid, node, what: "a chunk" });
            }
        }
        progress(chunk as u64 + 1, all as u64);
    }
    Ok(())
}

/// What of a range lies in none of these chunks.
fn outside(image: &Chunked, range: Range<u64>, far: &BTreeSet<usize>) -> Vec<Range<u64>> {
    let mut left = vec![range];
    for place in far.iter().map(|chunk| place_of(image, *chunk)) {
        left = left
            .into_iter()
            .flat_map(|range| {
                [range.start..range.end.min(place.start), range.start.max(place.end)..range.end]
            })
            .filter(|range| range.start < range.end)
            .collect();
    }
    left
}

/// Ranges in order, those that touch as one.
fn side_by_side(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Copies the image in `from`, of whatever pool, to `pool`, with the same id and the same bytes.
///
/// # Errors
/// [`ImageError::Damaged`]: a chunk does not match its checksum; [`ImageError::Pool`]: there is no room, or
/// the pool has the image. Nothing stays then.
pub fn pull(
    pool: &Pool,
    user: Option<&str>,
    from: &ImageFile,
    progress: Progress<'_>,
) -> Result<(Cid, Held), ImageError> {
    let image = Chunked::read_from(from)?;
    let (cid, all) = (image.id().cid, image.chunks());
    let mut writer = pool.begin_as(cid, user)?;
    writer.reserve(image.id().bytes)?;
    let kept = image.kept(image.metadata(from)?);
    for range in &kept {
        from.read_to(range.start, writer.bytes_mut(range.clone()))?;
    }
    // Of the header's page only the header is the image's.
    writer.bytes_mut(size_of::<FileHeader>() as u64..PAGE_BYTES).fill(0);
    for chunk in 0..all {
        let place = chunk_offset(chunk);
        if !image.is_sound(chunk, writer.bytes_mut(place..place + CHUNK_BYTES)) {
            return Err(ImageError::Damaged { cid, what: "a chunk does not match its checksum" });
        }
        progress(chunk as u64 + 1, all as u64);
    }
    writer.keep_until(&kept, image.id().bytes)?;
    Ok(writer.publish()?)
}
