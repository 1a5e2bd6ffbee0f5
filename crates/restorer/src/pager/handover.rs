//! The clone's part: it registers its memory and hands the descriptor to its init.

use farfork_plan::overlay::{MemberOverlay, Served};
use farfork_plan::window;
use linux_raw_sys::general as k;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER};

use crate::call::{self, Errno, syscall};
use crate::run::elements;

const MINOR: u64 = 1 << 2;

/// Has the init supply the memory of this process, number `member`, that `overlay` says. The
/// process has no descriptor of it afterwards.
pub fn hand_over(overlay: &MemberOverlay, member: usize, socket: i32) -> Result<(), Errno> {
    // SAFETY: the table is the overlay's.
    let served = unsafe { elements::<Served>(overlay.served) };
    if served.is_empty() {
        return Ok(());
    }
    let flags = u64::from(k::O_CLOEXEC | k::O_NONBLOCK);
    // SAFETY: a new descriptor, about this address space.
    let faults = unsafe { syscall(k::__NR_userfaultfd, [flags]) }?;
    let done = register(faults, served).and_then(|()| send(socket, faults, member));
    call::close_range(faults as u32, faults as u32);
    done
}

/// Gives this process copies of its own of the memory that `overlay` wants copied, from the pool,
/// which is open as `pool`.
pub fn copy(overlay: &MemberOverlay, pool: i32) -> Result<(), Errno> {
    // SAFETY: the table is the overlay's.
    let copied = unsafe { elements::<Served>(overlay.copied) };
    if copied.is_empty() {
        return Ok(());
    }
    // SAFETY: a new descriptor, about this address space.
    let faults = unsafe { syscall(k::__NR_userfaultfd, [u64::from(k::O_CLOEXEC)]) }?;
    let done = register(faults, copied)
        .and_then(|()| copied.iter().try_for_each(|span| copy_span(faults, span, pool)));
    call::close_range(faults as u32, faults as u32);
    done
}

fn copy_span(faults: u64, span: &Served, pool: i32) -> Result<(), Errno> {
    let mut done = 0;
    while done < span.bytes {
        let bytes = (span.bytes - done).min(window::SCRATCH_BYTES);
        let flags = k::MAP_SHARED | k::MAP_FIXED_NOREPLACE;
        let offset = span.pool_offset + done;
        // SAFETY: nothing else is mapped there.
        unsafe { call::mmap(window::SCRATCH, bytes, k::PROT_READ, flags, pool, offset) }?;
        let copied = copy_bytes(faults, span.address + done, bytes);
        // SAFETY: mapped here, and only for this.
        unsafe { call::munmap(window::SCRATCH, bytes) }?;
        copied?;
        done += bytes;
    }
    Ok(())
}

fn copy_bytes(faults: u64, to: u64, bytes: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        let (dst, src, len) = (to + done, window::SCRATCH + done, bytes - done);
        let mut asked = k::uffdio_copy { dst, src, len, mode: 0, copy: 0 };
        let args = [faults, u64::from(UFFDIO_COPY), &raw mut asked as u64];
        // SAFETY: fills pages that are not there, from pages that are.
        let result = unsafe { syscall(k::__NR_ioctl, args) };
        match (result, asked.copy) {
            (_, copied @ 1..) => done += copied as u64,
            (Err(Errno(EAGAIN | EINTR)), _) => {}
            (result, _) => return result.map(|_| ()),
        }
    }
    Ok(())
}

const EAGAIN: i32 = linux_raw_sys::errno::EAGAIN as i32;
const EINTR: i32 = linux_raw_sys::errno::EINTR as i32;

fn register(faults: u64, served: &[Served]) -> Result<(), Errno> {
    let features = u64::from(k::UFFD_FEATURE_MINOR_SHMEM);
    let mut api = k::uffdio_api { api: u64::from(k::UFFD_API), features, ioctls: 0 };
    // SAFETY: the kernel reads and writes `api`.
    unsafe { syscall(k::__NR_ioctl, [faults, u64::from(UFFDIO_API), &raw mut api as u64]) }?;
    let mut rest = served;
    while let Some(first) = rest.first() {
        // Neighbours in one call, wherever in the pool they lie.
        let mut range = k::uffdio_range { start: first.address, len: 0 };
        while let Some((next, after)) = rest.split_first() {
            if next.address != range.start + range.len {
                break;
            }
            range.len += next.bytes;
            rest = after;
        }
        let mut asked = k::uffdio_register { range, mode: MINOR, ioctls: 0 };
        let args = [faults, u64::from(UFFDIO_REGISTER), &raw mut asked as u64];
        // SAFETY: changes who answers faults there; the kernel reads and writes `asked`.
        unsafe { syscall(k::__NR_ioctl, args) }?;
    }
    Ok(())
}

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

fn send(socket: i32, faults: u64, member: usize) -> Result<(), Errno> {
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
