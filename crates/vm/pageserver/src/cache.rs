//! Stored pages that a server has read and verified once, for all of its machines.
//!
//! Hot pages lie one after the other in the order in which they are replayed, wherever they lie in the image. So a
//! replay reads nothing, and verifies nothing a second time.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use farfork_image::vm::{Extent, Snapshot};
use farfork_pool::ImageFile;

/// Bytes that a server keeps at most. Other pages are read when they are needed.
pub(crate) const MOST_BYTES: u64 = 256 << 20;

/// Pages in memory of the server's own.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// In the order of places.
    kept: Vec<Kept>,
    bytes: Vec<u8>,
}

/// Pages that are neighbours in the image and here.
#[derive(Clone, Copy, Debug)]
struct Kept {
    place: u64,
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
                    cache.add(snapshot, file, place, bytes);
                }
                at += bytes.max(1);
            }
        }
        cache.kept.sort_unstable_by_key(|kept| kept.place);
        cache
    }

    fn add(&mut self, snapshot: &Snapshot, file: &ImageFile, place: u64, bytes: u64) {
        let at = self.bytes.len();
        if at as u64 + bytes > MOST_BYTES {
            return;
        }
        self.bytes.resize(at + bytes as usize, 0);
        match snapshot.read_pages(file, place, &mut self.bytes[at..]) {
            Ok(()) => self.kept.push(Kept { place, bytes, at }),
            Err(_) => self.bytes.truncate(at),
        }
    }

    /// What is here of `bytes` bytes that lie at `place` in the image: from there on, as many as are
    /// neighbours.
    pub(crate) fn get(&self, place: u64, bytes: u64) -> Option<&[u8]> {
        let after = self.kept.partition_point(|kept| kept.place <= place);
        let kept = self.kept[..after].last()?;
        let into = place - kept.place;
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
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another in its place. Machines that have the old one keep it.
    pub(crate) fn replace(&self, cache: Cache) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(cache);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_by_their_places() {
        let bytes: Vec<u8> = (0..5 * 4096).map(|at| (at / 4096) as u8).collect();
        let kept = [(0x3000, 2, 3), (0x8000, 3, 0)];
        let kept =
            kept.map(|(place, pages, at)| Kept { place, bytes: pages * 4096, at: at * 4096 });
        let cache = Cache { kept: kept.to_vec(), bytes };
        let got = |place: u64, bytes: u64| cache.get(place, bytes).map(|got| (got[0], got.len()));
        assert_eq!(got(0x3000, 1 << 20), Some((3, 8192)));
        assert_eq!(got(0x4000, 4096), Some((4, 4096)));
        assert_eq!(got(0xa000, 1 << 20), Some((2, 4096)));
        assert_eq!([0x2000, 0x5000, 0x7000, 0xb000].map(|place| got(place, 4096)), [None; 4]);
    }
}
