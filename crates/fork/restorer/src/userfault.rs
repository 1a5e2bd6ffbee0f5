//! What userfaultfd takes: making one, registering memory, filling it, handing it to the init.

use linux_raw_sys::general as k;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER};

use crate::call::{self, Errno, syscall};

/// Makes a descriptor about this address space.
pub fn open(flags: u32, features: u32) -> Result<u64, Errno> {
    let features = u64::from(features);
    let mut api = k::uffdio_api { api: u64::from(k::UFFD_API), features, ioctls: 0 };
    // SAFETY: a new descriptor; the kernel reads and writes `api`.
    unsafe {
        let faults = syscall(k::__NR_userfaultfd, [u64::from(flags)])?;
        match syscall(k::__NR_ioctl, [faults, u64::from(UFFDIO_API), &raw mut api as u64]) {
            Ok(_) => Ok(faults),
            Err(errno) => {
                call::close_range(faults as u32, faults as u32);
                Err(errno)
            }
        }
    }
}

/// Registers memory; `mode` is one of `UFFDIO_REGISTER_MODE_*`.
pub fn register(faults: u64, range: k::uffdio_range, mode: u64) -> Result<(), Errno> {
    let mut asked = k::uffdio_register { range, mode, ioctls: 0 };
    let args = [faults, u64::from(UFFDIO_REGISTER), &raw mut asked as u64];
    // SAFETY: changes who answers faults there; the kernel reads and writes `asked`.
    unsafe { syscall(k::__NR_ioctl, args) }.map(|_| ())
}

/// Gives a process copies of its own of the `bytes` at `from`, in pages that are not there yet.
pub fn copy(faults: u64, to: u64, from: u64, bytes: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        let (dst, src, len) = (to + done, from + done, bytes - done);
        let mut asked = k::uffdio_copy { dst, src, len, mode: 0, copy: 0 };
        let args = [faults, u64::from(UFFDIO_COPY), &raw mut asked as u64];
        // SAFETY: fills pages that are not there; the source is the pool's.
        let result = unsafe { syscall(k::__NR_ioctl, args) };
        match (result, asked.copy) {
            (_, copied @ 1..) => done += copied as u64,
            (Err(Errno(EAGAIN | EINTR)), _) => {}
            (result, _) => return result.map(|_| ()),
        }
    }
    Ok(())
}

/// The process's memory is being changed: to be tried again.
pub const EAGAIN: i32 = linux_raw_sys::errno::EAGAIN as i32;
/// A signal came first: to be tried again.
pub const EINTR: i32 = linux_raw_sys::errno::EINTR as i32;

#[repr(C, align(8))]
struct Control {
    bytes: u64,
    level: i32,
    kind: i32,
    fd: i32,
    padding: i32,
}

const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;

/// Sends the descriptor of process number `member`.
pub fn send(socket: i32, faults: u64, member: usize) -> Result<(), Errno> {
    let member = member as u64;
    let vector = [&raw const member as u64, size_of::<u64>() as u64];
    let control =
        Control { bytes: 20, level: SOL_SOCKET, kind: SCM_RIGHTS, fd: faults as i32, padding: 0 };
    // struct msghdr
    let header: [u64; 7] = [
        0,
        0,
        vector.as_ptr() as u64,
        1,
        &raw const control as u64,
        size_of::<Control>() as u64,
        0,
    ];
    let args = [socket as u64, header.as_ptr() as u64, u64::from(call::MSG_NOSIGNAL)];
    // SAFETY: the kernel reads the message.
    unsafe { syscall(k::__NR_sendmsg, args) }.map(|_| ())
}
