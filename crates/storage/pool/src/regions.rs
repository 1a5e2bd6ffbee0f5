//! Regions for objects, of users of the pool.
//!
//! ```text
//!  users/USER/regions/NAME    a file that programs map and write to; its bytes count towards USER
//! ```
//! The pool knows its name and its bytes. What is in it is for the programs that use it, and is never trusted.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, fchown};
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

    /// Opens a user's region for processes of user id `owner`, which it belongs to from then on. They open it
    /// once more through the descriptor that they are given: its path leads through directories of the pool's
    /// owner. `None` if the user has no such region.
    ///
    /// # Errors
    /// [`PoolError::RegionOfOther`], [`PoolError::BadUser`], [`PoolError::BadRegionName`], [`PoolError::Io`].
    pub fn grant_region(
        &self,
        user: &str,
        name: &str,
        owner: u32,
    ) -> Result<Option<File>, PoolError> {
        let place = self.region(user, name)?;
        let failed = || self.directory.failed("open the region", &place);
        let opened = self.directory.open_file(&place, OFlags::RDWR).map_err(failed())?;
        let Some(file) = opened else { return Ok(None) };
        let has = file.metadata().map_err(failed())?.uid();
        if has != owner {
            if has != rustix::process::geteuid().as_raw() {
                let region = format!("{user}/{name}");
                return Err(PoolError::RegionOfOther {
                    region,
                    path: self.path().join(place),
                    has,
                });
            }
            fchown(&file, Some(owner), None).map_err(failed())?;
        }
        Ok(Some(file))
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
