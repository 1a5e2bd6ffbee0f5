//! Filling pages of a guest.

use std::sync::Arc;

use farfork_image::error::ImageError;
use farfork_image::vm::{Extent, Snapshot};
use farfork_pool::ImageFile;
use farfork_sys::userfault::{Filled, Userfault};
use farfork_types::PAGE_BYTES;
use rustix::io::Errno;

use crate::cache::{Cache, Shared};
use crate::counters::Counters;
use crate::handover::{Found, Regions};
use crate::ledger::Ledger;
use crate::turns::Turns;

/// Bytes that are read from the image at once.
const BUFFER_BYTES: usize = 2 << 20;

/// Where pages come from.
#[derive(Debug)]
pub(crate) struct Source {
    /// The snapshot.
    pub(crate) snapshot: Snapshot,
    /// Its file.
    pub(crate) file: ImageFile,
    /// Pages that were read already.
    pub(crate) cache: Shared,
    /// Turns of machines to be filled.
    pub(crate) turns: Arc<Turns>,
}

/// What became of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// So many bytes are there now.
    Filled(u64),
    /// The first page was there already.
    Present,
    /// The first page cannot be read: an access to it ends in SIGBUS from now on.
    Poisoned,
    /// The first page cannot be read, and no thread waits for it.
    Unreadable,
    /// The mappings are changing: messages have to be read first.
    Busy,
    /// There is not enough memory now.
    NoMemory,
    /// The range is not registered any more.
    Unmapped,
    /// The process has ended.
    Gone,
    /// The kernel refuses.
    Failed(Errno),
}

/// Fills pages of one userfaultfd.
pub(crate) struct Filler {
    pub(crate) userfault: Userfault,
    pub(crate) regions: Regions,
    pub(crate) ledger: Ledger,
    pub(crate) counters: Counters,
    source: Arc<Source>,
    cache: Arc<Cache>,
    buffer: Vec<u8>,
}

impl Filler {
    pub(crate) fn new(
        userfault: Userfault,
        regions: Regions,
        ledger: Ledger,
        source: Arc<Source>,
    ) -> Filler {
        let (buffer, counters) = (vec![0; BUFFER_BYTES], Counters::default());
        let cache = source.cache.now();
        Filler { userfault, regions, ledger, counters, source, cache, buffer }
    }

    /// Fills the page that was found, for which a thread waits, and as much of what follows as `bytes` allows
    /// and one call can.
    pub(crate) fn fill(&mut self, found: Found, bytes: u64) -> Outcome {
        match self.fill_early(found, bytes) {
            Outcome::Unreadable => self.poison(found.address, found.page_bytes),
            outcome => outcome,
        }
    }

    /// The same before a thread waits: a page that cannot be read now stays missing, because that may be
    /// possible when it is needed.
    pub(crate) fn fill_early(&mut self, found: Found, bytes: u64) -> Outcome {
        if found.page_bytes > PAGE_BYTES {
            return self.fill_huge(found);
        }
        let (is_removed, alike) = self.ledger.alike(found.offset, bytes.min(found.rest));
        if is_removed {
            return self.zero(found.address, alike);
        }
        if let Some(part) = self.cache.get(found.offset, alike) {
            let filled = self.userfault.copy(found.address, part);
            self.counters.copied_pages += filled.bytes / PAGE_BYTES;
            return outcome(filled);
        }
        let extent = self.source.snapshot.map.at(found.offset);
        let bytes = extent.bytes().min(alike);
        match extent {
            Extent::Zeros(_) => self.zero(found.address, bytes),
            Extent::Stored { place, .. } => self.copy(found.address, place, bytes),
        }
    }

    fn zero(&mut self, address: u64, bytes: u64) -> Outcome {
        let filled = self.userfault.zero(address, bytes);
        self.counters.zero_pages += filled.bytes / PAGE_BYTES;
        outcome(filled)
    }

    fn copy(&mut self, address: u64, place: u64, bytes: u64) -> Outcome {
        let Source { snapshot, file, .. } = &*self.source;
        let part = &mut self.buffer[..(bytes as usize).min(BUFFER_BYTES)];
        match snapshot.read_pages(file, place, part) {
            Ok(()) => {}
            // Which of the pages it is shows when each is read by itself.
            Err(_) if bytes > PAGE_BYTES => return self.copy(address, place, PAGE_BYTES),
            Err(_) => return Outcome::Unreadable,
        }
        let filled = self.userfault.copy(address, part);
        self.counters.copied_pages += filled.bytes / PAGE_BYTES;
        outcome(filled)
    }

    /// Fills a huge page, which has to be copied as a whole, zeros too.
    fn fill_huge(&mut self, found: Found) -> Outcome {
        let mut page = std::mem::take(&mut self.buffer);
        let part = &mut page[..found.page_bytes as usize];
        let outcome = match self.read_huge(found.offset, part) {
            Ok(()) => {
                let filled = self.userfault.copy(found.address, part);
                self.counters.copied_pages += filled.bytes / PAGE_BYTES;
                outcome(filled)
            }
            Err(_) => Outcome::Unreadable,
        };
        self.buffer = page;
        outcome
    }

    fn read_huge(&self, offset: u64, to: &mut [u8]) -> Result<(), ImageError> {
        let mut at = 0;
        while at < to.len() as u64 {
            let (is_removed, bytes) = self.ledger.alike(offset + at, to.len() as u64 - at);
            let part = &mut to[at as usize..(at + bytes) as usize];
            match is_removed {
                true => part.fill(0),
                false => self.source.snapshot.read_memory(&self.source.file, offset + at, part)?,
            }
            at += bytes;
        }
        Ok(())
    }

    /// Whether some pages come from another node.
    pub(crate) fn has_far_pages(&self) -> bool {
        self.source.file.far().is_some()
    }

    /// Makes an access to a page end in SIGBUS.
    pub(crate) fn poison(&mut self, address: u64, bytes: u64) -> Outcome {
        match outcome(self.userfault.poison(address, bytes)) {
            Outcome::Filled(_) => {
                self.counters.poisoned_pages += bytes / PAGE_BYTES;
                Outcome::Poisoned
            }
            other => other,
        }
    }
}

fn outcome(filled: Filled) -> Outcome {
    match filled.stopped {
        _ if filled.bytes > 0 => Outcome::Filled(filled.bytes),
        None => Outcome::Present,
        Some(Errno::EXIST) => Outcome::Present,
        Some(Errno::AGAIN) => Outcome::Busy,
        Some(Errno::NOMEM) => Outcome::NoMemory,
        Some(Errno::NOENT) => Outcome::Unmapped,
        Some(Errno::SRCH) => Outcome::Gone,
        Some(errno) => Outcome::Failed(errno),
    }
}
