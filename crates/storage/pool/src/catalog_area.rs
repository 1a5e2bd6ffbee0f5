//! Words of the pool that its users arrange as they like.

use std::sync::atomic::AtomicU64;

use farfork_types::CHUNK_BYTES;

use crate::error::PoolError;
use crate::lock::{HeldLock, LockByte};
use crate::pool::Pool;

/// One chunk of words, all 0 when the pool is made, that every user of the pool sees. Changes that
/// take more than one store go under the lock and order their stores so that a reader, and the
/// next holder after a crash, makes sense of every prefix.
#[derive(Clone, Copy)]
pub struct CatalogArea<'p> {
    pool: &'p Pool,
}

/// The held lock of the catalog area; dropped with this value or with its process.
#[derive(Debug)]
pub struct CatalogLock {
    _held: HeldLock,
}

impl<'p> CatalogArea<'p> {
    /// The words.
    ///
    /// # Errors
    /// [`PoolError::Truncated`] or [`PoolError::Gone`] if the pool is no longer whole.
    pub fn words(&self) -> Result<&'p [AtomicU64], PoolError> {
        self.pool.intact()?;
        let offset = self.pool.layout.catalog.offset();
        Ok(self.pool.map.table(offset, CHUNK_BYTES as usize / 8))
    }

    /// Waits until no other process and no other thread holds the lock.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn lock(&self) -> Result<CatalogLock, PoolError> {
        let held = HeldLock::take(&self.pool.file, LockByte::CATALOG)
            .map_err(PoolError::io("lock the catalog of", &self.pool.path))?;
        Ok(CatalogLock { _held: held })
    }
}

impl Pool {
    /// The words that the pool keeps for a catalog of its images.
    pub fn catalog_area(&self) -> CatalogArea<'_> {
        CatalogArea { pool: self }
    }
}
