//! Holds: images of which pools on other nodes have not all bytes themselves.
//!
//! A hold is a name, `far-parts/CID:POOL`, in the pool of the node that serves the bytes; POOL is the other pool's
//! random name. An image stays as long as it has a name, so it stays although its own names go. What removes an
//! image with all its names leaves its holds, and a pool with holds is destroyed only by force. An image that is
//! held has all its bytes, and keeps them.

use farfork_pool::{Pool, PoolError};
use farfork_types::Cid;

use crate::catalog::{Catalog, ImageName, ParseNameError};

/// The user in the names of holds.
pub const USER: &str = "far-parts";
/// A holder of the shared key must not fill the names of a pool.
const MOST: usize = 64;

/// Why an image is not held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The pool cannot be read or written, or has no such image.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The name is not one of a pool.
    #[error(transparent)]
    Name(#[from] ParseNameError),
    /// Some of its bytes are elsewhere.
    #[error("it has image {cid} itself only with parts at {node}")]
    FarParts {
        /// The image.
        cid: Cid,
        /// Where they are.
        node: String,
    },
    /// Too many pools hold it.
    #[error(
        "{MOST} other pools need image {cid} already; remove names {USER}/{cid}:… of pools that are gone"
    )]
    TooMany {
        /// The image.
        cid: Cid,
    },
}

/// How a pool is named in holds.
pub fn holder(pool: &Pool) -> String {
    pool.uuid().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name by which `holder` holds an image.
///
/// # Errors
/// `holder` cannot stand in a name.
pub fn name(cid: Cid, holder: &str) -> Result<ImageName, ParseNameError> {
    format!("{USER}/{cid}:{holder}").parse()
}

/// The holds of an image.
///
/// # Errors
/// As with [`Catalog::list`].
pub fn of(pool: &Pool, cid: Cid) -> Result<Vec<ImageName>, PoolError> {
    let mut names = Catalog::of(pool).names_of(cid)?;
    names.retain(|name| name.user() == USER);
    Ok(names)
}

/// Keeps an image of `pool`, of which all bytes are there, for the pool `holder`, until that lets go of it.
///
/// # Errors
/// [`HoldError`].
pub fn hold(pool: &Pool, cid: Cid, holder: &str) -> Result<(), HoldError> {
    let name = name(cid, holder)?;
    // Under this lock it is neither removed when its other names go, nor are parts of it moved elsewhere.
    let names = pool.lock_names()?;
    if let Some(far) = pool.find(cid)?.far() {
        return Err(HoldError::FarParts { cid, node: far.source.clone() });
    }
    let others = of(pool, cid)?;
    if others.len() >= MOST && !others.contains(&name) {
        return Err(HoldError::TooMany { cid });
    }
    names.set(name.parts(), cid)?;
    Ok(())
}

/// Lets go of an image. Returns whether it was held.
///
/// # Errors
/// [`HoldError`].
pub fn release(pool: &Pool, cid: Cid, holder: &str) -> Result<bool, HoldError> {
    Ok(Catalog::of(pool).remove(&name(cid, holder)?)?.is_some())
}
