//! From misses to time.
//!
//! ```text
//!  added time = (lines read from the pool / overlap + lines copied / COPY_OVERLAP) × added latency
//! ```

use farfork_caches::{PAGE_BYTES, Seen};
use farfork_types::Tiering;

/// The latency of local memory, in nanoseconds: the lowest point of CXLfork's figure 9.
pub const LOCAL_NS: f64 = 100.0;
/// Overlapping misses while a page is copied: its lines are read sequentially and prefetched. An
/// assumption.
const COPY_OVERLAP: f64 = 10.0;
const LINES_OF_PAGE: f64 = (PAGE_BYTES / farfork_caches::LINE_BYTES) as f64;

/// What a call reads from the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Lines that it waits for, because they miss the last-level cache.
    pub lines: u64,
    /// Pages that are copied.
    pub pages: u64,
}

impl Traffic {
    /// The traffic of a call under a policy, with one of the caches.
    pub fn from_counts(seen: &Seen, level: usize, tiering: Tiering) -> Traffic {
        let (missed, written, touched) =
            (seen.levels[level].misses, seen.first_written, seen.touched);
        match tiering {
            Tiering::Copy => Traffic::default(),
            Tiering::Moa => Traffic { lines: 0, pages: touched.accessed + touched.unaccessed },
            Tiering::Hybrid => {
                Traffic { lines: missed.unaccessed, pages: touched.accessed + written.unaccessed }
            }
            Tiering::Mow => Traffic {
                lines: missed.accessed + missed.unaccessed,
                pages: written.accessed + written.unaccessed,
            },
        }
    }

    /// The time that a pool of this latency adds to a call, in microseconds, with `overlap` overlapping
    /// misses.
    pub fn added_us(self, latency_ns: f64, overlap: f64) -> f64 {
        let lines = self.lines as f64 / overlap + self.pages as f64 * LINES_OF_PAGE / COPY_OVERLAP;
        lines * (latency_ns - LOCAL_NS) / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use farfork_caches::{ByKind, Misses};

    use super::*;

    fn seen() -> Seen {
        let kinds =
            |own, written, accessed, unaccessed| ByKind { own, written, accessed, unaccessed };
        Seen {
            levels: vec![Misses { bytes: 1, misses: kinds(1000, 2000, 30, 4) }],
            touched: kinds(100, 0, 20, 3),
            first_written: kinds(100, 0, 10, 1),
            ..Seen::default()
        }
    }

    #[test]
    fn policies_differ_in_what_they_read_and_what_they_copy() {
        let of = |tiering| Traffic::from_counts(&seen(), 0, tiering);
        assert_eq!(of(Tiering::Mow), Traffic { lines: 34, pages: 11 });
        assert_eq!(of(Tiering::Hybrid), Traffic { lines: 4, pages: 21 });
        assert_eq!(of(Tiering::Moa), Traffic { lines: 0, pages: 23 });
        assert_eq!(of(Tiering::Copy), Traffic::default());
    }

    #[test]
    fn local_memory_adds_nothing_and_overlap_divides_the_waiting() {
        let traffic = Traffic { lines: 1000, pages: 10 };
        assert_eq!(traffic.added_us(LOCAL_NS, 1.0), 0.0);
        assert!((traffic.added_us(391.0, 1.0) - 309.624).abs() < 1e-9);
        assert!((traffic.added_us(391.0, 4.0) - 91.374).abs() < 1e-9);
    }
}
