//! What a pool lies on.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use farfork_sys::proc;
use farfork_types::{CHUNK_BYTES, align_down};
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, StatxAttributes, StatxFlags, fallocate, syncfs,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use serde::Serialize;

use crate::error::PoolError;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
/// What stands as the source of our mounts.
const MOUNT_NAME: &str = "farfork";

/// The kind of file system that holds a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Memory of this machine, charged to memory cgroups.
    Tmpfs,
    /// Huge pages that were set aside; carries no pool.
    Hugetlbfs,
    /// A file system whose files are mapped directly (fsdax, famfs).
    Dax,
    /// Anything else: works, through the page cache.
    Other,
}

impl Medium {
    /// The medium under an open file.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Medium> {
        let kind = rustix::fs::fstatfs(&file)?.f_type;
        let attributes = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
        Ok(match kind {
            TMPFS_MAGIC => Medium::Tmpfs,
            HUGETLBFS_MAGIC => Medium::Hugetlbfs,
            _ if attributes.stx_attributes.contains(StatxAttributes::DAX) => Medium::Dax,
            _ => Medium::Other,
        })
    }

    /// The medium of a pool: of its files, or of one that shows that they may be mapped directly. Not every
    /// medium has files without a name, by which [`under`](Medium::under) finds out.
    pub(crate) fn of_pool(directory: impl AsFd, superblock: &File) -> io::Result<Medium> {
        match Medium::under(directory)? {
            Medium::Other => Medium::of(superblock),
            found => Ok(found),
        }
    }

    /// The medium under files of an open directory, which does not show itself whether they are mapped
    /// directly.
    pub(crate) fn under(directory: impl AsFd) -> io::Result<Medium> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(&directory, c".", flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Medium::of(File::from(file)),
            Err(_) => Medium::of(&directory),
        }
    }

    /// Refuses hugetlbfs: the kernel maps, protects, discards and copies such memory by whole huge
    /// pages only, and a clone's memory has to be what its parent's is, page by page.
    pub(crate) fn suits(self, path: &Path) -> Result<(), PoolError> {
        if self != Medium::Hugetlbfs {
            return Ok(());
        }
        let why = "a clone's memory is mapped page by page, which hugetlbfs cannot; use a tmpfs \
                   mounted with huge=always, which has huge pages too (farfork pool create mounts \
                   one on a directory that is not there yet)";
        Err(PoolError::Unsuitable { path: path.to_owned(), why })
    }

    /// Whether pages of a private mapping can be supplied one by one: whether a userfaultfd reports
    /// the first access to each (faults of kind MINOR).
    pub fn tells_of_faults(self) -> bool {
        self == Medium::Tmpfs
    }

    /// Whether processes of other kernels may map the same files, so that a removed image must stay as
    /// long as a node pins it. On other media the kernel itself keeps what is mapped.
    pub fn is_shared_by_kernels(self) -> bool {
        self == Medium::Dax
    }

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Medium::Tmpfs => "a tmpfs",
            Medium::Hugetlbfs => "hugetlbfs",
            Medium::Dax => "a DAX file system",
            Medium::Other => "a file system without DAX",
        }
    }

    /// The one with this [`number`](Medium::number).
    pub(crate) fn of_number(number: u32) -> Option<Medium> {
        let all = [Medium::Tmpfs, Medium::Hugetlbfs, Medium::Dax, Medium::Other];
        all.into_iter().find(|medium| medium.number() == number)
    }

    /// As it stands in the superblock.
    pub(crate) fn number(self) -> u32 {
        match self {
            Medium::Tmpfs => 1,
            Medium::Hugetlbfs => 2,
            Medium::Dax => 3,
            Medium::Other => 4,
        }
    }
}

/// Gives memory to a range of a file, charged to the caller. A DAX file system that cannot do it has given
/// all memory to the file beforehand.
///
/// There it asks for one chunk after the other. A chunk can be mapped whole if its blocks lie together at a
/// multiple of its size, and once its free space is in pieces ext4 looks for that with powers of two alone. What
/// files have given back becomes free space when its journal is written.
pub(crate) fn reserve(medium: Medium, file: &File, range: &Range<u64>) -> io::Result<()> {
    let step = if medium == Medium::Dax { CHUNK_BYTES } else { u64::MAX };
    if medium == Medium::Dax {
        syncfs(file)?;
    }
    let mut from = range.start;
    while from < range.end {
        let to = range.end.min(align_down(from, CHUNK_BYTES).saturating_add(step));
        match fallocate(file, FallocateFlags::KEEP_SIZE, from, to - from) {
            Err(Errno::OPNOTSUPP) if medium == Medium::Dax => return Ok(()),
            done => done?,
        }
        from = to;
    }
    Ok(())
}

/// Whether the tmpfs that holds `file` was mounted with `huge=always`.
pub(crate) fn has_huge_pages(file: impl AsFd) -> io::Result<bool> {
    let device = rustix::fs::fstat(file)?.st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = proc::text("/proc/self/mountinfo")?;
    let ours = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number));
    let options = ours.and_then(|line| line.rsplit(' ').next()).unwrap_or("");
    Ok(options.split(',').any(|option| option == "huge=always"))
}

/// Whether a pool in the directory `dir` could be mapped by huge pages as it is.
pub fn maps_huge_pages(dir: &Path) -> bool {
    let look = || -> io::Result<bool> {
        let place = File::open(dir)?;
        if Medium::of(&place)? == Medium::Tmpfs {
            return has_huge_pages(&place);
        }
        Ok(Medium::under(&place)? == Medium::Dax)
    };
    look().unwrap_or(false)
}

/// Mounts a tmpfs with huge pages for a pool of `size` bytes on the directory `dir`. It may
/// hold executable mappings: clones run code from the pool. Needs root.
///
/// # Errors
/// [`PoolError::Io`].
pub fn mount_tmpfs(dir: &Path, size: u64) -> Result<(), PoolError> {
    let options = std::ffi::CString::new(format!("huge=always,mode=0700,size={size}"))
        .expect("digits and letters");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(MOUNT_NAME, dir, "tmpfs", flags, options.as_c_str())
        .map_err(PoolError::io("mount a tmpfs on", dir))
}

/// Unmounts what [`mount_tmpfs`] mounted on `dir`, once nothing lies there; nothing else.
///
/// # Errors
/// [`PoolError::Io`].
pub fn unmount_tmpfs(dir: &Path) -> Result<(), PoolError> {
    let look = PoolError::io("read the mounts on", dir);
    let mounts = proc::text("/proc/self/mounts").map_err(look)?;
    let is_ours = |line: &str| line.starts_with(&format!("{MOUNT_NAME} {} tmpfs ", dir.display()));
    let is_empty = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty || !mounts.lines().any(is_ours) {
        return Ok(());
    }
    // Agents may still have the deleted pool open: the mount goes now, its memory with them.
    rustix::mount::unmount(dir, UnmountFlags::DETACH)
        .map_err(PoolError::io("unmount the tmpfs on", dir))
}
