//! A place for a pool, and images in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use farfork_pool::{ImageFile, Medium, NodeRow, PageBits, PinFile, Pool, PoolError, mount_tmpfs};
use farfork_types::{CHUNK_BYTES, Cid};

/// A directory for a pool, and for what belongs to it.
pub struct Place {
    dir: tempfile::TempDir,
    /// Whether the pool is a tmpfs of its own, with huge pages.
    pub is_mounted: bool,
    /// Cgroups of the pools made here.
    groups: Mutex<Vec<String>>,
}

impl Place {
    /// A tmpfs of its own of so many bytes where we may mount one, else a plain directory.
    pub fn of(bytes: u64) -> Place {
        let mut place = Place::plain();
        fs::create_dir(place.path()).unwrap();
        match mount_tmpfs(&place.path(), bytes) {
            Ok(()) => place.is_mounted = true,
            Err(error) => println!("testing on a plain directory: {error}"),
        }
        place
    }

    /// The same, large enough for most tests.
    pub fn new() -> Place {
        Place::of(128 << 20)
    }

    /// A directory of the file system of temporary files; nothing is at the pool's path.
    pub fn plain() -> Place {
        let dir = tempfile::tempdir().unwrap();
        Place { dir, is_mounted: false, groups: Mutex::default() }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the pool is or is to be.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    /// A file in the pool.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn pool(&self) -> Pool {
        self.small_pool(64)
    }

    /// A pool of so many chunks, if it is not a mount of its own.
    pub fn small_pool(&self, chunks: u64) -> Pool {
        let pool = Pool::create(&self.path(), chunks * CHUNK_BYTES).unwrap();
        self.groups.lock().unwrap().push(pool.info().unwrap().charged_to);
        pool
    }

    /// A pool as it is where several kernels share the medium.
    pub fn shared_pool(&self) -> Pool {
        self.pool().as_on(Medium::Dax)
    }

    /// The names in a directory of the pool, in order.
    pub fn list(&self, name: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.file(name)) else { return Vec::new() };
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let opened = Pool::open(&self.path()).and_then(|pool| pool.info());
        let mut groups = self.groups.lock().unwrap();
        groups.extend(opened.map(|info| info.charged_to));
        for group in groups.iter().filter(|group| group.starts_with('/')) {
            let _ = fs::remove_dir(group);
        }
        if self.is_mounted {
            let detach = rustix::mount::UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(self.path(), detach);
        }
    }
}

/// Whether what follows can be tried: only root may mount, or give files away.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root can do this");
    }
    is_root
}

/// Publishes an image of `chunks` chunks, every byte of which is `fill`, for a user.
pub fn publish_for(
    user: Option<&str>,
    pool: &Pool,
    chunks: u64,
    fill: u8,
) -> Result<Cid, farfork_pool::PoolError> {
    let bytes = chunks * CHUNK_BYTES;
    let mut writer = pool.begin(user)?;
    writer.reserve(bytes)?;
    writer.bytes_mut(0..bytes).fill(fill);
    Ok(writer.publish()?.0)
}

/// The same, for no user.
pub fn publish(pool: &Pool, chunks: u64, fill: u8) -> Cid {
    publish_for(None, pool, chunks, fill).unwrap()
}

/// Whether an image has so many chunks, and every byte of it is `fill`.
pub fn is_filled(image: &ImageFile, chunks: u64, fill: u8) -> bool {
    let bytes = image.read(0, image.id.bytes).unwrap();
    image.id.bytes == chunks * CHUNK_BYTES && bytes.iter().all(|byte| *byte == fill)
}

/// The file with the pins of a node, which stays where it is.
pub fn pins(pool: &Pool, node: &str) -> PinFile {
    PinFile::open(&pool.path().with_extension(node)).unwrap()
}

/// Registers a node with a file of its own.
pub fn register(pool: &Pool, node: &str) -> NodeRow {
    pool.register_node(node, &pins(pool, node)).unwrap()
}

/// Bytes that are taken.
pub fn used(pool: &Pool) -> u64 {
    pool.info().unwrap().used_bytes
}

/// Waits until so many bytes are taken and no more. A process that another test has just forked has our files
/// open for a moment, and with them what was removed.
pub fn await_used(pool: &Pool, bytes: u64) {
    await_true(&format!("{bytes} bytes are used"), || used(pool) == bytes);
}

/// Waits until something is true.
#[track_caller]
pub fn await_true(what: &str, is: impl Fn() -> bool) {
    for _ in 0..2000 {
        if is() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(is(), "not in time: {what}");
}

/// Destroys a pool, once no process that another test has just forked has a file open that was written.
pub fn destroy(path: &std::path::Path) {
    for _ in 0..2000 {
        match Pool::destroy(path) {
            Err(PoolError::InUse { .. }) => std::thread::sleep(std::time::Duration::from_millis(2)),
            done => return done.unwrap(),
        }
    }
    Pool::destroy(path).unwrap();
}

pub fn bits(accessed: &[u64], dirtied: &[u64], hot: &[u64]) -> PageBits {
    PageBits { accessed: accessed.to_vec(), dirtied: dirtied.to_vec(), hot: hot.to_vec() }
}
