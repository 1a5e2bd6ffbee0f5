//! Thin names for the system calls the restorer makes outside plans.

pub use farfork_sys::raw::{CloneArgs, Errno, SysResult, clone3_entry, sigreturn, syscall};
use linux_raw_sys::general as k;

/// Exit status of the restorer's own processes when an invariant of its own does not hold.
pub const EXIT_BUG: i32 = 120;
/// Exit status after a failure that was reported on the status socket.
pub const EXIT_REPORTED: i32 = 121;

/// Fails with an error number of the kernel.
pub fn fail<T>(errno: u32) -> Result<T, Errno> {
    Err(Errno(errno as i32))
}

/// Flags of `clone3` for a thread of the caller's process.
pub const THREAD: u32 = k::CLONE_VM
    | k::CLONE_FS
    | k::CLONE_FILES
    | k::CLONE_SIGHAND
    | k::CLONE_THREAD
    | k::CLONE_SYSVSEM;

/// `clone3` for a process or thread with given ids. The kernel frees the id of a thread a moment after
/// the end of its process can be waited for. So a start with the ids of a clone that has just ended is
/// retried.
///
/// # Safety
/// As [`clone3_entry`].
pub unsafe fn clone3_with_ids(
    args: &CloneArgs,
    entry: extern "C" fn(u64) -> !,
    arg: u64,
) -> SysResult {
    for _ in 0..ID_TRIES {
        // SAFETY: passed on to the caller.
        match unsafe { clone3_entry(args, entry, arg) } {
            Err(Errno(EEXIST)) => pause(),
            other => return other,
        }
    }
    Err(Errno(EEXIST))
}

const EEXIST: i32 = linux_raw_sys::errno::EEXIST as i32;
const ID_TRIES: u32 = 200;

/// Sleeps for half a millisecond.
fn pause() {
    let time = k::__kernel_timespec { tv_sec: 0, tv_nsec: 500_000 };
    // SAFETY: the kernel reads one timespec.
    let _ = unsafe { syscall(k::__NR_nanosleep, [&raw const time as u64, 0]) };
}

/// Ends the process.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: ends this process; nothing follows.
        let _ = unsafe { syscall(k::__NR_exit_group, [status as u64]) };
    }
}

/// `mmap` with all arguments.
///
/// # Safety
/// As `mmap`: a fixed mapping replaces what is there.
pub unsafe fn mmap(at: u64, bytes: u64, prot: u32, flags: u32, fd: i32, offset: u64) -> SysResult {
    // SAFETY: passed on to the caller.
    unsafe {
        syscall(
            k::__NR_mmap,
            [at, bytes, u64::from(prot), u64::from(flags), fd as i64 as u64, offset],
        )
    }
}

/// `munmap`.
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn munmap(at: u64, bytes: u64) -> SysResult {
    // SAFETY: passed on to the caller.
    unsafe { syscall(k::__NR_munmap, [at, bytes]) }
}

/// `mremap` to exactly `to`, replacing what is there.
///
/// # Safety
/// Nothing may use the old range, nor what was mapped at the new one.
pub unsafe fn move_mapping(from: u64, bytes: u64, to: u64) -> SysResult {
    let flags = u64::from(k::MREMAP_MAYMOVE | k::MREMAP_FIXED);
    // SAFETY: passed on to the caller.
    unsafe { syscall(k::__NR_mremap, [from, bytes, bytes, flags, to]) }
}

/// Monotonic time in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = k::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    let at = &raw mut time as u64;
    // SAFETY: the kernel writes one timespec to `time`.
    let _ = unsafe { syscall(k::__NR_clock_gettime, [u64::from(k::CLOCK_MONOTONIC), at]) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Closes descriptors `first..=last`.
pub fn close_range(first: u32, last: u32) {
    // SAFETY: descriptors are plain numbers here; none is owned by a Rust value.
    let _ = unsafe { syscall(k::__NR_close_range, [u64::from(first), u64::from(last), 0]) };
}

/// A copy of `fd` with a number of at least `lowest`, close-on-exec.
pub fn duplicate_above(fd: i32, lowest: u32) -> Result<i32, Errno> {
    let args = [fd as u64, u64::from(k::F_DUPFD_CLOEXEC), u64::from(lowest)];
    // SAFETY: makes a new descriptor and touches no memory.
    unsafe { syscall(k::__NR_fcntl, args) }.map(|fd| fd as i32)
}

/// The same descriptor with a number of at least `lowest`, close-on-exec.
pub fn move_above(fd: i32, lowest: u32) -> Result<i32, Errno> {
    let kept = duplicate_above(fd, lowest);
    close_range(fd as u32, fd as u32);
    kept
}

/// An eventfd with a number of at least `lowest`, close-on-exec.
pub fn event(lowest: u32) -> Result<i32, Errno> {
    // SAFETY: makes a new descriptor.
    let fd = unsafe { syscall(k::__NR_eventfd2, [0, u64::from(k::O_CLOEXEC)]) }? as i32;
    move_above(fd, lowest)
}

/// Makes an eventfd readable.
pub fn signal(event: i32) {
    let one = 1u64;
    // SAFETY: the kernel reads eight bytes.
    let _ = unsafe { syscall(k::__NR_write, [event as u64, &raw const one as u64, 8]) };
}

/// Sends `message` whole on the packet socket `fd`.
pub fn send<T: Copy>(fd: i32, message: &T) -> Result<(), Errno> {
    let (at, bytes) = (message as *const T as u64, size_of::<T>() as u64);
    // SAFETY: the kernel reads `message`, a plain struct.
    unsafe { syscall(k::__NR_sendto, [fd as u64, at, bytes, u64::from(MSG_NOSIGNAL), 0, 0]) }
        .map(|_| ())
}

/// Value of the kernel's `MSG_NOSIGNAL`.
pub const MSG_NOSIGNAL: u32 = 0x4000;
