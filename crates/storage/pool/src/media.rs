//! What a pool lies on, and how its bytes are emptied there.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use farfork_sys::proc;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxAttributes, StatxFlags, fallocate};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use serde::Serialize;

use crate::device;
use crate::error::PoolError;
use crate::ids::Extent;
use crate::map::SharedMap;

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
    /// A device that is mapped directly, and shared only (device DAX): nodes copy images from it.
    Device,
    /// Anything else: works, through the page cache.
    Other,
}

impl Medium {
    /// The medium under an open file.
    pub(crate) fn of(file: &File) -> io::Result<Medium> {
        if device::is_one(file)? {
            return Ok(Medium::Device);
        }
        let kind = rustix::fs::fstatfs(file)?.f_type;
        let attributes = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
        Ok(match kind {
            TMPFS_MAGIC => Medium::Tmpfs,
            HUGETLBFS_MAGIC => Medium::Hugetlbfs,
            _ if attributes.stx_attributes.contains(StatxAttributes::DAX) => Medium::Dax,
            _ => Medium::Other,
        })
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

    /// Whether clones can map it themselves: privately, so that what they write is theirs.
    pub fn maps_privately(self) -> bool {
        self != Medium::Device
    }

    /// Whether a pool on it is a file that is made and deleted, not a device that stays.
    pub(crate) fn is_file(self) -> bool {
        self != Medium::Device
    }

    /// Makes an unused extent read as zeros and, where the medium can, gives its memory back.
    pub(crate) fn wipe(self, file: &File, map: &SharedMap, run: Extent) -> io::Result<()> {
        // There the memory stays the file's, since the file system might give it out anew in smaller
        // pieces. A place that never got any is left: a store to it would end this process.
        if self == Medium::Device || self == Medium::Dax && has_memory(file, run)? {
            zero(map, run);
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(file, hole, run.offset, run.bytes()) {
            Err(Errno::OPNOTSUPP) => zero(map, run),
            done => done?,
        }
        Ok(())
    }
}

/// Whether a DAX file system has memory for all of an extent. One that cannot be asked to allocate
/// has given all memory to the file beforehand.
fn has_memory(file: &File, run: Extent) -> io::Result<bool> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, run.offset, run.bytes()) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(true),
        Err(Errno::NOSPC) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[allow(unsafe_code)] // reason: see SAFETY
fn zero(map: &SharedMap, run: Extent) {
    // SAFETY: `wipe` is called for chunks of dead writers and removed images without pins, and for a
    // device on which there is no pool yet, or none any more.
    unsafe { map.zero(run) }
}

/// Gives memory to extents that read as zeros, charged to the caller. A DAX file system that
/// cannot do it has given all memory to the file beforehand.
pub(crate) fn reserve(medium: Medium, file: &File, runs: &[Extent]) -> io::Result<()> {
    if medium == Medium::Device {
        return Ok(()); // which has all of its memory
    }
    for run in runs {
        match fallocate(file, FallocateFlags::KEEP_SIZE, run.offset, run.bytes()) {
            Err(Errno::OPNOTSUPP) if medium == Medium::Dax => {}
            done => done?,
        }
    }
    Ok(())
}

/// Whether the tmpfs that holds `file` was mounted with `huge=always`.
pub(crate) fn has_huge_pages(file: &File) -> io::Result<bool> {
    let device = file.metadata()?.dev();
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
        // Directories do not show whether files in them are mapped directly.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?);
        Ok(Medium::of(&file)? == Medium::Dax)
    };
    look().unwrap_or(false)
}

/// Mounts a tmpfs with huge pages for pools of at most `size` bytes on the directory `dir`. It may
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

#[cfg(test)]
mod tests {
    use farfork_types::CHUNK_BYTES;

    use super::*;
    use crate::{Finding, Pool};

    /// On DAX freed chunks keep their memory; what is done there instead works on any medium.
    #[test]
    fn on_dax_chunks_are_overwritten_and_check_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = Pool::create(&dir.path().join("pool"), 6 * CHUNK_BYTES).unwrap();
        pool.medium = Medium::Dax;
        let mut writer = pool.begin().unwrap();
        let run = writer.allocate(2).unwrap()[0];
        writer.bytes_mut(run).fill(7);
        drop(writer);
        assert!(pool.bytes(run.offset, run.bytes()).unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(pool.check().unwrap().findings, []);
        std::os::unix::fs::FileExt::write_all_at(&pool.file, b"secret", run.offset).unwrap();
        let findings = pool.check().unwrap().findings;
        assert!(matches!(findings[..], [Finding::UncleanFree { .. }]), "{findings:?}");
        assert_eq!(pool.check().unwrap().findings, []);
    }
}
