//! An address space.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::WINDOW_WORDS;

/// The address space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Mappings in address order, without the kernel's own.
    pub regions: Vec<Region>,
    /// What the image holds of it.
    pub stored: Stored,
    /// Whether a clone gets copies of it, because the image has what the process may not read:
    /// [`Model::must_copy`](super::Model::must_copy).
    pub is_copied: bool,
    /// Guard regions (`MADV_GUARD_INSTALL`): first address and address after the last.
    pub guards: Vec<(u64, u64)>,
    /// Rings of contexts of Linux AIO, in which nothing was: first address and address after the last.
    pub aio_rings: Vec<(u64, u64)>,
    /// Protection keys that are allocated, one bit each.
    pub protection_keys: u32,
    /// First address and length of vvar and vdso together.
    pub vdso: (u64, u64),
    /// What `PR_SET_MM_MAP` takes, in its order: start_code, end_code, start_data, end_data,
    /// start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end.
    pub layout: [u64; 11],
    /// The auxiliary vector.
    pub auxv: Vec<u64>,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// `PROT_*` bits.
    pub prot: u32,
    /// What lies under it.
    pub backing: Backing,
    /// Attributes.
    pub traits: RegionTraits,
}

impl Region {
    /// The shared object under it.
    pub(crate) fn object(&self) -> Option<u32> {
        match self.backing {
            Backing::Object { object, .. } => Some(object),
            _ => None,
        }
    }
}

/// What lies under a mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Backing {
    /// Anonymous private memory.
    Anonymous,
    /// A private mapping of a file from an offset.
    PrivateFile(FileStamp, u64),
    /// A shared mapping of a file: parent and clones see the same file, as after a fork.
    SharedFile {
        /// The file.
        file: FileStamp,
        /// Offset in it.
        offset: u64,
        /// Whether it was opened for writing, so that it may change at any time.
        is_writable: bool,
    },
    /// A mapping of a shared object, which every clone has for itself.
    Object {
        /// Index in [`super::Model::objects`].
        object: u32,
        /// Offset in it.
        offset: u64,
        /// Whether writes reach the object; else its changed pages are in the stored windows.
        is_shared: bool,
        /// Whether `mprotect` may make a shared mapping writable.
        is_writable: bool,
    },
}

/// Attributes of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionTraits {
    /// `MAP_GROWSDOWN`.
    pub grows_down: bool,
    /// `MAP_NORESERVE`.
    pub no_reserve: bool,
    /// `MADV_WIPEONFORK`.
    pub wipe_on_fork: bool,
    /// `MAP_DROPPABLE`: contents may vanish, and are not carried.
    pub droppable: bool,
    /// Locked into memory.
    pub locked: bool,
    /// `MADV_DONTFORK`.
    pub dont_fork: bool,
    /// `MADV_DONTDUMP`.
    pub dont_dump: bool,
    /// `MADV_HUGEPAGE`.
    pub huge: bool,
    /// `MADV_NOHUGEPAGE`.
    pub no_huge: bool,
    /// `MADV_MERGEABLE`.
    pub mergeable: bool,
    /// `mseal`.
    pub sealed: bool,
    /// Of huge pages that were set aside (`MAP_HUGETLB`): the logarithm of their size, else 0.
    pub page_shift: u8,
    /// Protection key that the program gave it, 0 for the default.
    pub protection_key: u8,
}

/// A file that has to be the same on the other node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileStamp {
    /// Absolute path.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since the epoch.
    pub mtime_ns: i128,
    /// Build-id of an ELF file that was linked with one.
    pub build_id: Option<Vec<u8>>,
    /// Which file it was.
    pub identity: FileIdentity,
}

/// What a path led to, so that nothing else is opened in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Major and minor of a device.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// When it was made, in nanoseconds since the epoch; 0 where the file system does not say.
    pub born_ns: u64,
    /// Whether it lies in a file system of the kernel's own, whose files have other owners and
    /// inodes on every node.
    pub is_kernel_s: bool,
}

/// What an image holds of an address space, and where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// 2 MiB windows with at least one stored page, in address order.
    pub windows: Vec<StoredWindow>,
    /// Where they lie in the image, in address order.
    pub segments: Vec<Segment>,
}

/// Pages that lie side by side in the process and in the image; see [`crate::layout`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// Offset in the image's chunks, the first of which begins at 0.
    pub place: u64,
}

/// A 2 MiB window of addresses of which the image holds something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredWindow {
    /// First address, a multiple of 2 MiB.
    pub address: u64,
    /// Bit per page that was copied.
    pub pages: [u64; WINDOW_WORDS],
}
