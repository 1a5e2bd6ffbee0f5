//! The catalog: which image a name means.
//!
//! A name is a link in the pool: `names/USER/FUNCTION/TAG`. It moves by a rename, so that a reader sees what
//! it meant before or what it means now.

mod name;

use farfork_pool::{NamedImage, Pool, PoolError};
use farfork_sys::network_lock;
use farfork_types::Cid;

use crate::format::Image;

pub use name::{ImageName, ParseNameError};

/// The names of the images of a pool.
pub struct Catalog<'p> {
    pool: &'p Pool,
}

/// A name, the image that it means, and when it was set (seconds since 1970).
pub type Named = (ImageName, Cid, u64);

impl<'p> Catalog<'p> {
    /// The catalog of `pool`.
    pub fn of(pool: &'p Pool) -> Catalog<'p> {
        Catalog { pool }
    }

    /// The image that `name` means.
    ///
    /// # Errors
    /// [`PoolError::BadName`], [`PoolError::Gone`], [`PoolError::Io`].
    pub fn get(&self, name: &ImageName) -> Result<Option<Cid>, PoolError> {
        self.pool.named(name.parts())
    }

    /// Lets `name` mean `cid`, and returns what it meant before. A reader sees one of the two.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn set(&self, name: &ImageName, cid: Cid) -> Result<Option<Cid>, PoolError> {
        self.pool.set_name(name.parts(), cid)
    }

    /// Takes the name away, and returns what it meant. The image stays.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn remove(&self, name: &ImageName) -> Result<Option<Cid>, PoolError> {
        self.pool.remove_name(name.parts())
    }

    /// All names by name, the images that they mean, and when they were set (seconds since 1970). What
    /// farfork did not make is left out.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn list(&self) -> Result<Vec<Named>, PoolError> {
        let mut named: Vec<Named> = self.pool.names()?.iter().filter_map(read).collect();
        named.sort();
        Ok(named)
    }

    /// The names that mean `cid`.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn names_of(&self, cid: Cid) -> Result<Vec<ImageName>, PoolError> {
        let meant = self.list()?.into_iter().filter(|(_, image, _)| *image == cid);
        Ok(meant.map(|(name, _, _)| name).collect())
    }

    /// Takes away what lies among the names and is none; how many there were.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn repair(&self) -> Result<usize, PoolError> {
        let mut removed = 0;
        for named in self.pool.names()?.iter().filter(|named| read(named).is_none()) {
            let [user, function, tag] = &named.parts;
            self.pool.remove_name([user, function, tag])?;
            removed += 1;
        }
        Ok(removed)
    }
}

/// Removes an image if it has no name any more, and unlocks its connections. Returns whether it is gone.
///
/// # Errors
/// [`PoolError::Gone`], [`PoolError::Io`].
pub fn discard(pool: &Pool, cid: Cid) -> Result<bool, PoolError> {
    let image = Image::read(pool, cid).ok();
    let is_gone = pool.remove_unnamed(cid)?;
    if is_gone && let Some(connection) = image.iter().flat_map(|i| i.model.connections()).next() {
        // A clone that has taken over the connections has removed the lock.
        let _ = network_lock::unlock(None, &connection.lock);
    }
    Ok(is_gone)
}

fn read(named: &NamedImage) -> Option<Named> {
    let [user, function, tag] = &named.parts;
    let name = format!("{user}/{function}:{tag}").parse().ok()?;
    Some((name, named.cid?, named.set_unix_s))
}
