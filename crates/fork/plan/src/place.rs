//! What a plan finds by paths: with which rights it looks, and what must be there.

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Table;

/// Rights over files: those of the parent's first thread, with which what it had open is opened.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Rights {
    /// File-system user id.
    pub user: u32,
    /// File-system group id.
    pub group: u32,
    /// Supplementary groups (`u32`).
    pub groups: Table,
    /// Those of [`FILE_CAPABILITIES`] that it has.
    pub capabilities: u64,
}

/// Capabilities over files of other users: `CAP_CHOWN`, `CAP_DAC_OVERRIDE`,
/// `CAP_DAC_READ_SEARCH`, `CAP_FOWNER`, `CAP_FSETID`, `CAP_LINUX_IMMUTABLE`, `CAP_MKNOD`.
pub const FILE_CAPABILITIES: u64 = 0b1_1111 | 1 << 9 | 1 << 27;

/// What a path led to. Its type always has to be that again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Identity {
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// 1 if permissions and owner have to be the same, too.
    pub is_owned: u32,
    /// Major (upper half) and minor of a device, which have to be the same.
    pub device: u64,
    /// Inode, which has to be the same where the parent could not open it itself.
    pub inode: u64,
    /// When that was made, in nanoseconds since the epoch, likewise.
    pub born_ns: u64,
    /// 1 if it must not have been written since: size and time have to be the same, too.
    pub is_bound: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last written, in nanoseconds since the epoch.
    pub written_ns: i64,
}

const _: () = {
    assert!(size_of::<Rights>() == 32);
    assert!(size_of::<Identity>() == 64);
};
