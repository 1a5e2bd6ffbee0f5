//! A process that is itself a clone: what of it is farfork's, and what its parent had there.
//!
//! ```text
//!  clone's mapping of its image ─► segment of that image ─► parent's region
//! ```
//! Memory that a clone maps from its image is anonymous memory or a file's to the program, and so
//! it is to clones of the clone. All of it is carried: what the clone has not touched is not
//! present in its page tables, but is there all the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_image::format::Image;
use farfork_image::model::{Backing, Region};
use farfork_image::tier;
use farfork_plan::window;
use farfork_pool::{ImageFile, Pool, source_of_copy};
use farfork_types::Cid;

use crate::error::CheckpointError;
use crate::maps::Mapping;

/// The file that a clone was made from.
#[derive(Clone)]
pub struct AncestorImage {
    /// Directory of the pool that it lies in.
    pub pool: PathBuf,
    /// It.
    pub file: Arc<ImageFile>,
}

/// The image that a clone was made from.
#[derive(Default)]
pub struct Ancestor {
    /// Its file; none for a process that has copies.
    pub image: Option<AncestorImage>,
    /// Device and inode of what the clone maps of it: the file, copies of it, or both. A place in all of
    /// them is the same.
    mapped: Vec<(u64, u64)>,
    /// Whether a policy has added something to the image's plan.
    has_overlay: bool,
    /// The regions of each of the image's processes.
    regions: Vec<Vec<Region>>,
    /// What lies in the file, by its offset there.
    segments: BTreeMap<u64, Placed>,
}

/// What lies somewhere in the file.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Whose memory it was.
    member: usize,
    address: u64,
    bytes: u64,
}

/// Whether a mapping shows an image of a pool, or the copy of one.
pub fn is_of_pool(mapping: &Mapping) -> bool {
    source(mapping).is_some_and(|(pool, _)| Pool::open(&pool).is_ok())
}

/// The pool and the image that a mapping shows by its name, itself or a copy.
fn source(mapping: &Mapping) -> Option<(PathBuf, Cid)> {
    source_of_copy(&mapping.name).or_else(|| {
        let name = mapping.name.strip_suffix(" (deleted)").unwrap_or(&mapping.name);
        let path = Path::new(name);
        let cid = path.file_name()?.to_str()?.parse().ok()?;
        Some((path.parent()?.parent()?.to_owned(), cid))
    })
}

/// Opens what a process maps.
fn opened(pid: i32, mapping: &Mapping) -> Result<File, CheckpointError> {
    let what = "the image that it maps";
    mapping.open(pid).map_err(|_| CheckpointError::Proc { pid, what })
}

/// The image of `pool` that a mapping shows, itself or a copy; none if it only looks so.
fn image_behind(
    pid: i32,
    pool: &Pool,
    cid: Cid,
    mapping: &Mapping,
) -> Result<Option<ImageFile>, CheckpointError> {
    let mapped = opened(pid, mapping)?;
    if source_of_copy(&mapping.name).is_none() {
        return Ok(pool.image_of(mapped, cid)?);
    }
    let original = pool.find(cid)?;
    Ok(pool.is_copy(&mapped, &original)?.then_some(original))
}

/// All files that are mapped and that are the image or copies of it.
fn files_of(
    pid: i32,
    pool: &Pool,
    image: &ImageFile,
    mappings: &[Mapping],
) -> Result<Vec<(u64, u64)>, CheckpointError> {
    let cid = image.id.cid;
    let (mut known, mut others) = (Vec::new(), Vec::new());
    for mapping in mappings {
        let is_new = !known.contains(&mapping.file) && !others.contains(&mapping.file);
        if !is_new || source(mapping).is_none_or(|(_, named)| named != cid) {
            continue;
        }
        let mapped = opened(pid, mapping)?;
        let is_it = match source_of_copy(&mapping.name) {
            Some(_) => pool.is_copy(&mapped, image)?,
            None => pool.image_of(mapped, cid)?.is_some(),
        };
        if is_it { known.push(mapping.file) } else { others.push(mapping.file) }
    }
    Ok(known)
}

/// The image, with what the process maps of the parts that lie on another node, and which file that is. A
/// process may have made a file that only looks like it. What it has there is its own memory, as if it had
/// written it.
fn with_far_file(
    pid: i32,
    image: ImageFile,
    mappings: &[Mapping],
    known: &[(u64, u64)],
) -> Result<(ImageFile, Option<(u64, u64)>), CheckpointError> {
    let Some(far) = image.far() else { return Ok((image, None)) };
    let node = far.source.clone();
    let is_far = |mapping: &&Mapping| {
        !known.contains(&mapping.file)
            && source_of_copy(&mapping.name).is_none()
            && source(mapping).is_some_and(|(_, named)| named == image.id.cid)
    };
    let Some(mapping) = mappings.iter().find(is_far) else { return Ok((image, None)) };
    let mapped = opened(pid, mapping)?;
    let whole = image.with_far_file(mapped);
    let whole =
        whole.map_err(|_| CheckpointError::Proc { pid, what: "the far parts that it maps" })?;
    tier::demand_same(&whole, &node)?;
    Ok((whole, Some(mapping.file)))
}

impl Ancestor {
    /// The ancestor of the process `pid` with these mappings, if it is a clone.
    pub fn find(pid: i32, mappings: &[Mapping]) -> Result<Option<Ancestor>, CheckpointError> {
        let Some(plan) = mappings.iter().find(|mapping| mapping.start == window::PLAN) else {
            return Ok(None);
        };
        let Some((path, cid)) = source(plan) else { return Ok(None) };
        let pool = Pool::open(&path)?;
        let Some(file) = image_behind(pid, &pool, cid, plan)? else { return Ok(None) };
        let mut mapped = files_of(pid, &pool, &file, mappings)?;
        let (file, far) = with_far_file(pid, file, mappings, &mapped)?;
        mapped.extend(far);
        let image = Image::read_from(&file)?;
        let (mut segments, mut regions) = (BTreeMap::new(), Vec::new());
        for (member, process) in image.model.members.into_iter().enumerate() {
            segments.extend(process.memory.stored.segments.iter().map(|segment| {
                let offset = segment.offset(segment.address);
                (offset, Placed { member, address: segment.address, bytes: segment.bytes })
            }));
            regions.push(process.memory.regions);
        }
        let has_overlay = mappings.iter().any(|mapping| mapping.start == window::OVERLAY);
        let image = Some(AncestorImage { pool: path, file: Arc::new(file) });
        Ok(Some(Ancestor { image, mapped, has_overlay, regions, segments }))
    }

    /// That of a clone's process which maps nothing of the image, because it got copies; none if `mappings` has
    /// nothing of farfork's.
    pub fn of_copies(mappings: &[Mapping]) -> Option<Ancestor> {
        let unknown = Ancestor::default();
        mappings.iter().any(|mapping| unknown.owns(mapping)).then_some(unknown)
    }

    /// Whether `mapping` is farfork's own: the restorer's text, the threads' first stacks, the plan.
    pub fn owns(&self, mapping: &Mapping) -> bool {
        mapping.start >= window::BASE && mapping.end <= window::END
    }

    /// Whether `mapping` shows the parent's image.
    pub fn backs(&self, mapping: &Mapping) -> bool {
        self.mapped.contains(&mapping.file)
    }

    /// Whether `mapping` shows the parent's image, and the clone's init supplies its pages. The
    /// program does not see the difference.
    pub fn serves(&self, mapping: &Mapping) -> bool {
        let is_supplied = mapping.has("ui") && !mapping.has("um") && !mapping.has("uw");
        self.has_overlay && self.backs(mapping) && is_supplied
    }

    /// `region`, which is mapped from `offset` of the image, as the parent had it: cut where the
    /// parent's regions were, each with its backing and what never changes in a region. Where farfork
    /// watches it, advice on huge pages is the parent's, too.
    pub fn regions(&self, region: &Region, offset: u64, is_watched: bool) -> Vec<Region> {
        let mut pieces: Vec<Region> = Vec::new();
        let mut at = region.start;
        while at < region.end {
            let piece = self.piece(region, at, offset + (at - region.start), is_watched);
            at = piece.end;
            match pieces.last_mut().filter(|last| continues(last, &piece)) {
                Some(last) => last.end = piece.end,
                None => pieces.push(piece),
            }
        }
        pieces
    }

    /// The piece from `at`, which lies at `offset` of the image, within one segment and one region.
    fn piece(&self, region: &Region, at: u64, offset: u64, is_watched: bool) -> Region {
        let whole = Region { start: at, backing: Backing::Anonymous, ..region.clone() };
        let segment = self.segments.range(..=offset).next_back();
        let inside = segment.filter(|(first, placed)| offset < *first + placed.bytes);
        let Some((first, placed)) = inside else {
            // Not the parent's: up to where something of it begins.
            let next = self.segments.range(offset..).next().map_or(u64::MAX, |(next, _)| *next);
            return Region { end: region.end.min(at.saturating_add(next - offset)), ..whole };
        };
        let end = region.end.min(at + (first + placed.bytes - offset));
        let whole = Region { end, ..whole };
        let original = placed.address + (offset - first);
        let regions = &self.regions[placed.member];
        let after = regions.partition_point(|known| known.end <= original);
        let Some(known) = regions.get(after) else { return whole };
        if original < known.start {
            // Between two of the parent's regions.
            return Region { end: end.min(at + (known.start - original)), ..whole };
        }
        let mut traits = region.traits;
        traits.no_reserve = known.traits.no_reserve;
        if is_watched {
            (traits.huge, traits.no_huge) = (known.traits.huge, known.traits.no_huge);
        }
        let end = end.min(at + (known.end - original));
        let backing = backing_from(&known.backing, original - known.start);
        Region { end, backing, traits, ..whole }
    }
}

fn backing_from(backing: &Backing, skipped: u64) -> Backing {
    match backing {
        Backing::PrivateFile(file, offset) => Backing::PrivateFile(file.clone(), offset + skipped),
        // Files and objects that are shared are never in the image.
        Backing::Anonymous | Backing::SharedFile { .. } | Backing::Object { .. } => {
            Backing::Anonymous
        }
    }
}

fn continues(last: &Region, next: &Region) -> bool {
    let length = last.end - last.start;
    last.traits == next.traits && backing_from(&last.backing, length) == next.backing
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::model::{FileStamp, RegionTraits};
    use farfork_types::CHUNK_BYTES;

    fn region(start: u64, end: u64, backing: Backing) -> Region {
        Region { start, end, prot: 3, backing, traits: RegionTraits::default() }
    }

    /// Two neighbouring windows whose chunks lie the other way round.
    fn ancestor() -> (Ancestor, Backing) {
        let c = CHUNK_BYTES;
        let file = Backing::PrivateFile(FileStamp::default(), 4096);
        let regions = vec![
            region(c, c + 8192, Backing::Anonymous),
            region(c + 8192, 2 * c + 4096, file.clone()),
            region(2 * c + 8192, 3 * c, Backing::Anonymous),
        ];
        let placed = |address| Placed { member: 1, address, bytes: c };
        let segments = BTreeMap::from([(70 * c, placed(c)), (60 * c, placed(2 * c))]);
        let other = vec![region(c, 3 * c, Backing::Anonymous)];
        let (mapped, has_overlay, regions) = (vec![(1, 2)], false, vec![other, regions]);
        let image = Some(some_image());
        (Ancestor { image, mapped, has_overlay, regions, segments }, file)
    }

    /// An image of a pool; nothing of it is read.
    fn some_image() -> AncestorImage {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::create(directory.path(), Pool::SMALLEST_BYTES).unwrap();
        let (cid, _held) = pool.begin(None).unwrap().publish().unwrap();
        let file = Arc::new(pool.find(cid).unwrap());
        AncestorImage { pool: directory.path().to_owned(), file }
    }

    fn ends(pieces: &[Region]) -> Vec<(u64, u64)> {
        pieces.iter().map(|piece| (piece.start, piece.end)).collect()
    }

    #[test]
    fn a_mapping_of_the_image_is_cut_where_the_parents_regions_were() {
        let (ancestor, file) = ancestor();
        let c = CHUNK_BYTES;
        let first = ancestor.regions(&region(c, 2 * c, Backing::Anonymous), 70 * c, false);
        assert_eq!(ends(&first), [(c, c + 8192), (c + 8192, 2 * c)]);
        assert_eq!((&first[0].backing, &first[1].backing), (&Backing::Anonymous, &file));
        // The rest of the file goes on in the next window, wherever that lies in the file.
        let second = ancestor.regions(&region(2 * c, 3 * c, Backing::Anonymous), 60 * c, false);
        assert_eq!(ends(&second), [(2 * c, 2 * c + 4096), (2 * c + 4096, 3 * c)]);
        let Backing::PrivateFile(_, offset) = second[0].backing else { unreachable!() };
        assert_eq!(offset, 4096 + c - 8192);
    }

    #[test]
    fn a_mapping_that_the_clone_has_moved_keeps_what_it_was() {
        let (ancestor, file) = ancestor();
        let at = 0x7000_0000_0000;
        let moved = region(at, at + 4096, Backing::Anonymous);
        let pieces = ancestor.regions(&moved, 70 * CHUNK_BYTES + 8192, false);
        assert_eq!((pieces.len(), &pieces[0].backing), (1, &file));
    }
}
