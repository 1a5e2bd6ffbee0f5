//! Rings of io_uring, which the agent makes: the filter of clones forbids that.
//!
//! The kernel (Linux 6.5) maps their queues where it likes, and moves them nowhere. So everything but the
//! wanted place is filled for a moment:
//!
//! ```text
//!  ████ mapping ████ filled ████ mapping ████ wanted ████ filled ████ mapping ████ filled ████
//! ```

use linux_raw_sys::general as k;

use farfork_types::PAGE_BYTES;

use crate::call::{self, Errno, SysResult, mmap, munmap, syscall};
use crate::maps::AddressSpace;

const SOL_SOCKET: u64 = 1;
/// `SO_PEERPIDFD` (Linux 6.5).
const PEER_PIDFD: u64 = 77;

/// Takes what [`farfork_plan::nr::TAKE_RING`] says.
///
/// # Safety
/// The agent has made the socket pair, and waits until the clone runs.
pub unsafe fn take([socket, ..]: [u64; 6]) -> SysResult {
    let (mut number, mut agent) = (0u32, 0i32);
    let mut bytes = size_of_val(&agent) as u32;
    // SAFETY: the kernel writes to these words.
    unsafe {
        let at = &raw mut number as u64;
        if syscall(k::__NR_read, [socket, at, size_of_val(&number) as u64])? != 4 {
            return Err(Errno(linux_raw_sys::errno::EBADMSG as i32));
        }
        let to = [&raw mut agent as u64, &raw mut bytes as u64];
        syscall(k::__NR_getsockopt, [socket, SOL_SOCKET, PEER_PIDFD, to[0], to[1]])?;
        let taken = syscall(k::__NR_pidfd_getfd, [agent as u64, number.into(), 0]);
        call::close_range(agent as u32, agent as u32);
        taken
    }
}

/// Maps what [`farfork_plan::nr::MAP_RING`] says.
///
/// # Safety
/// Nothing that is used lies where the queue is to lie, and no other thread maps anything.
pub unsafe fn map([ring, start, bytes, prot, offset, _]: [u64; 6]) -> SysResult {
    let ring = ring as i32;
    let place = |at, flags| {
        // SAFETY: a new mapping, which replaces none.
        unsafe { mmap(at, bytes, prot as u32, k::MAP_SHARED | flags, ring, offset) }
    };
    match place(start, k::MAP_FIXED_NOREPLACE) {
        Err(Errno(errno)) if errno == linux_raw_sys::errno::EINVAL as i32 => {}
        done => return done,
    }
    // SAFETY: as the caller says; the place is kept until all others are filled.
    unsafe {
        reserve(start, bytes)?;
        let filling = Filling::begin().and_then(|mut filling| filling.fill().map(|()| filling));
        munmap(start, bytes)?;
        let filling = filling?;
        let mapped = place(0, 0);
        filling.end();
        match mapped? {
            at if at == start => Ok(at),
            other => {
                munmap(other, bytes)?;
                Err(Errno(linux_raw_sys::errno::EADDRNOTAVAIL as i32))
            }
        }
    }
}

unsafe fn reserve(start: u64, bytes: u64) -> SysResult {
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE | k::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    unsafe { mmap(start, bytes, k::PROT_NONE, flags, -1, 0) }
}

/// What fills the address space, listed in a mapping of its own.
struct Filling {
    table: *mut (u64, u64),
    count: usize,
}

/// Room for as many ranges as there can be mappings, which become memory as they are written.
const TABLE_BYTES: u64 = 2 << 20;
const MOST: usize = TABLE_BYTES as usize / size_of::<(u64, u64)>();
/// Where the kernel's search ends, whatever `vm.mmap_min_addr` is.
const LOWEST: u64 = PAGE_BYTES;
/// Addresses above are given only to those that ask for them.
const HIGHEST: u64 = (1 << 47) - PAGE_BYTES;

impl Filling {
    unsafe fn begin() -> Result<Filling, Errno> {
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
        let rights = k::PROT_READ | k::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes it.
        let table = unsafe { mmap(0, TABLE_BYTES, rights, flags, -1, 0) }?;
        Ok(Filling { table: table as *mut (u64, u64), count: 0 })
    }

    /// Fills all gaps. Small ones might lie beside the wanted place.
    unsafe fn fill(&mut self) -> Result<(), Errno> {
        let path = c"/proc/self/maps".as_ptr() as u64;
        let at = k::AT_FDCWD as i64 as u64;
        let flags = u64::from(k::O_RDONLY | k::O_CLOEXEC);
        // SAFETY: the path ends with a NUL.
        let maps = unsafe { syscall(k::__NR_openat, [at, path, flags, 0]) }?;
        let maps = AddressSpace::from_maps_fd(maps as i32);
        // SAFETY: passed on to the caller.
        let filled = unsafe { self.fill_in(&maps) };
        maps.close();
        filled
    }

    unsafe fn fill_in(&mut self, maps: &AddressSpace) -> Result<(), Errno> {
        let mut from = LOWEST;
        while from < HIGHEST {
            let next = maps.at_or_after(from)?;
            let (end, after) = next.map_or((HIGHEST, HIGHEST), |next| (next.start, next.end));
            let end = end.min(HIGHEST);
            if end > from {
                if self.count == MOST {
                    return Err(Errno(linux_raw_sys::errno::ENOMEM as i32));
                }
                // SAFETY: the gap is empty, and the table has room.
                unsafe {
                    reserve(from, end - from)?;
                    self.table.add(self.count).write((from, end - from));
                }
                self.count += 1;
            }
            from = after.max(end);
        }
        Ok(())
    }

    /// Empties the gaps again.
    unsafe fn end(self) {
        // SAFETY: these are mappings of this one's own, of which nothing is used.
        unsafe {
            for index in 0..self.count {
                let (start, bytes) = self.table.add(index).read();
                let _ = munmap(start, bytes);
            }
            let _ = munmap(self.table as u64, TABLE_BYTES);
        }
    }
}
