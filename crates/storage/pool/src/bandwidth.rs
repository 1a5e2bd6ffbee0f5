//! How fast the pool can be read just now.

use std::hint::black_box;
use std::time::{Duration, Instant};

use farfork_sys::cache;
use farfork_sys::sync::locked;

use crate::directory;
use crate::error::PoolError;
use crate::layout::NEW;
use crate::map::SharedMap;
use crate::pool::Pool;

/// What is read at a time: some microseconds' work, so that most are not interrupted.
const BURST_BYTES: u64 = 64 << 10;
/// How often; the fastest counts, as a processor may be taken away during any.
const BURSTS: u64 = 8;
const PROBE_BYTES: u64 = BURST_BYTES * BURSTS;

impl Pool {
    /// Bytes that one processor reads from the pool in a second, as it is just now: half a mebibyte of
    /// its medium is taken out of caches and read, which keeps a processor busy for about half a
    /// millisecond. The more of the pool's bandwidth others use, the longer every line takes, and the
    /// fewer bytes these are. While others leave some, a processor alone does not come near what the
    /// pool can do, so that this does not measure it.
    ///
    /// # Errors
    /// [`PoolError::Gone`]; [`PoolError::Io`] if there is no room for what is read.
    pub fn read_rate(&self) -> Result<u64, PoolError> {
        self.intact()?;
        let mut probe = locked(&self.probe.0);
        if probe.is_none() {
            let failed = self.directory.failed("make memory to measure in", "");
            *probe = Some(self.make_probe().map_err(failed)?);
        }
        let Some(map) = &*probe else { return Ok(0) };
        let bursts = (0..BURSTS).map(|at| map.bytes(at * BURST_BYTES..(at + 1) * BURST_BYTES));
        let fastest = bursts.map(read).fold(Duration::MAX, Duration::min);
        let per_second = u128::from(BURST_BYTES) * 1_000_000_000 / fastest.as_nanos().max(1);
        Ok(per_second as u64)
    }

    fn make_probe(&self) -> std::io::Result<SharedMap> {
        let new = self.directory.new_file(NEW)?;
        new.file.set_len(PROBE_BYTES)?;
        let mut map = SharedMap::new(&new.file, PROBE_BYTES)?;
        crate::media::reserve(self.medium, &new.file, &(0..PROBE_BYTES))?;
        directory::give_back(&new.file, PROBE_BYTES, farfork_types::CHUNK_BYTES)?;
        map.bytes_mut(0..PROBE_BYTES).fill(1);
        Ok(map)
    }
}

/// How long it takes to have every line of these.
fn read(bytes: &[u8]) -> Duration {
    cache::evict(bytes);
    let begun = Instant::now();
    black_box(bytes.chunks(cache::LINE_BYTES).fold(0, |sum, line| line[0] ^ sum));
    begun.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_read_again_and_again() {
        let place = tempfile::tempdir().unwrap();
        let pool = Pool::create(&place.path().join("pool"), 64 << 20).unwrap();
        // Nothing is so slow, and nothing so fast.
        for _ in 0..2 {
            assert!((1 << 20..1 << 50).contains(&pool.read_rate().unwrap()));
        }
        Pool::destroy(pool.path()).unwrap();
        assert!(matches!(pool.read_rate(), Err(PoolError::Gone { .. })));
    }
}
