//! A seed as the file of an image: what its clones map.
//!
//! ```text
//!  0        header      ┐ the descriptor, in the keeper's memory
//!  4 KiB    metadata    ┘
//!  2 MiB    data        parts: at an address of the shadow, copied into the keeper's memory, or
//!                       at another seed, which is read instead of this one
//!                       between them: zeros
//! ```

use std::io;
use std::ops::Range;

use farfork_checkpoint::{Part, PartSource, ShadowMemory};
use farfork_image::layout::DATA_AT;
use farfork_image::store::Descriptor;

use crate::ancestry::Ancestry;

/// All bytes of a seed. They never change.
pub struct SeedRegion {
    descriptor: Descriptor,
    /// In the order of their places, without overlaps.
    parts: Vec<Part>,
    copied: Vec<u8>,
    ancestry: Ancestry,
    memory: ShadowMemory,
}

impl SeedRegion {
    /// The file with this descriptor, whose data come from `parts`, sorted by place.
    pub fn new(
        descriptor: Descriptor,
        parts: Vec<Part>,
        copied: Vec<u8>,
        ancestry: Ancestry,
        memory: ShadowMemory,
    ) -> SeedRegion {
        SeedRegion { descriptor, parts, copied, ancestry, memory }
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.descriptor.file_bytes
    }

    /// Bytes of the descriptor: all that a clone needs before it runs.
    pub fn descriptor_bytes(&self) -> u64 {
        (self.descriptor.header.len() + self.descriptor.metadata.len()) as u64
    }

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The shadow has ended, a mapped file of it has become shorter, or another seed owns some of the bytes:
    /// they are not here, and zeros would be wrong.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let wanted = offset..offset + into.len() as u64;
        into.fill(0);
        let Descriptor { header, meta_at, metadata, .. } = &self.descriptor;
        for (at, bytes) in [(0, header), (*meta_at, metadata)] {
            if let Some((from, to)) = overlap(&wanted, at, bytes.len() as u64) {
                let source = &bytes[(from - at) as usize..(to - at) as usize];
                into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        let first = self.parts.partition_point(|part| end(part) <= wanted.start);
        for part in &self.parts[first..] {
            let place = DATA_AT + part.place;
            let Some((from, to)) = overlap(&wanted, place, part.bytes) else { break };
            let target = &mut into[(from - offset) as usize..(to - offset) as usize];
            match part.source {
                PartSource::Shadow(address) => {
                    self.memory.read(address + (from - place), target)?
                }
                PartSource::Ancestor(at) => self.ancestry.read(at + (from - place), target)?,
                PartSource::Copied(at) => {
                    let at = (at + (from - place)) as usize;
                    target.copy_from_slice(&self.copied[at..at + target.len()]);
                }
            }
        }
        Ok(())
    }
}

fn end(part: &Part) -> u64 {
    DATA_AT + part.place + part.bytes
}

/// What of `wanted` lies in so many bytes from `at` on.
fn overlap(wanted: &Range<u64>, at: u64, bytes: u64) -> Option<(u64, u64)> {
    let (from, to) = (wanted.start.max(at), wanted.end.min(at + bytes));
    (from < to).then_some((from, to))
}
