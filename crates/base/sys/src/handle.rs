//! Files by handle (`open_by_handle_at`, Linux 2.6.39; needs `CAP_DAC_READ_SEARCH`).
#![allow(unsafe_code)] // reason: the handle has a length that only the caller knows

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// `MAX_HANDLE_SZ`.
const MOST_BYTES: usize = 128;

/// `struct file_handle` with room for the longest.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; MOST_BYTES],
}

/// The place (`O_PATH`) in the file system of `mount` whose handle is `data` of type `kind`.
pub fn open(mount: impl AsFd, kind: i32, data: &[u8]) -> Result<OwnedFd, Errno> {
    let mut handle = Handle { bytes: data.len() as u32, kind, data: [0; MOST_BYTES] };
    handle.data.get_mut(..data.len()).ok_or(Errno::OVERFLOW)?.copy_from_slice(data);
    let mount = mount.as_fd().as_raw_fd();
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the kernel reads `handle`; nothing else owns the new descriptor.
    unsafe {
        match libc::syscall(libc::SYS_open_by_handle_at, mount, &raw const handle, flags) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(Errno::from_raw_os_error(nix::errno::Errno::last_raw())),
        }
    }
}
