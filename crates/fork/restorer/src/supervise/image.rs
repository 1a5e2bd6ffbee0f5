//! Which mappings of a clone are of its image, and what lay where in the parent.

use farfork_plan::protocol::Request;
use farfork_plan::sources::{SourceFile, place_of};
use farfork_plan::{FileRange, PlanHeader, TraitRange, Window, traits};

use crate::call::Errno;
use crate::maps::{self, AddressSpace, Mapping};
use crate::sources;
use crate::tables::elements;

/// What is known of the image.
pub struct Image {
    device: u64,
    inode: u64,
    windows: &'static [Window],
    files: &'static [FileRange],
    traits: &'static [TraitRange],
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
    fn offset(&self) -> u64 {
        self.mapping.offset + (self.start - self.mapping.start)
    }

    /// Protection as `mmap` takes it; the bits are the same.
    pub fn prot(&self) -> u64 {
        self.mapping.flags & (maps::READ | maps::WRITE | maps::EXEC)
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.mapping.flags & maps::WRITE != 0
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// The first part of `start..end` that is mapped.
pub fn piece(space: &AddressSpace, start: u64, end: u64) -> Result<Option<Piece>, Errno> {
    if start >= end {
        return Ok(None);
    }
    let mapping = space.at_or_after(start)?.filter(|mapping| mapping.start < end);
    Ok(mapping.map(|mapping| Piece {
        start: start.max(mapping.start),
        end: end.min(mapping.end),
        mapping,
    }))
}

/// Whether `start..end` begins with one mapping and has more: the kernel grows or moves no more than one.
pub fn is_cut(space: &AddressSpace, start: u64, end: u64) -> Result<bool, Errno> {
    let first = piece(space, start, end)?;
    Ok(first.is_some_and(|first| first.start == start && first.end < end))
}

impl Image {
    /// The image of a plan that is mapped here.
    pub fn from_plan(plan: &'static PlanHeader, request: &Request) -> Image {
        // SAFETY: the tables are the plan's.
        let (windows, files) = unsafe { (elements(plan.windows), elements(plan.files)) };
        // SAFETY: as above.
        let traits = unsafe { elements(plan.traits) };
        Image { device: request.image_device, inode: request.image_inode, windows, files, traits }
    }

    /// Whether `mapping` still shows bytes of the image.
    pub fn holds(&self, mapping: &Mapping) -> bool {
        self.is_own(mapping) || self.other(mapping).is_some()
    }

    fn is_own(&self, mapping: &Mapping) -> bool {
        mapping.inode == self.inode && mapping.device == self.device
    }

    /// Which of the other files with bytes of the image is mapped.
    fn other(&self, mapping: &Mapping) -> Option<usize> {
        let file = SourceFile { device: mapping.device, inode: mapping.inode };
        sources::files().iter().position(|known| *known == file)
    }

    /// The place in the image of the start of a piece of it, and how many bytes from there on are side by
    /// side in the image, too.
    fn located(&self, piece: &Piece) -> Option<(u64, u64)> {
        match self.other(&piece.mapping) {
            Some(file) => place_of(sources::parts(), file, piece.offset()),
            None => Some((piece.offset(), piece.bytes())),
        }
    }

    /// The place in the image of the start of a piece of it.
    pub fn place(&self, piece: &Piece) -> u64 {
        self.located(piece).map_or(0, |(place, _)| place)
    }

    /// Whether any part of the range still shows bytes of the image.
    pub fn touches(&self, space: &AddressSpace, start: u64, end: u64) -> Result<bool, Errno> {
        let mut at = start;
        while let Some(piece) = piece(space, at, end)? {
            if self.holds(&piece.mapping) {
                return Ok(true);
            }
            at = piece.end;
        }
        Ok(false)
    }

    /// The parts of `start..end` that are mapped, those of the image cut where in the parent one
    /// kind of memory ended and another began: the kernel may have joined their mappings.
    pub fn pieces(
        &self,
        space: &AddressSpace,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = Result<Piece, Errno>> {
        let mut at = start;
        core::iter::from_fn(move || {
            let next = piece(space, at, end).map(|piece| piece.map(|piece| self.cut(piece)));
            at = next.map_or(end, |piece| piece.map_or(end, |piece| piece.end));
            next.transpose()
        })
    }

    fn cut(&self, piece: Piece) -> Piece {
        if !self.holds(&piece.mapping) {
            return piece;
        }
        Piece { end: piece.end.min(piece.start + self.run(&piece)), ..piece }
    }

    /// The file that lay under a piece of the image in the parent, and the offset in it.
    pub fn file_of(&self, piece: &Piece) -> Option<(&'static FileRange, u64)> {
        let (_, address) = self.origin(piece)?;
        let after = self.files.partition_point(|file| file.start <= address);
        let file = self.files[..after].last().filter(|file| address < file.end)?;
        Some((file, file.file_offset + (address - file.start)))
    }

    /// The attributes that a piece of the image had in the parent, as bits of
    /// [`farfork_plan::traits`]. All of a mapping have the same.
    pub fn traits_of(&self, piece: &Piece) -> u64 {
        let Some((_, address)) = self.origin(piece) else { return 0 };
        let after = self.traits.partition_point(|range| range.start <= address);
        let range = self.traits[..after].last().filter(|range| address < range.end);
        range.map_or(0, |range| range.traits)
    }

    /// Whether any memory of the parent had attributes that programs rely on.
    pub fn has_vital_traits(&self) -> bool {
        let vital = traits::DONT_FORK | traits::DONT_DUMP | traits::LOCKED | traits::LOCKS_FUTURE;
        self.traits.iter().any(|range| range.traits & vital != 0)
    }

    /// The window that the start of a piece belongs to, and its address in the parent.
    fn origin(&self, piece: &Piece) -> Option<(&'static Window, u64)> {
        let (place, _) = self.located(piece)?;
        let after = self.windows.partition_point(|window| window.place <= place);
        let window = self.windows[..after].last()?;
        let inside = place - window.place;
        (inside < window.bytes).then_some((window, window.address + inside))
    }

    /// Bytes from the start of a piece on that were one kind of memory in the parent.
    fn run(&self, piece: &Piece) -> u64 {
        let together = self.located(piece).map_or(u64::MAX, |(_, bytes)| bytes);
        let Some((window, address)) = self.origin(piece) else {
            return piece.bytes().min(together);
        };
        let next = self.files.partition_point(|file| file.end <= address);
        let edge = self
            .files
            .get(next)
            .map_or(u64::MAX, |file| if file.start > address { file.start } else { file.end });
        (edge.min(window.address + window.bytes) - address).min(together)
    }
}
