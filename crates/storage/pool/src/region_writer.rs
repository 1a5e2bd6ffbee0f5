//! Writing a region of a user. It appears as an image does, by one link, so that a writer that is killed leaves nothing behind.

use std::fs::File;
use std::path::PathBuf;

use crate::error::PoolError;
use crate::failpoint::step;
use crate::layout::USERS;
use crate::regions::directory;
use crate::users::Counts;
use crate::writer::ImageWriter;

impl ImageWriter<'_> {
    /// Takes memory for a region of so many bytes, instead of an image.
    ///
    /// # Errors
    /// Those of [`reserve`](ImageWriter::reserve).
    pub fn reserve_region(&mut self, bytes: u64) -> Result<&File, PoolError> {
        self.counts = Counts { bytes, images: 0 };
        self.reserve(bytes)?;
        self.keep_until(std::slice::from_ref(&(0..bytes)), bytes)?;
        Ok(&self.file.file)
    }

    /// Lets the region appear, with what was written to its file.
    ///
    /// # Errors
    /// [`PoolError::OverQuota`], [`PoolError::Full`], [`PoolError::BadRegionName`], [`PoolError::Gone`],
    /// [`PoolError::Io`], also if there is one of this name; it is given up.
    pub fn publish_region(self, name: &str) -> Result<PathBuf, PoolError> {
        let pool = self.pool;
        let user = self.user.clone().unwrap_or_default();
        let (place, directory) = (pool.region(&user, name)?, directory(&user));
        pool.reachable()?;
        // Others may have been published since memory was taken. A check forgets users without anything.
        let _lock = pool.lock()?;
        let taken = self.taken()?;
        pool.check_quota(Some(&user), Counts { bytes: taken, images: 0 })?;
        pool.demand_room(taken, taken)?;
        let failed = || pool.directory.failed("make the region", &place);
        let made = pool.directory.make(&format!("{USERS}/{user}"));
        made.and_then(|()| pool.directory.make(&directory)).map_err(failed())?;
        if pool.directory.look(&place).map_err(failed())?.is_some() {
            return Err(failed()(std::io::ErrorKind::AlreadyExists.into()));
        }
        step();
        self.file.appear(&place).map_err(failed())?;
        Ok(pool.path().join(place))
    }
}
