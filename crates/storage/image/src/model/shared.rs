//! Memory that mappings and descriptors share and that no name in a file system leads to.
//!
//! Its content stands packed in chunks of its own, as one stream of pages: windows from address
//! [`SharedObject::AREA`] on, where no process has memory.

use serde::{Deserialize, Serialize};

/// Shared anonymous memory, a memfd, a segment of System V, or a file that has lost its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedObject {
    /// What it was.
    pub kind: ObjectKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// `F_GET_SEALS`.
    pub seals: u32,
    /// Parts that are not holes, in order.
    pub extents: Vec<ObjectExtent>,
}

/// What a shared object was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectKind {
    /// `MAP_SHARED | MAP_ANONYMOUS`.
    Anonymous {
        /// `MAP_NORESERVE`.
        no_reserve: bool,
    },
    /// A memfd, by its name.
    Memfd(Vec<u8>),
    /// A file that was deleted or replaced, by the last part of the name it had. Clones have it
    /// as a memfd.
    Unlinked(Vec<u8>),
    /// A segment of System V.
    SystemV(SystemVSegment),
}

/// What a segment of System V is known by, besides its permissions and its owner. A clone has it
/// under the same id, in an IPC namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemVSegment {
    /// What `shmget` gave.
    pub id: u32,
    /// What was given to `shmget`, 0 for `IPC_PRIVATE`.
    pub key: i32,
    /// User and group of its creator.
    pub creator: (u32, u32),
    /// Whether it was removed (`IPC_RMID`) and lasts as long as a process has it attached.
    pub is_removed: bool,
    /// `SHM_LOCK`.
    pub is_locked: bool,
}

/// Part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectExtent {
    /// Where it begins in the object, a multiple of the page size.
    pub offset: u64,
    /// Its length in bytes; the last page counts as a whole one.
    pub bytes: u64,
    /// Address of its content among the stored windows.
    pub stored: u64,
}

impl SharedObject {
    /// Whether processes attach it by its id.
    pub(crate) fn is_system_v(&self) -> bool {
        matches!(self.kind, ObjectKind::SystemV(_))
    }

    /// First address of windows that hold the content of shared objects, above user space.
    pub const AREA: u64 = 1 << 56;

    /// Bytes of `extent` that are inside the object.
    pub fn inside(&self, extent: &ObjectExtent) -> u64 {
        extent.bytes.min(self.size.saturating_sub(extent.offset))
    }
}
