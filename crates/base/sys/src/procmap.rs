//! Looking up mappings (`PROCMAP_QUERY`, Linux 6.11), without a C library.
#![allow(unsafe_code)] // reason: an ioctl with a struct

use crate::raw::{Errno, syscall};

/// One mapping as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Bits of [`READ`], [`WRITE`], [`EXEC`], [`SHARED`].
    pub flags: u64,
    /// Offset of `start` in the mapped file, in bytes.
    pub offset: u64,
    /// Inode of the mapped file, 0 for none.
    pub inode: u64,
    /// Device of the mapped file: major << 32 | minor.
    pub device: u64,
}

impl Mapping {
    /// Whether the process may write to it, and keeps to itself what it writes.
    pub fn is_private_writable(&self) -> bool {
        self.flags & (WRITE | SHARED) == WRITE
    }
}

/// The mapping can be read.
pub const READ: u64 = 1;
/// The mapping can be written.
pub const WRITE: u64 = 2;
/// The mapping can be executed.
pub const EXEC: u64 = 4;
/// Writes reach what is mapped.
pub const SHARED: u64 = 8;

/// Which mapping is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that holds the address.
    Covering = 0,
    /// That one, or else the first above it.
    CoveringOrNext = 16,
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 0xc068_6611;
/// `ioctl`, on x86-64.
const NR_IOCTL: u32 = 16;
const ENOENT: Errno = Errno(2);

/// What is mapped at `address`, if anything is; `maps` is an open `/proc/PID/maps`.
///
/// # Errors
/// The kernel has no such call, or the process has ended.
pub fn query(maps: i32, address: u64, which: Which) -> Result<Option<Mapping>, Errno> {
    let size = size_of::<Query>() as u64;
    let mut query =
        Query { size, query_flags: which as u64, query_addr: address, ..Query::default() };
    let at = &raw mut query as u64;
    // SAFETY: the kernel reads and writes `query`, whose size is given.
    match unsafe { syscall(NR_IOCTL, [maps as u64, PROCMAP_QUERY, at]) } {
        Err(ENOENT) => return Ok(None),
        done => done?,
    };
    Ok(Some(Mapping {
        start: query.vma_start,
        end: query.vma_end,
        flags: query.vma_flags,
        offset: query.vma_offset,
        inode: query.inode,
        device: u64::from(query.dev_major) << 32 | u64::from(query.dev_minor),
    }))
}
