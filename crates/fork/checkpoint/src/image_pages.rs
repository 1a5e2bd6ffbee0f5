//! Pages that a clone has in common with its image, where a read by farfork would show.
//!
//! To read them from the process would map them there. A profile would then count them as accessed
//! by the program; a clone whose pages are supplied one by one would get copies of all. They are
//! read from the image that the clone maps.

use std::fs::File;

use farfork_sys::memory::{PAGE_FILE, pages_with_content};

use crate::ancestor::{Ancestor, AncestorImage};
use crate::error::{CheckpointError, doing};
use crate::maps::Mapping;
use crate::memory::is_profiled;
use crate::runs::Run;

/// A run of a process's memory, and where in the image it is mapped from, if it is.
pub type Piece = (Run, Option<u64>);

/// Where a clone has pages in common with its image.
#[derive(Default)]
pub struct ImageBackedPages {
    image: Option<AncestorImage>,
    /// First address, address after the last, offset in the image; in address order.
    runs: Vec<(u64, u64, u64)>,
}

/// Finds the pages of a stopped process that it has in common with its image.
pub type FindImagePages =
    fn(i32, &[Mapping], Option<&Ancestor>) -> Result<ImageBackedPages, CheckpointError>;

impl ImageBackedPages {
    /// Those of a stopped process in mappings that are profiled, or whose pages are supplied one by one.
    pub fn find(
        pid: i32,
        mappings: &[Mapping],
        ancestor: Option<&Ancestor>,
    ) -> Result<ImageBackedPages, CheckpointError> {
        let Some(ancestor) = ancestor else { return Ok(ImageBackedPages::default()) };
        ImageBackedPages::of(pid, mappings, ancestor, |mapping| {
            ancestor.serves(mapping) || ancestor.backs(mapping) && is_profiled(pid, mapping)
        })
    }

    /// All of a stopped process.
    pub fn find_all(
        pid: i32,
        mappings: &[Mapping],
        ancestor: Option<&Ancestor>,
    ) -> Result<ImageBackedPages, CheckpointError> {
        let Some(ancestor) = ancestor else { return Ok(ImageBackedPages::default()) };
        ImageBackedPages::of(pid, mappings, ancestor, |mapping| ancestor.backs(mapping))
    }

    fn of(
        pid: i32,
        mappings: &[Mapping],
        ancestor: &Ancestor,
        is_it: impl Fn(&Mapping) -> bool,
    ) -> Result<ImageBackedPages, CheckpointError> {
        let mut found = mappings.iter().filter(|mapping| is_it(mapping)).peekable();
        if found.peek().is_none() {
            return Ok(ImageBackedPages::default());
        }
        let mut image_pages = ImageBackedPages { image: ancestor.image.clone(), runs: Vec::new() };
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))
            .map_err(|_| CheckpointError::Proc { pid, what: "the page map" })?;
        for mapping in found {
            let pages = pages_with_content(&pagemap, mapping.start, mapping.end)
                .map_err(doing(pid, "find the pages in use (PAGEMAP_SCAN, Linux 6.7)"))?;
            let own = pages.into_iter().filter(|run| run.categories & PAGE_FILE == 0);
            image_pages.add(mapping, own.map(|run| (run.start, run.end)));
        }
        Ok(image_pages)
    }

    /// All of a mapping but the pages that are the process's own.
    fn add(&mut self, mapping: &Mapping, own: impl Iterator<Item = Run>) {
        let mut at = mapping.start;
        for (start, end) in own.chain([(mapping.end, mapping.end)]) {
            if at < start {
                self.runs.push((at, start, mapping.offset + (at - mapping.start)));
            }
            at = end;
        }
    }

    /// The image, if the process has pages in common with it.
    pub fn image(&self) -> Option<&AncestorImage> {
        self.image.as_ref()
    }

    /// Reads what the image has at `offset`.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), CheckpointError> {
        match &self.image {
            Some(image) => Ok(image.file.read_to(offset, to)?),
            None => Ok(()),
        }
    }

    /// The pieces of `start..end`, and where the image has each.
    pub fn pieces(&self, start: u64, end: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = start;
        let first = self.runs.partition_point(|run| run.1 <= start);
        for (from, to, offset) in self.runs[first..].iter().take_while(|run| run.0 < end) {
            let (from, to, offset) =
                (start.max(*from), end.min(*to), offset + (start.max(*from) - from));
            pieces.extend((at < from).then_some(((at, from), None)));
            pieces.push(((from, to), Some(offset)));
            at = to;
        }
        pieces.extend((at < end).then_some(((at, end), None)));
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_a_mapping_without_the_pages_of_ones_own() {
        let mapping = Mapping { start: 10, end: 20, offset: 100, ..Mapping::default() };
        let mut pages = ImageBackedPages::default();
        pages.add(&mapping, [(10, 11), (14, 16)].into_iter());
        pages.add(&Mapping { start: 20, end: 22, offset: 7, ..Mapping::default() }, [].into_iter());
        assert_eq!(pages.runs, [(11, 14, 101), (16, 20, 106), (20, 22, 7)]);
    }
}
