//! A pool: made, opened, looked at, destroyed.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use farfork_types::CHUNK_BYTES;
use rustix::fs::{FileType, Stat};

use crate::account::Account;
use crate::directory::{self, Directory};
use crate::error::PoolError;
use crate::layout::{self, DIRECTORIES, NEW, TRUSTED_OWNER};
use crate::lock::{HeldLock, LockByte};
use crate::media::Medium;
use crate::probe::Probe;
use crate::superblock::{self, Superblock};

/// Directories that are open to all users, and have to stay so. Any other becomes its owner's alone.
const SHARED_PLACES: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];

/// An open pool. Any number of threads and processes may use one pool at once.
pub struct Pool {
    pub(crate) directory: Directory,
    pub(crate) medium: Medium,
    /// Whether other kernels may map its files, so that removed images wait for pins.
    pub(crate) is_shared: bool,
    pub(crate) account: Account,
    /// Whether it is all of a file system of its own, which then limits its size.
    pub(crate) is_own_mount: bool,
    /// The user whose it is.
    pub(crate) owner: u32,
    pub(crate) probe: Probe,
    pub(crate) superblock: File,
    size: u64,
    uuid: [u8; 16],
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Bytes of the smallest pool.
    pub const SMALLEST_BYTES: u64 = layout::SMALLEST_BYTES;

    /// Makes a pool of `size` bytes, a multiple of the chunk size, in a directory that is new or empty,
    /// and that only its owner may use.
    ///
    /// # Errors
    /// [`PoolError::BadSize`]; [`PoolError::Unsuitable`]; [`PoolError::MediumFull`];
    /// [`PoolError::NotEmpty`]; [`PoolError::Io`].
    pub fn create(path: &Path, size: u64) -> Result<Pool, PoolError> {
        Pool::check_size(path, size)?;
        let is_new = match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(PoolError::io("make the pool", path)(error)),
        };
        Pool::make(path, size).inspect_err(|_| {
            if is_new {
                let _ = fs::remove_dir(path);
            }
        })
    }

    fn make(path: &Path, size: u64) -> Result<Pool, PoolError> {
        let directory = Directory::open(path)?;
        let failed = || directory.failed("make the pool", "");
        demand_owner(&directory)?;
        if SHARED_PLACES.iter().any(|place| directory.path() == Path::new(place)) {
            let why = "other users keep files there; give a directory of its own below it";
            return Err(PoolError::Unsuitable { path: directory.path().to_owned(), why });
        }
        let medium = Medium::under(directory.fd()).map_err(failed())?;
        medium.suits(path)?;
        let is_taken = || PoolError::NotEmpty { path: directory.path().to_owned() };
        if !is_vacant(&directory).map_err(failed())? {
            return Err(is_taken());
        }
        let block = Superblock::new(size, random_bytes(path)?, medium);
        fill(&directory, &block).map_err(|source| {
            // Another process may have made one here meanwhile.
            if !matches!(directory.look(superblock::NAME), Ok(None)) {
                return is_taken();
            }
            let _ = empty(&directory);
            match source.kind() {
                ErrorKind::StorageFull => {
                    let path = directory.path().to_owned();
                    PoolError::MediumFull { path, asked: CHUNK_BYTES, source }
                }
                _ => failed()(source),
            }
        })?;
        Pool::open(path)
    }

    /// Demands that a pool can have this size, before anything is made for it.
    ///
    /// # Errors
    /// [`PoolError::BadSize`].
    pub fn check_size(path: &Path, size: u64) -> Result<(), PoolError> {
        let is_fit = size >= Pool::SMALLEST_BYTES
            && size.is_multiple_of(CHUNK_BYTES)
            && i64::try_from(size).is_ok();
        match is_fit {
            true => Ok(()),
            false => Err(PoolError::BadSize { path: path.to_owned(), size }),
        }
    }

    /// Opens the pool in the directory at `path`.
    ///
    /// # Errors
    /// [`PoolError::NotAPool`], [`PoolError::OldPool`], [`PoolError::OtherVersion`],
    /// [`PoolError::DamagedSuperblock`], [`PoolError::Unsuitable`], [`PoolError::ForeignOwner`],
    /// [`PoolError::Exposed`], [`PoolError::OtherMedium`], [`PoolError::Misplaced`], [`PoolError::Io`].
    pub fn open(path: &Path) -> Result<Pool, PoolError> {
        let found = fs::metadata(path).map_err(PoolError::io("open the pool", path))?;
        if found.is_file() {
            let is_old = File::open(path).is_ok_and(|file| Superblock::is_old_pool(&file));
            let path = path.to_owned();
            return Err(match is_old {
                true => PoolError::OldPool { path },
                false => PoolError::NotAPool { path },
            });
        }
        if !found.is_dir() {
            return Err(PoolError::NotAPool { path: path.to_owned() });
        }
        let directory = Directory::open(path)?;
        let owner = demand_owner(&directory)?;
        demand_private(&directory)?;
        demand_private_rooms(&directory, owner)?;
        let (block, superblock) = Superblock::load(&directory)?;
        let look = || directory.failed("look at", "");
        let made_on = Medium::of_pool(directory.fd(), &superblock).map_err(look())?;
        made_on.suits(path)?;
        let is_shared = block.shares(directory.path(), made_on)?;
        let medium = directory.medium_of_images(made_on)?;
        let (own, above) = directory.look_around().map_err(look())?;
        let account = Account::of(block.uuid, medium);
        Ok(Pool {
            account,
            is_own_mount: medium == Medium::Tmpfs && own.st_dev != above.st_dev,
            directory,
            medium,
            is_shared,
            owner,
            probe: Probe::default(),
            superblock,
            size: block.size,
            uuid: block.uuid,
        })
    }

    /// Deletes what lies in the pool at `path`, the directory unless something is mounted there, and its
    /// cgroup. Memory that clones still map goes with them.
    ///
    /// # Errors
    /// [`PoolError::InUse`] if a process writes an image or a node pins one; what
    /// [`open`](Pool::open) reports; [`PoolError::Io`].
    pub fn destroy(path: &Path) -> Result<(), PoolError> {
        let pool = Pool::open(path)?;
        let lock = pool.lock()?;
        let users = pool.uses(&lock)?;
        if !users.is_empty() {
            let path = pool.path().to_owned();
            return Err(PoolError::InUse { path, users: users.join(", ") });
        }
        pool.delete()
    }

    /// The same, also if a process writes an image, or a node has left pins that will never be cleared.
    ///
    /// # Errors
    /// What [`open`](Pool::open) reports; [`PoolError::Io`].
    pub fn destroy_used(path: &Path) -> Result<(), PoolError> {
        let pool = Pool::open(path)?;
        let _lock = pool.lock()?;
        pool.delete()
    }

    fn delete(&self) -> Result<(), PoolError> {
        // Last what makes it a pool: should this process die, the command can be repeated.
        let failed = || self.directory.failed("delete the pool", "");
        empty(&self.directory).map_err(failed())?;
        self.directory.remove(superblock::NAME).map_err(failed())?;
        match fs::remove_dir(self.path()) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {} // a mount
            done => done.map_err(failed())?,
        }
        self.account.delete().map_err(PoolError::io("delete the cgroup of the pool", self.path()))
    }

    /// Where the pool lies; absolute.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What the pool lies on.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Whether processes of other kernels may map the same files, so that a removed image stays as long as
    /// a node pins it.
    pub fn is_shared_by_kernels(&self) -> bool {
        self.is_shared
    }

    /// For tests: as if it lay on another medium.
    #[doc(hidden)]
    pub fn as_on(self, medium: Medium) -> Pool {
        Pool { medium, is_shared: medium.is_shared_by_kernels(), ..self }
    }

    /// For tests: as if its medium had no files without a name.
    #[doc(hidden)]
    pub fn with_named_files(mut self) -> Pool {
        self.directory.name_all();
        self
    }

    /// For tests: as if it had no cgroup of its own, as without root.
    #[doc(hidden)]
    pub fn charged_to_writers(mut self) -> Pool {
        self.account = Account::of_writers(self.medium, "a test asks for it");
        self
    }

    /// The pool's random name.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Bytes that images can take, and how many of these they can still take.
    pub(crate) fn space(&self) -> Result<(u64, u64), PoolError> {
        let (total, free) = self.medium_space()?;
        if self.is_own_mount {
            return Ok((total, free));
        }
        Ok((self.size, self.left()?.min(free)))
    }

    /// Demands that an image can take `bytes` bytes, of which it has `has` already.
    ///
    /// # Errors
    /// [`PoolError::Full`]; [`PoolError::Io`].
    pub(crate) fn demand_room(&self, bytes: u64, has: u64) -> Result<(), PoolError> {
        let (asked, free) = match self.is_own_mount {
            true => (bytes.saturating_sub(has), self.medium_space()?.1),
            // What is not published is not counted. Whether the medium has it is for the kernel to say.
            false => (bytes, self.left()?),
        };
        match asked <= free {
            true => Ok(()),
            false => Err(PoolError::Full { path: self.path().to_owned(), asked, free }),
        }
    }

    /// Bytes of the file system, and how many of them are free.
    fn medium_space(&self) -> Result<(u64, u64), PoolError> {
        let system = rustix::fs::fstatvfs(self.directory.fd());
        let system = system.map_err(PoolError::io("look at", self.path()))?;
        Ok((system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize))
    }

    /// Bytes of the pool's size that published images and regions do not take.
    fn left(&self) -> Result<u64, PoolError> {
        let mut used = 0;
        for cid in self.images()? {
            let taken = self.taken(cid).map_err(self.directory.failed("look at", ""))?;
            used += taken.map_or(0, |(image, tables)| image + tables);
        }
        Ok(self.size.saturating_sub(used).saturating_sub(self.bytes_of_regions()?))
    }

    /// Looks whether the pool is still there.
    pub(crate) fn intact(&self) -> Result<Metadata, PoolError> {
        let now = self.superblock.metadata().map_err(PoolError::io("look at", self.path()))?;
        match now.nlink() {
            0 => Err(PoolError::Gone { path: self.path().to_owned() }),
            _ => Ok(now),
        }
    }

    /// Whether the pool is still what was opened.
    pub fn is_intact(&self) -> bool {
        self.intact().is_ok()
    }

    /// As [`intact`](Pool::intact), and the path still leads here: no process should fill a pool that
    /// no other process can find.
    pub(crate) fn reachable(&self) -> Result<(), PoolError> {
        let ours = self.intact()?;
        match fs::metadata(self.path().join(superblock::NAME)) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(()),
            _ => Err(PoolError::Gone { path: self.path().to_owned() }),
        }
    }

    /// Takes the lock of all that is changed by one process at a time.
    pub(crate) fn lock(&self) -> Result<HeldLock, PoolError> {
        self.take_lock(LockByte::TABLES)
    }

    pub(crate) fn take_lock(&self, byte: LockByte) -> Result<HeldLock, PoolError> {
        HeldLock::take(&self.superblock, byte).map_err(PoolError::io("lock", self.path()))
    }
}

/// Whether nothing lies in a directory but what the making of a pool has left that was killed.
fn is_vacant(directory: &Directory) -> std::io::Result<bool> {
    for name in directory.list(".")?.iter().filter(|name| *name != "lost+found") {
        let is_ours = DIRECTORIES.contains(&name.as_str()) && directory.is_directory(name)?;
        let is_left = |file: &String| name == NEW && directory::is_unique(file);
        if !is_ours || !directory.list(name)?.iter().all(is_left) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts into a vacant directory what makes it a pool, the superblock last.
fn fill(directory: &Directory, block: &Superblock) -> std::io::Result<()> {
    rustix::fs::fchmod(directory.fd(), rustix::fs::Mode::RWXU)?;
    DIRECTORIES.iter().try_for_each(|name| directory.make(name))?;
    directory.sweep()?;
    // A file without a name replaces none that another process has made.
    let new = directory.new_file(".")?;
    new.write_small(zerocopy::IntoBytes::as_bytes(block))?;
    new.appear(superblock::NAME).map(drop)
}

/// A plan is a program that root would run: a pool of another user is used only where that was asked for.
/// Returns the owner.
fn demand_owner(directory: &Directory) -> Result<u32, PoolError> {
    let (found, _) = directory.look_around().map_err(directory.failed("look at", ""))?;
    let (path, owner) = (directory.path().to_owned(), found.st_uid);
    let own = rustix::process::geteuid().as_raw();
    let trusted = || std::env::var(TRUSTED_OWNER).ok().and_then(|text| text.parse().ok());
    if owner != own && trusted() != Some(owner) {
        return Err(PoolError::ForeignOwner { path, owner });
    }
    Ok(owner)
}

fn demand_private(directory: &Directory) -> Result<(), PoolError> {
    let (found, _) = directory.look_around().map_err(directory.failed("look at", ""))?;
    match found.st_mode & 0o022 {
        0 => Ok(()),
        _ => Err(PoolError::Exposed { path: directory.path().to_owned() }),
    }
}

/// The same of the directories in it, as far as they are there. Only the pool's own keeps others out of them.
fn demand_private_rooms(directory: &Directory, owner: u32) -> Result<(), PoolError> {
    for name in DIRECTORIES {
        let found = directory.look(name).map_err(directory.failed("look at", name))?;
        // Root may have died before it has given the owner what it had made.
        let is_private =
            |found: Stat| [owner, 0].contains(&found.st_uid) && found.st_mode & 0o022 == 0;
        let is_directory = |found: &Stat| FileType::from_raw_mode(found.st_mode).is_dir();
        if found.filter(is_directory).is_some_and(|found| !is_private(found)) {
            return Err(PoolError::ExposedRoom { path: directory.path().join(name), owner });
        }
    }
    Ok(())
}

/// Removes all that a pool has in its directory.
fn empty(directory: &Directory) -> std::io::Result<()> {
    for name in DIRECTORIES {
        remove_all(directory, name, 0)?;
    }
    Ok(())
}

/// Removes a directory, and what lies in it to the depth of names.
fn remove_all(directory: &Directory, name: &str, depth: u32) -> std::io::Result<()> {
    for entry in directory.list(name)? {
        let path = format!("{name}/{entry}");
        if depth < 3 && directory.is_directory(&path)? {
            remove_all(directory, &path, depth + 1)?;
        } else {
            directory.remove(&path)?;
        }
    }
    directory.remove_directory(name).map(drop)
}

/// 16 random bytes.
pub(crate) fn random_bytes(path: &Path) -> Result<[u8; 16], PoolError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(PoolError::io("draw a random name in", path))?;
    Ok(bytes)
}
