//! Shared memory behind an emulated cache, which counts what metadata reads from the pool.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use farfork::header::{Header, Metadata};
use farfork::words::{Mapped, Words};
use farfork::{Node, Platform};
use farfork_caches::{Cache, Geometry, LINE_BYTES};

/// The part of a shared last-level cache that a program may have.
const LAST_LEVEL: Geometry = Geometry { bytes: 4 << 20, ways: 16 };

thread_local! {
    static LINES: RefCell<Option<Lines>> = const { RefCell::new(None) };
}

/// The cache, and what has been read through it.
pub(super) struct Lines {
    cache: Cache,
    /// What does not lie in the pool.
    node_local: Vec<Range<u64>>,
    from_pool: u64,
}

impl Lines {
    /// Of a region. All caches are cold.
    pub(super) fn of(header: &Header) -> Lines {
        let parts = header.layout().map(|layout| layout.node_local_parts());
        let node_local = match header.metadata {
            Metadata::Region => Vec::new(),
            Metadata::Node(_) => parts.into_iter().flatten().collect(),
        };
        Lines { cache: Cache::new(LAST_LEVEL), node_local, from_pool: 0 }
    }
}

/// Counts from here on, in this thread.
pub(super) fn begin(lines: Lines) {
    LINES.set(Some(lines));
}

/// Lines of metadata that were read from the pool.
pub(super) fn from_pool() -> u64 {
    LINES.with_borrow(|lines| lines.as_ref().map_or(0, |lines| lines.from_pool))
}

/// An object is written to, which takes room in the cache.
pub(super) fn use_object(offset: u64) {
    LINES.with_borrow_mut(|lines| {
        if let Some(lines) = lines {
            lines.cache.use_line(offset / LINE_BYTES);
        }
    });
}

fn use_metadata(at: usize) {
    let at = at as u64;
    LINES.with_borrow_mut(|lines| {
        let Some(lines) = lines else { return };
        let is_hit = lines.cache.use_line(at / LINE_BYTES);
        let is_local = lines.node_local.iter().any(|part| part.contains(&at));
        lines.from_pool += u64::from(!is_hit && !is_local);
    });
}

/// A machine with that cache.
#[derive(Debug)]
pub(super) struct Counted;

impl Platform for Counted {
    type Words = Seen;
    type Liveness = <Node as Platform>::Liveness;
}

/// Its memory.
#[derive(Clone)]
pub(super) struct Seen {
    mapped: Mapped,
    /// Where this begins in the region.
    first: usize,
}

impl From<Mapped> for Seen {
    fn from(mapped: Mapped) -> Seen {
        Seen { mapped, first: 0 }
    }
}

impl Seen {
    fn use_metadata(&self, at: usize) {
        use_metadata(self.first + at);
    }
}

impl Words for Seen {
    type Plain = Seen;

    fn plain(&self) -> Option<&Seen> {
        Some(self)
    }

    fn byte(&self, at: usize) -> u8 {
        self.use_metadata(at);
        self.mapped.byte(at)
    }

    fn byte_within(&self, at: usize) -> Option<u8> {
        self.use_metadata(at);
        self.mapped.byte_within(at)
    }

    fn set_byte(&self, at: usize, value: u8) {
        self.use_metadata(at);
        self.mapped.set_byte(at, value);
    }

    fn tail(&self, at: usize) -> Seen {
        Seen { mapped: self.mapped.tail(at), first: self.first + at }
    }

    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        self.use_metadata(at);
        self.mapped.replace_own_byte(at, from, to)
    }

    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool {
        self.use_metadata(at);
        self.mapped.claim_byte(at, from, to)
    }

    fn word(&self, at: usize) -> u64 {
        self.use_metadata(at);
        self.mapped.word(at)
    }

    fn set_word(&self, at: usize, value: u64) {
        self.use_metadata(at);
        self.mapped.set_word(at, value);
    }

    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool {
        self.use_metadata(at);
        self.mapped.claim_word(at, from, to)
    }

    fn sleep(&self, at: usize, seen: u32, time: Duration) -> bool {
        self.mapped.sleep(at, seen, time)
    }

    fn wake(&self, at: usize) {
        self.mapped.wake(at);
    }

    fn order_with_others(&self) {
        self.mapped.order_with_others();
    }

    fn flush(&self, at: usize, bytes: usize) {
        self.mapped.flush(at, bytes);
    }

    fn invalidate(&self, at: usize, bytes: usize) {
        self.mapped.invalidate(at, bytes);
    }
}
