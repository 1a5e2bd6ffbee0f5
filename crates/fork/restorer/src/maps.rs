//! What is mapped in another address space.

pub use farfork_sys::procmap::{EXEC, Mapping, READ, SHARED, WRITE};
use farfork_sys::procmap::{Which, query};

use crate::call::{self, Errno};

/// The address space whose `/proc/PID/maps` was opened.
#[derive(Clone, Copy)]
pub struct AddressSpace {
    fd: i32,
}

impl AddressSpace {
    /// The address space whose maps file is open as `fd`, which it takes over.
    pub fn from_maps_fd(fd: i32) -> AddressSpace {
        AddressSpace { fd }
    }

    /// Closes the descriptor.
    pub fn close(self) {
        call::close_range(self.fd as u32, self.fd as u32);
    }

    /// The mapping that holds `address`, or the first one above it, if any.
    pub fn at_or_after(&self, address: u64) -> Result<Option<Mapping>, Errno> {
        query(self.fd, address, Which::CoveringOrNext)
    }
}
