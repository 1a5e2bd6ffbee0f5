//! A pool: made, opened, looked at, destroyed.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::account::Account;
use crate::chunks::{ChunkTable, LockedChunks};
use crate::device;
use crate::error::PoolError;
use crate::ids::{ChunkIndex, Extent};
use crate::layout::{CHUNKS_AT, IMAGES_AT, ImageRecord, Layout};
use crate::lock::{self, HeldLock, LockByte};
use crate::map::SharedMap;
use crate::media::Medium;
use crate::placement::Placement;
use crate::superblock::Superblock;

/// An open pool. Any number of threads and processes may use one pool at once.
pub struct Pool {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) map: SharedMap,
    pub(crate) layout: Layout,
    pub(crate) medium: Medium,
    pub(crate) account: Account,
    uuid: [u8; 16],
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes a pool of `size` bytes, a multiple of the chunk size, in a new file that only its
    /// owner may use; or on a device that is mapped directly, all of which is overwritten.
    ///
    /// # Errors
    /// [`PoolError::BadSize`]; [`PoolError::Unsuitable`]; [`PoolError::MediumFull`] if there is no
    /// room for the tables; [`PoolError::Io`], also if the file exists.
    pub fn create(path: &Path, size: u64) -> Result<Pool, PoolError> {
        let layout = Pool::layout(path, size)?;
        if fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device()) {
            return Pool::create_on_device(path, layout);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(PoolError::io("make the pool", path))?;
        Pool::format(path, file, layout).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    fn create_on_device(path: &Path, layout: Layout) -> Result<Pool, PoolError> {
        let unsuitable = |why| PoolError::Unsuitable { path: path.to_owned(), why };
        let file = Pool::open_file(path).map_err(|error| match error {
            PoolError::NotAPool { .. } => {
                unsuitable("it is a device, and none whose memory is mapped directly")
            }
            other => other,
        })?;
        let (bytes, alignment) =
            device::size_and_alignment(&file).map_err(PoolError::io("look at", path))?;
        if layout.size() > bytes {
            return Err(unsuitable("the device is smaller"));
        }
        if !layout.size().is_multiple_of(alignment) {
            return Err(unsuitable("the device is mapped by whole huge pages of its own size"));
        }
        match Superblock::load(&file, path) {
            Err(PoolError::NotAPool { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(unsuitable("it holds one: destroy that first")),
        }
        let pool = Pool::assemble(path, file, layout, random_bytes(path)?)?;
        pool.wipe(layout.all())?;
        Superblock::new(&layout, pool.uuid).store(&pool.map);
        Ok(pool)
    }

    fn layout(path: &Path, size: u64) -> Result<Layout, PoolError> {
        Layout::of(size).ok_or_else(|| PoolError::BadSize { path: path.to_owned(), size })
    }

    /// Demands that a pool can have this size, before anything is made for it.
    ///
    /// # Errors
    /// [`PoolError::BadSize`].
    pub fn check_size(path: &Path, size: u64) -> Result<(), PoolError> {
        Pool::layout(path, size).map(drop)
    }

    fn format(path: &Path, file: File, layout: Layout) -> Result<Pool, PoolError> {
        file.set_len(layout.size()).map_err(PoolError::io("size the pool", path))?;
        let pool = Pool::assemble(path, file, layout, random_bytes(path)?)?;
        Placement::of(&pool.file)
            .and_then(|placement| placement.begin(&pool.file, layout.all()))
            .map_err(PoolError::io("place the memory of", path))?;
        pool.reserve(None, &[layout.metadata()]).inspect_err(|_| {
            let _ = pool.account.delete();
        })?;
        Superblock::new(&layout, pool.uuid).store(&pool.map);
        Ok(pool)
    }

    /// Opens the pool at `path` for reading and writing.
    ///
    /// # Errors
    /// [`PoolError::NotAPool`], [`PoolError::Unfinished`], [`PoolError::OtherVersion`],
    /// [`PoolError::DamagedSuperblock`], [`PoolError::Truncated`], [`PoolError::Unsuitable`],
    /// [`PoolError::Io`].
    pub fn open(path: &Path) -> Result<Pool, PoolError> {
        let file = Pool::open_file(path)?;
        let superblock = Superblock::load(&file, path)?;
        let damaged = || PoolError::DamagedSuperblock { path: path.to_owned() };
        let layout = Layout::of(superblock.size).ok_or_else(damaged)?;
        Pool::assemble(path, file, layout, superblock.uuid)
    }

    /// Opens what may be a pool, and nothing else: a pipe would wait for a reader, and there are devices
    /// that begin to do something.
    fn open_file(path: &Path) -> Result<File, PoolError> {
        let failed = PoolError::io("open the pool", path);
        let look = || -> io::Result<Option<OwnedFd>> {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let place = File::from(rustix::fs::open(path, flags, Mode::empty())?);
            let may_be = place.metadata()?.is_file() || device::is_one(&place)?;
            may_be.then(|| lock::reopen(&place, OFlags::RDWR)).transpose()
        };
        let found = look().map_err(failed)?;
        found.map(File::from).ok_or_else(|| PoolError::NotAPool { path: path.to_owned() })
    }

    fn assemble(
        path: &Path,
        file: File,
        layout: Layout,
        uuid: [u8; 16],
    ) -> Result<Pool, PoolError> {
        let medium = Medium::of(&file).map_err(PoolError::io("look at", path))?;
        medium.suits(path)?;
        let map = SharedMap::new(&file, layout.size()).map_err(PoolError::io("map", path))?;
        let path = path.canonicalize().map_err(PoolError::io("find", path))?;
        let account = Account::of(uuid, medium);
        Ok(Pool { path, file, map, layout, medium, account, uuid })
    }

    /// Deletes the pool at `path` and its cgroup. Memory that clones still map goes with them. A device
    /// stays, with nothing on it.
    ///
    /// # Errors
    /// [`PoolError::InUse`] if a process writes an image or a node pins one; what
    /// [`open`](Pool::open) reports; [`PoolError::Io`].
    pub fn destroy(path: &Path) -> Result<(), PoolError> {
        let pool = Pool::open(path)?;
        let lock = pool.lock()?;
        let users = pool.users(&lock)?;
        if !users.is_empty() {
            return Err(PoolError::InUse { path: pool.path, users: users.join(", ") });
        }
        pool.delete()
    }

    /// The same, also if a process writes an image, or a node has left pins that will never be cleared: a
    /// device cannot just be deleted.
    ///
    /// # Errors
    /// What [`open`](Pool::open) reports; [`PoolError::Io`].
    pub fn destroy_used(path: &Path) -> Result<(), PoolError> {
        let pool = Pool::open(path)?;
        let _lock = pool.lock()?;
        pool.delete()
    }

    fn delete(&self) -> Result<(), PoolError> {
        if !self.medium.is_file() {
            return self.wipe(self.layout.all());
        }
        fs::remove_file(&self.path).map_err(PoolError::io("delete the pool", &self.path))?;
        self.account.delete().map_err(PoolError::io("delete the cgroup of the pool", &self.path))
    }

    /// Where the pool lies; absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it lies on.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// The pool's random name.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Opens the pool's file once more, for reading only: what clones map.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn open_read_only(&self) -> Result<OwnedFd, PoolError> {
        self.intact()?;
        lock::reopen(&self.file, OFlags::RDONLY)
            .map_err(PoolError::io("open for reading", &self.path))
    }

    /// `len` bytes at `offset` of the pool: of a published image that the caller pins, or that
    /// is not removed meanwhile; otherwise they may change under the reference.
    ///
    /// # Errors
    /// [`PoolError::OutOfRange`] if they lie outside of the data area; [`PoolError::Gone`],
    /// [`PoolError::Truncated`].
    pub fn bytes(&self, offset: u64, len: u64) -> Result<&[u8], PoolError> {
        let data = self.layout.first_data.run(self.layout.data_chunks());
        if !data.contains(offset, len) {
            return Err(PoolError::OutOfRange { path: self.path.clone(), offset, len });
        }
        self.intact()?;
        Ok(self.map.bytes(offset, len))
    }

    /// Looks whether the file is still there in its full length, before it is touched.
    pub(crate) fn intact(&self) -> Result<Metadata, PoolError> {
        let now = self.file.metadata().map_err(PoolError::io("look at", &self.path))?;
        let (path, size) = (self.path.clone(), self.layout.size());
        match now.nlink() {
            _ if !self.medium.is_file() => match Superblock::is_there(&self.map, self.uuid) {
                true => Ok(now),
                // A device stays when the pool on it is destroyed, and may have another by now.
                false => Err(PoolError::Gone { path }),
            },
            0 => Err(PoolError::Gone { path }),
            _ if now.len() < size => Err(PoolError::Truncated { path, found: now.len(), size }),
            _ => Ok(now),
        }
    }

    /// Whether the pool is still what was opened, in its full length.
    pub fn is_intact(&self) -> bool {
        self.intact().is_ok()
    }

    /// As [`intact`](Pool::intact), and the path still leads here: no process should fill a pool that
    /// no other process can find.
    pub(crate) fn reachable(&self) -> Result<(), PoolError> {
        let ours = self.intact()?;
        match fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(()),
            _ => Err(PoolError::Gone { path: self.path.clone() }),
        }
    }

    /// Takes the lock of all tables.
    pub(crate) fn lock(&self) -> Result<HeldLock, PoolError> {
        HeldLock::take(&self.file, LockByte::TABLES).map_err(PoolError::io("lock", &self.path))
    }

    pub(crate) fn images(&self) -> &[ImageRecord] {
        self.map.table(IMAGES_AT, crate::MAX_IMAGES)
    }

    pub(crate) fn chunks(&self) -> ChunkTable<'_> {
        let records = self.map.table(CHUNKS_AT, self.layout.chunks as usize);
        ChunkTable { records, first_data: self.layout.first_data }
    }

    pub(crate) fn allocator<'a>(&'a self, lock: &'a HeldLock) -> LockedChunks<'a> {
        LockedChunks::new(self.chunks(), lock)
    }

    /// Gives memory to extents that the caller owns.
    pub(crate) fn reserve(
        &self,
        lock: Option<&HeldLock>,
        runs: &[Extent],
    ) -> Result<(), PoolError> {
        let asked = runs.iter().map(|run| run.bytes()).sum();
        let full = |source| PoolError::MediumFull { path: self.path.clone(), asked, source };
        let reserve = || self.account.reserve((&self.file, &self.map), lock, runs);
        Placement::of(&self.file)
            .and_then(|placement| placement.during(&self.file, runs, reserve))
            .map_err(full)
    }

    /// Empties an extent that is no longer used.
    pub(crate) fn wipe(&self, run: Extent) -> Result<(), PoolError> {
        self.medium
            .wipe(&self.file, &self.map, run)
            .map_err(PoolError::io("empty chunks of", &self.path))
    }

    pub(crate) fn run_at(&self, first: u32, chunks: u32) -> Option<Extent> {
        let run = ChunkIndex(first).run(chunks);
        self.layout.is_data(run).then_some(run)
    }
}

/// 16 random bytes.
pub(crate) fn random_bytes(path: &Path) -> Result<[u8; 16], PoolError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(PoolError::io("draw a random name in", path))?;
    Ok(bytes)
}
