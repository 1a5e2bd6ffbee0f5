//! Asking the kernel what is mapped where.

use linux_raw_sys::{errno as e, general as k};

use crate::call::{self, Errno, syscall};

/// One mapping as the kernel describes it.
#[derive(Clone, Copy)]
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

/// The mapping can be read.
pub const READ: u64 = 1;
/// The mapping can be written.
pub const WRITE: u64 = 2;
/// The mapping can be executed.
pub const EXEC: u64 = 4;
/// Writes reach what is mapped.
pub const SHARED: u64 = 8;

const COVERING_OR_NEXT: u64 = 16;

/// `struct procmap_query` (Linux 6.11).
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

/// The address space whose `/proc/PID/maps` was opened.
#[derive(Clone, Copy)]
pub struct AddressSpace {
    fd: i32,
}

impl AddressSpace {
    /// The address space whose maps file is open as `fd`, which it takes over.
    pub fn of(fd: i32) -> AddressSpace {
        AddressSpace { fd }
    }

    /// Closes the descriptor.
    pub fn close(self) {
        call::close_range(self.fd as u32, self.fd as u32);
    }

    /// The mapping that holds `address`, or the first one above it, if any.
    pub fn at_or_after(&self, address: u64) -> Result<Option<Mapping>, Errno> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: COVERING_OR_NEXT,
            query_addr: address,
            ..Query::default()
        };
        let at = &raw mut query as u64;
        // SAFETY: the kernel reads and writes `query`, whose size it is told.
        match unsafe { syscall(k::__NR_ioctl, [self.fd as u64, PROCMAP_QUERY, at]) } {
            Err(errno) if errno.0 == e::ENOENT as i32 => return Ok(None),
            other => other?,
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
}
