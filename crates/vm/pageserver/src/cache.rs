//! Stored pages that a server has read and verified once, for all of its machines.
//!
//! Hot pages lie one after the other in the order in which they are replayed, wherever they lie in the image. So a
//! replay reads nothing, verifies nothing a second time, and copies neighbours by one call, also those that lie apart
//! in a repacked image.

use std::ops::Range;
use std::sync::{Arc, RwLock};

use farfork_image::vm::{Extent, Snapshot};
use farfork_pool::ImageFile;
use farfork_sys::sync::unpoisoned;

/// Bytes that a server keeps at most. Other pages are read when they are needed.
pub(crate) const MOST_BYTES: u64 = 256 << 20;

/// Pages in memory of the server's own.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// In the order of offsets.
    kept: Vec<Kept>,
    bytes: Vec<u8>,
}

/// Stored pages that are neighbours in the guest's memory and here.
#[derive(Clone, Copy, Debug)]
struct Kept {
    offset: u64,
    bytes: u64,
    at: usize,
}

impl Cache {
    /// Reads what is stored of these ranges of the guest's memory. Pages that cannot be read are left out: a
    /// fault finds out about them.
    pub(crate) fn read(snapshot: &Snapshot, file: &ImageFile, ranges: &[Range<u64>]) -> Cache {
        let mut cache = Cache::default();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let extent = snapshot.map.at(at);
                let bytes = extent.bytes().min(range.end - at);
                if let Extent::Stored { place, .. } = extent {
                    cache.add(snapshot, file, (at, place), bytes);
                }
                at += bytes.max(1);
            }
        }
        cache.kept.sort_unstable_by_key(|kept| kept.offset);
        cache
    }

    fn add(
        &mut self,
        snapshot: &Snapshot,
        file: &ImageFile,
        (offset, place): (u64, u64),
        bytes: u64,
    ) {
        let at = self.bytes.len();
        if at as u64 + bytes > MOST_BYTES {
            return;
        }
        self.bytes.resize(at + bytes as usize, 0);
        match snapshot.read_pages(file, place, &mut self.bytes[at..]) {
            Ok(()) => self.keep(Kept { offset, bytes, at }),
            Err(_) => self.bytes.truncate(at),
        }
    }

    /// Notes the bytes that were read last.
    fn keep(&mut self, kept: Kept) {
        match self.kept.last_mut() {
            Some(last)
                if last.offset + last.bytes == kept.offset
                    && last.at + last.bytes as usize == kept.at =>
            {
                last.bytes += kept.bytes;
            }
            _ => self.kept.push(kept),
        }
    }

    /// What is here of `bytes` bytes of the guest's memory from `offset` on: as many as are neighbours.
    pub(crate) fn get(&self, offset: u64, bytes: u64) -> Option<&[u8]> {
        let after = self.kept.partition_point(|kept| kept.offset <= offset);
        let kept = self.kept[..after].last()?;
        let into = offset - kept.offset;
        let bytes = kept.bytes.checked_sub(into).filter(|left| *left > 0)?.min(bytes);
        let at = kept.at + into as usize;
        Some(&self.bytes[at..at + bytes as usize])
    }
}

/// The cache of a server, which is replaced when other pages become hot.
#[derive(Debug, Default)]
pub(crate) struct Shared(RwLock<Arc<Cache>>);

impl Shared {
    /// The cache as it is now.
    pub(crate) fn now(&self) -> Arc<Cache> {
        let cache = unpoisoned(self.0.read());
        Arc::clone(&cache)
    }

    /// Puts another in its place. Machines that have the old one keep it.
    pub(crate) fn replace(&self, cache: Cache) {
        *unpoisoned(self.0.write()) = Arc::new(cache);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_by_their_offsets() {
        let bytes: Vec<u8> = (0..6 * 4096).map(|at| (at / 4096) as u8).collect();
        let mut cache = Cache { bytes, ..Cache::default() };
        // 0xb000 is a neighbour in the guest's memory, and not here.
        for (offset, pages, at) in [(0x8000, 2, 0), (0xa000, 1, 2), (0xb000, 1, 5), (0x3000, 2, 3)]
        {
            cache.keep(Kept { offset, bytes: pages * 4096, at: at * 4096 });
        }
        cache.kept.sort_unstable_by_key(|kept| kept.offset);
        let got = |offset: u64, bytes: u64| cache.get(offset, bytes).map(|got| (got[0], got.len()));
        assert_eq!(got(0x3000, 1 << 20), Some((3, 8192)));
        assert_eq!(got(0x4000, 4096), Some((4, 4096)));
        assert_eq!(got(0x8000, 1 << 20), Some((0, 3 * 4096)));
        assert_eq!(got(0xa000, 1 << 20), Some((2, 4096)));
        assert_eq!(got(0xb000, 1 << 20), Some((5, 4096)));
        assert_eq!([0x2000, 0x5000, 0x7000, 0xc000].map(|offset| got(offset, 4096)), [None; 4]);
    }
}
