//! What a checked region keeps at the end of every slot.
//!
//! ```text
//!  slot   [ header, 16 bytes ]  object, as long as asked for  │  padding, 0xFB …  │  trailer, 16 bytes
//!                                                                  0  bytes asked for, 48 bits; generation, 16 bits
//!                                                                  8  seal of the first word, its place and the region
//! ```
//! The seal of a freed object is another one. A freed object that is held back is filled with 0xDF. Its generation distinguishes
//! references to an object from those to the one that was there before: a reference has it in the bits that no
//! offset uses.

use crate::region::{Platform, Region, generation_bits};
use crate::spans::room;
use crate::words::Words;

/// Bytes that each object of a checked region takes beside what was asked for.
pub(crate) const TRAILER_BYTES: usize = 16;
const PADDING: u8 = 0xfb;
const FREED: u8 = 0xdf;
const FREED_SEAL: u64 = 0x5f46_5245_4544_5f21;
/// Freed objects are filled up to here.
const MOST_FILLED: u64 = 64 << 10;

/// What the trailer of an object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// Bytes asked for.
    pub(crate) bytes: u64,
    /// Which object this is of those that had the slot.
    pub(crate) generation: u16,
    pub(crate) is_freed: bool,
}

impl Trailer {
    fn word(self) -> u64 {
        self.bytes | u64::from(self.generation) << 48
    }
}

impl<P: Platform> Region<P> {
    /// A reference to what begins at a granule.
    pub(crate) fn reference_to(&self, granule: u32) -> u64 {
        let reference = self.tag() | self.layout.granule(granule);
        match self.header.is_checked {
            true => reference | generation_bits(generation(self, granule)),
            false => reference,
        }
    }
}

/// Where the slot of an object ends. `None` if no object with a trailer can begin there.
fn end_of<P: Platform>(region: &Region<P>, granule: u32) -> Option<u64> {
    let room = room(region, granule).filter(|room| *room >= TRAILER_BYTES as u64)?;
    Some(region.layout.granule(granule) + room)
}

/// A hash of a word, its place and the region.
pub(crate) fn seal<P: Platform>(region: &Region<P>, granule: u32, word: u64) -> u64 {
    let uuid =
        region.header.uuid.iter().fold(0u64, |uuid, byte| uuid.rotate_left(8) ^ u64::from(*byte));
    let mut mixed = word ^ uuid ^ u64::from(granule).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    mixed ^ mixed >> 32
}

fn set<P: Platform>(region: &Region<P>, granule: u32, end: u64, trailer: Trailer) {
    let at = end as usize - TRAILER_BYTES;
    let seal = seal(region, granule, trailer.word());
    region.words.set_word(at, trailer.word());
    region.words.set_word(at + 8, if trailer.is_freed { seal ^ FREED_SEAL } else { seal });
}

/// Writes the trailer and the padding of a new object.
pub(crate) fn write<P: Platform>(region: &Region<P>, granule: u32, bytes: usize, generation: u16) {
    let Some(end) = end_of(region, granule) else { return };
    let trailer = Trailer { bytes: bytes as u64, generation, is_freed: false };
    set(region, granule, end, trailer);
    let begin = region.layout.granule(granule) + trailer.bytes;
    fill(region, begin..end - TRAILER_BYTES as u64, PADDING);
}

/// The trailer of what begins at a granule. `None` if there is none, or a damaged one.
pub(crate) fn read<P: Platform>(region: &Region<P>, granule: u32) -> Option<Trailer> {
    let end = end_of(region, granule)?;
    let at = end as usize - TRAILER_BYTES;
    let (word, found) = (region.words.word(at), region.words.word(at + 8));
    let seal = seal(region, granule, word);
    let is_freed = match found ^ seal {
        0 => false,
        FREED_SEAL => true,
        _ => return None,
    };
    let trailer = Trailer { bytes: word << 16 >> 16, generation: (word >> 48) as u16, is_freed };
    let room = end - TRAILER_BYTES as u64 - region.layout.granule(granule);
    (trailer.bytes <= room).then_some(trailer)
}

/// Generation of an object.
pub(crate) fn generation<P: Platform>(region: &Region<P>, granule: u32) -> u16 {
    read(region, granule).map_or(0, |trailer| trailer.generation)
}

/// What was overwritten at the end of an object, in words. `None` if nothing was.
pub(crate) fn damage<P: Platform>(region: &Region<P>, granule: u32) -> Option<String> {
    let end = end_of(region, granule)?;
    let Some(trailer) = read(region, granule) else {
        return Some(
            "its trailer was overwritten, by a write beyond it or before the object that follows"
                .to_owned(),
        );
    };
    let begin = region.layout.granule(granule) + trailer.bytes;
    let wrong = differs(region, begin..end - TRAILER_BYTES as u64, PADDING)?;
    let bytes = trailer.bytes;
    Some(format!(
        "the object of {bytes} bytes was written beyond its end, at byte {}",
        bytes + wrong
    ))
}

/// Marks an object as freed, and fills it.
pub(crate) fn set_freed<P: Platform>(region: &Region<P>, granule: u32) {
    let (Some(end), Some(trailer)) = (end_of(region, granule), read(region, granule)) else {
        return;
    };
    set(region, granule, end, Trailer { is_freed: true, ..trailer });
    fill(region, filled(region, granule, trailer), FREED);
}

/// Where a freed object was written since, in words. `None` if it was not.
pub(crate) fn use_after_free<P: Platform>(region: &Region<P>, granule: u32) -> Option<String> {
    let Some(trailer) = read(region, granule) else { return damage(region, granule) };
    let bytes = trailer.bytes;
    let at = differs(region, filled(region, granule, trailer), FREED)?;
    Some(format!("the object of {bytes} bytes was written after it had been freed, at byte {at}"))
}

fn filled<P: Platform>(region: &Region<P>, granule: u32, trailer: Trailer) -> std::ops::Range<u64> {
    let begin = region.layout.granule(granule);
    begin..begin + trailer.bytes.min(MOST_FILLED)
}

fn fill<P: Platform>(region: &Region<P>, bytes: std::ops::Range<u64>, value: u8) {
    bytes.for_each(|at| region.words.set_byte(at as usize, value));
}

/// The first byte in a range that is another, counted from its beginning.
fn differs<P: Platform>(
    region: &Region<P>,
    mut bytes: std::ops::Range<u64>,
    value: u8,
) -> Option<u64> {
    let begin = bytes.start;
    bytes.find(|at| region.words.byte(*at as usize) != value).map(|at| at - begin)
}
