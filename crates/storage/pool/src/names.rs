//! Names of images: links, in directories of their users and functions.
//!
//! Names are changed under a lock of the pool. A name moves by a rename: a reader sees what it meant before
//! or what it means now, and takes no lock.

use std::path::Path;

use farfork_types::Cid;

use crate::error::PoolError;
use crate::failpoint;
use crate::layout::NAMES;
use crate::lock::{HeldLock, LockByte};
use crate::pool::Pool;

/// A name and the image that it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedImage {
    /// User, function and tag.
    pub parts: [String; 3],
    /// The image; none if the link says nothing that could be one.
    pub cid: Option<Cid>,
    /// When the name was set, in seconds since 1970.
    pub set_unix_s: u64,
}

fn path_of([user, function, tag]: [&str; 3]) -> String {
    format!("{NAMES}/{user}/{function}/{tag}")
}

fn target_of(cid: Cid) -> String {
    format!("../../../images/{cid}")
}

fn meant(target: &str) -> Option<Cid> {
    let cid = Path::new(target).file_name()?.to_str()?.parse().ok()?;
    (target == target_of(cid)).then_some(cid)
}

/// The lock under which names change. Its holder must not call what takes it again.
pub struct NamesLock<'p> {
    pool: &'p Pool,
    _lock: HeldLock,
}

impl NamesLock<'_> {
    /// Lets a name mean `cid`; returns what it meant before.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn set(&self, parts: [&str; 3], cid: Cid) -> Result<Option<Cid>, PoolError> {
        let (path, directory) = (path_of(parts), &self.pool.directory);
        let failed = || directory.failed("set the name", &path);
        let before = directory.read_link(&path).map_err(failed())?;
        let [user, function, _] = parts;
        directory.make(&format!("{NAMES}/{user}")).map_err(failed())?;
        directory.make(&format!("{NAMES}/{user}/{function}")).map_err(failed())?;
        directory.put_link(&target_of(cid), &path).map_err(failed())?;
        Ok(before.and_then(|target| meant(&target)))
    }
}

impl Pool {
    /// The image that a name means. The parts of the name are names of files.
    ///
    /// # Errors
    /// [`PoolError::BadName`] if the link was not made by this; [`PoolError::Gone`], [`PoolError::Io`].
    pub fn named(&self, parts: [&str; 3]) -> Result<Option<Cid>, PoolError> {
        let path = path_of(parts);
        let read = self.directory.read_link(&path);
        match read.map_err(self.directory.failed("read the name", &path))? {
            None => self.intact().map(|_| None),
            Some(target) => match meant(&target) {
                Some(cid) => Ok(Some(cid)),
                None => Err(PoolError::BadName { path: self.path().join(path) }),
            },
        }
    }

    /// Lets a name mean `cid`; returns what it meant before.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn set_name(&self, parts: [&str; 3], cid: Cid) -> Result<Option<Cid>, PoolError> {
        self.lock_names()?.set(parts, cid)
    }

    /// Keeps other processes from changing names, and from removing images that have none.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn lock_names(&self) -> Result<NamesLock<'_>, PoolError> {
        self.reachable()?;
        Ok(NamesLock { pool: self, _lock: self.take_lock(LockByte::NAMES)? })
    }

    /// Removes an image if it has no name. Returns whether it is gone: it may have been before.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn remove_unnamed(&self, cid: Cid) -> Result<bool, PoolError> {
        let _lock = self.lock_names()?;
        if self.names()?.iter().any(|name| name.cid == Some(cid)) {
            return Ok(false);
        }
        failpoint::step();
        match self.remove(cid) {
            Ok(()) | Err(PoolError::NoImage { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes a name away, and returns what it meant. The image stays.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn remove_name(&self, parts: [&str; 3]) -> Result<Option<Cid>, PoolError> {
        self.reachable()?;
        let path = path_of(parts);
        let _lock = self.take_lock(LockByte::NAMES)?;
        let failed = || self.directory.failed("remove the name", &path);
        let before = self.directory.read_link(&path).map_err(failed())?;
        if before.is_some() {
            self.directory.remove(&path).map_err(failed())?;
            let [user, function, _] = parts;
            for directory in [format!("{NAMES}/{user}/{function}"), format!("{NAMES}/{user}")] {
                self.directory.remove_directory(&directory).map_err(failed())?;
            }
        }
        Ok(before.and_then(|target| meant(&target)))
    }

    /// All names, in order.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn names(&self) -> Result<Vec<NamedImage>, PoolError> {
        self.intact()?;
        let failed = || self.directory.failed("list the names of", "");
        let list = |path: &str| self.directory.list(path).map_err(failed());
        let mut names = Vec::new();
        for user in list(NAMES)? {
            for function in list(&format!("{NAMES}/{user}"))? {
                for tag in list(&format!("{NAMES}/{user}/{function}"))? {
                    let path = path_of([&user, &function, &tag]);
                    let found = self.directory.look(&path).map_err(failed())?;
                    let target = self.directory.read_link(&path).map_err(failed())?;
                    // A directory was not made here.
                    let is_file = |found: &rustix::fs::Stat| {
                        let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
                        kind != rustix::fs::FileType::Directory
                    };
                    if let Some(found) = found.filter(is_file) {
                        names.push(NamedImage {
                            parts: [user.clone(), function.clone(), tag],
                            cid: target.and_then(|target| meant(&target)),
                            set_unix_s: found.st_mtime as u64,
                        });
                    }
                }
            }
        }
        names.sort_by(|a, b| a.parts.cmp(&b.parts));
        Ok(names)
    }
}
