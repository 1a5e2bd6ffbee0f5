//! Rings of io_uring that only change epoll instances.
//!
//! ```text
//!  parent   look      no SQPOLL, nothing registered, nothing under way       (fdinfo, and calls that fail)
//!  clone    disabled ─► restricted ─► enabled ─► as many NOPs as the parent's has seen requests
//! ```
//! io_uring runs calls without asking seccomp filters. So the rings that clones get take no other request
//! than to change an epoll instance, and none to do nothing.
#![allow(unsafe_code)] // reason: io_uring has no safe wrapper, and its queues are shared with the kernel

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const OFF_SQ_RING: i64 = 0;
const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_R_DISABLED: u32 = 1 << 6;
/// Linux 6.6.
const SETUP_NO_SQARRAY: u32 = 1 << 16;
const ENTER_GETEVENTS: u32 = 1;
const REGISTER_EVENTFD: u32 = 4;
const REGISTER_RESTRICTIONS: u32 = 11;
const REGISTER_ENABLE_RINGS: u32 = 12;
const RESTRICTION_REGISTER_OP: u16 = 0;
const RESTRICTION_SQE_OP: u16 = 1;
/// Requests that a restricted ring takes.
pub const OP_NOP: u8 = 0;
/// See [`OP_NOP`].
pub const OP_EPOLL_CTL: u8 = 29;
/// Bytes of a completion.
pub const COMPLETION_BYTES: usize = 16;
/// Bytes of a submission.
pub const SUBMISSION_BYTES: usize = 64;
/// Where completions begin, behind the counters of both queues.
pub const COMPLETIONS_AT: usize = 64;

/// Why a ring is not one that a clone can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// An eventfd gets its completions.
    Eventfd,
    /// Only one thread may use it (SINGLE_ISSUER, and with it DEFER_TASKRUN).
    SingleIssuer,
    /// It was not enabled yet.
    Disabled,
    /// It was restricted, and not by farfork.
    Restricted,
    /// The kernel answered otherwise.
    Unknown,
}

/// Looks at a ring by calls that change nothing: they fail in one way if there is nothing to be found.
pub fn look(ring: BorrowedFd<'_>) -> Result<(), Obstacle> {
    let none = -1i32;
    match register(ring, REGISTER_EVENTFD, (&raw const none).cast(), 1) {
        Err(errno) if errno == libc::EBADF => {}
        Err(errno) if errno == libc::EBUSY => return Err(Obstacle::Eventfd),
        Err(errno) if errno == libc::EEXIST => return Err(Obstacle::SingleIssuer),
        Err(errno) if errno == libc::EACCES => return Err(Obstacle::Restricted),
        _ => return Err(Obstacle::Unknown),
    }
    match enter(ring, 0, 0) {
        Ok(0) => Ok(()),
        Err(errno) if errno == libc::EBADFD => Err(Obstacle::Disabled),
        _ => Err(Obstacle::Unknown),
    }
}

/// What a ring is made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Submissions that it has room for.
    pub entries: u32,
    /// Completions that it has room for.
    pub completions: u32,
    /// Whether submissions go through an array of indices.
    pub has_array: bool,
    /// Requests that it has seen.
    pub position: u32,
}

/// Makes a ring that takes no request but [`OP_NOP`] and [`OP_EPOLL_CTL`], and has seen as many as `shape`
/// says. The thread that makes it should end: the kernel notes for each which rings it has used.
///
/// # Errors
/// The kernel has no io_uring, or it is forbidden (`kernel.io_uring_disabled`).
pub fn make(shape: Shape) -> io::Result<OwnedFd> {
    let mut parameters = [0u32; 30];
    let array = if shape.has_array { 0 } else { SETUP_NO_SQARRAY };
    (parameters[1], parameters[2]) = (shape.completions, SETUP_CQSIZE | SETUP_R_DISABLED | array);
    // SAFETY: the kernel reads and fills the parameters, 120 bytes.
    let made =
        unsafe { libc::syscall(libc::SYS_io_uring_setup, shape.entries, parameters.as_mut_ptr()) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made the descriptor.
    let ring = unsafe { OwnedFd::from_raw_fd(made as i32) };
    restrict(&ring).map_err(io::Error::from_raw_os_error)?;
    if shape.position != 0 || shape.has_array {
        Queues::map(&ring, shape, &parameters)?.advance(shape)?;
    }
    Ok(ring)
}

/// `struct io_uring_restriction`.
#[repr(C)]
struct Restriction {
    what: u16,
    number: u8,
    reserved: [u8; 13],
}

fn restrict(ring: &OwnedFd) -> Result<(), i32> {
    let allow = |what, number| Restriction { what, number, reserved: [0; 13] };
    let allowed = [
        allow(RESTRICTION_SQE_OP, OP_NOP),
        allow(RESTRICTION_SQE_OP, OP_EPOLL_CTL),
        // So that a clone's ring can be looked at like its parent's.
        allow(RESTRICTION_REGISTER_OP, REGISTER_EVENTFD as u8),
    ];
    let fd = std::os::fd::AsFd::as_fd(ring);
    register(fd, REGISTER_RESTRICTIONS, allowed.as_ptr().cast(), allowed.len() as u32)?;
    register(fd, REGISTER_ENABLE_RINGS, std::ptr::null(), 0)
}

/// The memory that a ring shares with its user.
struct Queues<'r> {
    ring: &'r OwnedFd,
    at: *mut u8,
    bytes: usize,
    submitted: usize,
    seen: usize,
    completed: usize,
    array: usize,
}

impl<'r> Queues<'r> {
    fn map(ring: &'r OwnedFd, shape: Shape, parameters: &[u32; 30]) -> io::Result<Queues<'r>> {
        let offset = |index: usize| parameters[index] as usize;
        let array = offset(16);
        let end = offset(25) + COMPLETION_BYTES * shape.completions as usize;
        let bytes = end.max(array + 4 * shape.entries as usize);
        let (prot, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = ring.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, how, fd, OFF_SQ_RING) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (submitted, seen, completed) = (offset(11), offset(20), offset(21));
        Ok(Queues { ring, at: at.cast(), bytes, submitted, seen, completed, array })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the kernel's offsets are aligned and inside of the mapping, which lives as long as this.
        unsafe { &*self.at.add(offset).cast::<AtomicU32>() }
    }

    /// Has as many requests done that do nothing. New submissions are zero, which is one of these.
    fn advance(&self, shape: Shape) -> io::Result<()> {
        for index in (0..shape.entries).filter(|_| shape.has_array) {
            self.word(self.array + 4 * index as usize).store(index, Ordering::Relaxed);
        }
        let mut position = 0;
        while position < shape.position {
            let count = (shape.position - position).min(shape.entries);
            position += count;
            self.word(self.submitted).store(position, Ordering::Release);
            enter(std::os::fd::AsFd::as_fd(self.ring), count, count)
                .map_err(io::Error::from_raw_os_error)?;
            if self.word(self.completed).load(Ordering::Acquire) != position {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.word(self.seen).store(position, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Queues<'_> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

fn register(ring: BorrowedFd<'_>, what: u32, with: *const u8, count: u32) -> Result<(), i32> {
    // SAFETY: the kernel reads what the callers point to.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), what, with, count) };
    if done < 0 { Err(errno()) } else { Ok(()) }
}

fn enter(ring: BorrowedFd<'_>, submit: u32, complete: u32) -> Result<i64, i32> {
    let flags = if complete == 0 { 0 } else { ENTER_GETEVENTS };
    let (fd, none) = (ring.as_raw_fd(), std::ptr::null::<u8>());
    // SAFETY: no memory but the ring's own is involved.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, submit, complete, flags, none, 0) };
    if done < 0 { Err(errno()) } else { Ok(done) }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SHAPE: Shape = Shape { entries: 8, completions: 16, has_array: false, position: 0 };

    fn ring(shape: Shape) -> Option<OwnedFd> {
        match make(shape) {
            Ok(ring) => Some(ring),
            Err(error) => {
                eprintln!("skipped: no ring ({})", crate::words::of(&error));
                None
            }
        }
    }

    fn shown(ring: &OwnedFd, key: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", ring.as_raw_fd()));
        let text = text.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    }

    #[test]
    fn a_ring_has_seen_as_many_requests_as_its_parent() {
        for (has_array, position) in [(false, 0), (false, 1), (true, 3), (false, 8), (true, 1003)] {
            let Some(ring) = ring(Shape { has_array, position, ..SHAPE }) else { return };
            for key in ["SqHead", "SqTail", "CachedSqHead", "CqHead", "CqTail", "CachedCqTail"] {
                assert_eq!(shown(&ring, key), position.to_string(), "{key}");
            }
            assert_eq!(look(ring.as_fd()), Ok(()));
        }
    }

    #[test]
    fn other_requests_and_registrations_are_refused() {
        let Some(ring) = ring(SHAPE) else { return };
        let fd = ring.as_fd();
        assert_eq!(register(fd, 0, std::ptr::null(), 0), Err(libc::EACCES));
        assert_eq!(register(fd, REGISTER_RESTRICTIONS, std::ptr::null(), 0), Err(libc::EACCES));
        // An madvise, by the first submission.
        let (prot, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: new mappings of the ring, whose words are written as io_uring has them.
        let result = unsafe {
            let map = |bytes, offset| {
                let at = libc::mmap(std::ptr::null_mut(), bytes, prot, how, fd.as_raw_fd(), offset);
                at.cast::<u8>()
            };
            let (counters, submissions) = (map(4096, 0), map(4096, 0x1000_0000));
            *submissions = 26;
            (*counters.add(4).cast::<AtomicU32>()).store(1, Ordering::Release);
            assert_eq!(enter(fd, 1, 1), Ok(1));
            *counters.add(COMPLETIONS_AT + 8).cast::<i32>()
        };
        assert_eq!(result, -libc::EACCES);
    }

    #[test]
    fn what_a_ring_has_registered_is_noticed() {
        let Some(ring) = ring(SHAPE) else { return };
        // SAFETY: makes a descriptor.
        let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, 0)) };
        let number = event.as_raw_fd();
        register(ring.as_fd(), REGISTER_EVENTFD, (&raw const number).cast(), 1).unwrap();
        assert_eq!(look(ring.as_fd()), Err(Obstacle::Eventfd));
    }
}
