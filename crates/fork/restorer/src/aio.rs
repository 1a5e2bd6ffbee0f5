//! Contexts of Linux AIO, which are known by where their rings lie.

use linux_raw_sys::general as k;

use crate::call::{Errno, SysResult, syscall};

const PAGE_BYTES: u64 = 4096;
/// A ring has room for two events for each request that is asked for, and for two more, behind a header
/// that takes the room of one. So many fill a page.
const EVENTS_OF_PAGE: u64 = PAGE_BYTES / 32;
/// Where in a ring the kernel has put how many events there is room for.
const EVENTS_WORD: usize = 1;

/// Makes what [`farfork_plan::nr::MAKE_AIO`] says. Fails with EOVERFLOW where the kernel makes larger
/// rings, which it does by the number of processors.
///
/// # Safety
/// Nothing that is used lies where the ring is to lie.
pub unsafe fn make([at, bytes, ..]: [u64; 6]) -> SysResult {
    let requests = EVENTS_OF_PAGE / 2 * (bytes / PAGE_BYTES) - 2;
    let mut made = 0u64;
    // SAFETY: the kernel writes the address of a ring that it has mapped, and moves it where the caller
    // has room for it.
    unsafe {
        syscall(k::__NR_io_setup, [requests, &raw mut made as u64])?;
        let events = *(made as *const u32).add(EVENTS_WORD);
        if (u64::from(events) + 1) / EVENTS_OF_PAGE * PAGE_BYTES != bytes {
            return Err(Errno(linux_raw_sys::errno::EOVERFLOW as i32));
        }
        let flags = u64::from(k::MREMAP_MAYMOVE | k::MREMAP_FIXED);
        syscall(k::__NR_mremap, [made, bytes, bytes, flags, at])
    }
}
