//! How fast the pool can be read just now.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use farfork_sys::cache;

use crate::error::PoolError;
use crate::pool::Pool;

/// What is read at a time: some microseconds' work, so that most are not interrupted.
const BURST_BYTES: usize = 64 << 10;
/// How often; the fastest counts, as a processor may be taken away during any.
const BURSTS: usize = 8;

impl Pool {
    /// Bytes that one processor reads from the pool in a second, as it is just now: half a mebibyte of the
    /// catalog's words is taken out of caches and read, which keeps a processor busy for about half a
    /// millisecond. The more of the pool's bandwidth others use, the longer every line takes, and the
    /// fewer bytes these are. While others leave some, a processor alone does not come near what the
    /// pool can do, so that this does not measure it.
    ///
    /// # Errors
    /// [`PoolError::Truncated`] or [`PoolError::Gone`] if the pool is no longer whole.
    pub fn read_rate(&self) -> Result<u64, PoolError> {
        let words = self.catalog_area().words()?;
        let bursts = words.chunks_exact(BURST_BYTES / size_of::<AtomicU64>()).take(BURSTS);
        let fastest = bursts.map(read).fold(Duration::MAX, Duration::min);
        let per_second = BURST_BYTES as u128 * 1_000_000_000 / fastest.as_nanos().max(1);
        Ok(per_second as u64)
    }
}

/// How long it takes to have every line of these.
fn read(words: &[AtomicU64]) -> Duration {
    cache::evict(words);
    let lines = words.chunks_exact(cache::LINE_BYTES / size_of::<AtomicU64>());
    let begun = Instant::now();
    black_box(lines.fold(0, |sum, line| line[0].load(Relaxed) ^ sum));
    begun.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_read_and_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let pool = Pool::create(&place.path().join("pool"), 64 << 20).unwrap();
        pool.catalog_area().words().unwrap()[9].store(3, Relaxed);
        // Nothing is so slow, and nothing so fast.
        assert!((1 << 20..1 << 50).contains(&pool.read_rate().unwrap()));
        assert_eq!(pool.catalog_area().words().unwrap()[9].load(Relaxed), 3);
    }

    #[test]
    fn a_pool_that_was_cut_off_is_told() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pool");
        let pool = Pool::create(&path, 64 << 20).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(matches!(pool.read_rate(), Err(PoolError::Truncated { .. })));
    }
}
