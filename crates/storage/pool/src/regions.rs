//! Regions for objects, of users of the pool.
//!
//! ```text
//!  users/USER/regions/NAME    a file that programs map and write to; its bytes count towards USER
//! ```
//! The pool knows its name and its bytes. What is in it is for the programs that use it, and is never trusted.

use std::path::PathBuf;

use rustix::fs::{FileType, OFlags};
use serde::Serialize;

use crate::error::PoolError;
use crate::layout::USERS;
use crate::lock;
use crate::pool::Pool;

/// Directory of a user's regions.
pub(crate) const REGIONS: &str = "regions";

/// A region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Bytes that it takes.
    pub bytes: u64,
}

impl Pool {
    /// Where a user's region lies or would lie.
    ///
    /// # Errors
    /// [`PoolError::BadUser`], [`PoolError::BadRegionName`], [`PoolError::Gone`].
    pub fn region_path(&self, user: &str, name: &str) -> Result<PathBuf, PoolError> {
        self.reachable()?;
        Ok(self.path().join(self.region(user, name)?))
    }

    pub(crate) fn region(&self, user: &str, name: &str) -> Result<String, PoolError> {
        self.check_user(user)?;
        // The same rules.
        self.check_user(name)
            .map_err(|_| PoolError::BadRegionName { name: name.to_owned() })
            .map(|()| format!("{}/{name}", directory(user)))
    }

    /// The regions of a user, in order of their names.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn regions(&self, user: &str) -> Result<Vec<RegionInfo>, PoolError> {
        let directory = directory(user);
        let failed = || self.directory.failed("look at the regions in", &directory);
        let mut regions = Vec::new();
        for name in self.directory.list(&directory).map_err(failed())? {
            let found = self.directory.look(&format!("{directory}/{name}")).map_err(failed())?;
            if let Some(found) = found
                && FileType::from_raw_mode(found.st_mode).is_file()
            {
                regions.push(RegionInfo { name, bytes: found.st_blocks as u64 * 512 });
            }
        }
        regions.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(regions)
    }

    /// Bytes of the regions of all users.
    pub(crate) fn bytes_of_regions(&self) -> Result<u64, PoolError> {
        let mut bytes = 0;
        for user in self.users()? {
            bytes += self.regions(&user)?.iter().map(|region| region.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    /// Regions that programs have open, in words.
    pub(crate) fn uses_of_regions(&self) -> Result<Vec<String>, PoolError> {
        let mut uses = Vec::new();
        for user in self.users()? {
            for region in self.regions(&user)? {
                let name = format!("{}/{}", directory(&user), region.name);
                let failed = || self.directory.failed("look for clients of", &name);
                let file = self.directory.open_file(&name, OFlags::RDONLY).map_err(failed())?;
                let is_used = file.map(|file| lock::is_any_held(&file)).transpose();
                if is_used.map_err(failed())? == Some(true) {
                    uses.push(format!("programs use region {user}/{}", region.name));
                }
            }
        }
        Ok(uses)
    }
}

/// Directory of a user's regions.
pub(crate) fn directory(user: &str) -> String {
    format!("{USERS}/{user}/{REGIONS}")
}
