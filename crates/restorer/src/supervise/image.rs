//! How a mapping of the clone's image is told from any other, and what lay where in the parent.

use farfork_plan::protocol::Request;
use farfork_plan::{FileRange, PlanHeader, Window};
use farfork_types::{CHUNK_BYTES, align_down};

use crate::maps::{self, AddressSpace, Mapping};
use crate::run::elements;

/// What is known of the image.
pub struct Image {
    device: u64,
    inode: u64,
    windows: &'static [Window],
    files: &'static [FileRange],
}

/// Part of one mapping, or the whole.
#[derive(Clone, Copy)]
pub struct Piece {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// The mapping it belongs to.
    pub mapping: Mapping,
}

impl Piece {
    /// Offset of its start in the mapped file.
    pub fn offset(&self) -> u64 {
        self.mapping.offset + (self.start - self.mapping.start)
    }

    /// Protection as `mmap` takes it; the bits are the same.
    pub fn prot(&self) -> u64 {
        self.mapping.flags & (maps::READ | maps::WRITE | maps::EXEC)
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// The parts of `start..end` that are mapped, in order.
pub fn pieces(space: &AddressSpace, start: u64, end: u64) -> impl Iterator<Item = Piece> {
    let mut at = start;
    core::iter::from_fn(move || {
        let mapping = space.at_or_after(at).filter(|m| at < end && m.start < end)?;
        let piece = Piece { start: at.max(mapping.start), end: end.min(mapping.end), mapping };
        at = piece.end;
        Some(piece)
    })
}

impl Image {
    /// The image of a plan that is mapped here.
    pub fn of(plan: &'static PlanHeader, request: &Request) -> Image {
        // SAFETY: the tables are the plan's.
        let (windows, files) = unsafe { (elements(plan.windows), elements(plan.files)) };
        Image { device: request.pool_device, inode: request.pool_inode, windows, files }
    }

    /// Whether `mapping` still shows bytes of the image.
    pub fn holds(&self, mapping: &Mapping) -> bool {
        mapping.inode == self.inode && mapping.device == self.device
    }

    /// Whether any part of the range still shows bytes of the image.
    pub fn touches(&self, space: &AddressSpace, start: u64, end: u64) -> bool {
        pieces(space, start, end).any(|piece| self.holds(&piece.mapping))
    }

    /// The file that lay under a piece of the image in the parent, and the offset in it.
    pub fn file_of(&self, piece: &Piece) -> Option<(&'static FileRange, u64)> {
        let offset = piece.offset();
        let window = align_down(offset, CHUNK_BYTES);
        let index = self.windows.binary_search_by_key(&window, |w| w.pool_offset).ok()?;
        let address = self.windows[index].address + (offset - window);
        let after = self.files.partition_point(|file| file.start <= address);
        let file = self.files[..after].last().filter(|file| address < file.end)?;
        Some((file, file.file_offset + (address - file.start)))
    }
}
