//! Where the data of a seed come from.
//!
//! ```text
//!  page of the process      inherited by a fork       else
//!  its own                  in the shadow             copied
//!  its image's              in the image that the process is a clone of, where it has always been
//! ```

use farfork_image::model::{Region, Segment};

use crate::collect::{Collected, Pages};
use crate::copy::{self, placed};
use crate::error::CheckpointError;
use crate::image_pages::ImageBackedPages;
use crate::runs::Run;

/// Part of an image's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset in the chunks, the first of which begins at 0.
    pub place: u64,
    /// Length.
    pub bytes: u64,
    /// Where it comes from.
    pub source: PartSource,
}

/// Where the bytes of a [`Part`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartSource {
    /// At this address of the shadow.
    Shadow(u64),
    /// At this offset of [`Prepared::copied`](super::Prepared::copied).
    Copied(u64),
    /// At this offset of the [image](super::Prepared::ancestor) that the process is a clone of: it has never
    /// written there.
    Ancestor(u64),
}

/// Whether a fork has the content of a region.
pub fn is_inherited(region: &Region) -> bool {
    let traits = region.traits;
    // Of huge pages that were set aside there may be none left when one has to be copied.
    !traits.dont_fork && !traits.wipe_on_fork && traits.page_shift == 0
}

/// Where the data come from; copies what the shadow does not have.
pub fn parts(
    collected: &Collected,
    pages: &Pages,
) -> Result<(Vec<Part>, Vec<u8>), CheckpointError> {
    let (mut parts, mut copied) = (Vec::new(), Vec::new());
    let memory = &collected.model.members[pages.member].memory;
    for region in &memory.regions {
        let own = within(&pages.runs, region);
        for (start, end, at) in placed(&own, &memory.stored.segments) {
            for ((from, to), in_image) in pages.image_pages.pieces(start, end) {
                let (place, bytes) = (at as u64 + (from - start), to - from);
                let source = match in_image {
                    Some(offset) => PartSource::Ancestor(offset),
                    None if is_inherited(region) => PartSource::Shadow(from),
                    None => PartSource::Copied(copy_of(pages.pid, from, bytes, &mut copied)?),
                };
                parts.push(Part { place, bytes, source });
            }
        }
    }
    parts.extend(content(collected, pages.pid, &mut copied)?);
    parts.sort_by_key(|part| part.place);
    Ok((joined(parts), copied))
}

/// Copies memory of a process; where it lies in `copied`.
fn copy_of(pid: i32, from: u64, bytes: u64, copied: &mut Vec<u8>) -> Result<u64, CheckpointError> {
    let at = copied.len();
    copied.resize(at + bytes as usize, 0);
    let (mem, nothing) = (copy::open(pid)?, ImageBackedPages::default());
    copy::read(pid, &mem, &nothing, from, &mut copied[at..])?;
    Ok(at as u64)
}

/// Copies the content of shared objects.
fn content(
    collected: &Collected,
    pid: i32,
    copied: &mut Vec<u8>,
) -> Result<Option<Part>, CheckpointError> {
    let segments = &collected.model.content.segments;
    let Some(place) = segments.iter().map(|segment| segment.place).min() else { return Ok(None) };
    let end = segments.iter().map(|segment| segment.place + segment.bytes).max().unwrap_or(place);
    let moved: Vec<Segment> = segments
        .iter()
        .map(|segment| Segment { place: segment.place - place, ..*segment })
        .collect();
    let (from, bytes) = (copied.len(), end - place);
    copied.resize(from + bytes as usize, 0);
    collected.shared.copy(pid, &moved, &mut copied[from..])?;
    Ok(Some(Part { place, bytes, source: PartSource::Copied(from as u64) }))
}

/// What of sorted `runs` lies in a region.
fn within(runs: &[Run], region: &Region) -> Vec<Run> {
    let first = runs.partition_point(|run| run.1 <= region.start);
    let inside = runs[first..].iter().take_while(|run| run.0 < region.end);
    inside.map(|run| (run.0.max(region.start), run.1.min(region.end))).collect()
}

/// Makes one part of neighbours that are neighbours where they come from.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.goes_on_with(&part) => last.bytes += part.bytes,
            _ => joined.push(part),
        }
    }
    joined
}

impl Part {
    fn goes_on_with(&self, next: &Part) -> bool {
        let continues = match (self.source, next.source) {
            (PartSource::Shadow(here), PartSource::Shadow(there))
            | (PartSource::Ancestor(here), PartSource::Ancestor(there))
            | (PartSource::Copied(here), PartSource::Copied(there)) => here + self.bytes == there,
            _ => false,
        };
        continues && self.place + self.bytes == next.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_both_places_are_one_part() {
        let part = |place, source| Part { place, bytes: 4096, source };
        use PartSource::{Ancestor, Copied, Shadow};
        let parts = vec![
            part(0, Shadow(0x10000)),
            part(4096, Shadow(0x11000)),
            part(8192, Copied(0)),
            part(16384, Copied(4096)),
            part(20480, Ancestor(4096)),
            part(24576, Ancestor(8192)),
            part(28672, Shadow(8192 + 4096)),
        ];
        let joined = joined(parts);
        assert_eq!(joined[0], Part { place: 0, bytes: 8192, source: Shadow(0x10000) });
        assert_eq!(joined.len(), 5);
        assert_eq!(joined[3], Part { place: 20480, bytes: 8192, source: Ancestor(4096) });
    }
}
