//! Kernel locks: a byte of the region file for each client, far beyond its end.
//!
//! A claim is an open file description of its own, so that two clients of one process exclude each
//! other. The kernel drops the lock when the last descriptor of it is closed: when the process dies, however
//! it dies. A forked child closes its copies, as it would keep its dead parent alive otherwise.
#![allow(unsafe_code)] // reason: registers a function that runs in forked children, and maps a page that holds a lock

use std::fs::{self, File};
use std::io;
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use rustix::fs::{Mode, OFlags};

use super::Liveness;
use crate::layout::{CLIENTS, ClientId};

const LOCKS_AT: i64 = 1 << 62;

/// Locks of a region file.
#[derive(Debug, Clone)]
pub struct KernelLocks {
    /// Its own description holds no lock, and so sees those of all others.
    file: Arc<File>,
}

/// A held lock.
#[derive(Debug)]
pub struct KernelClaim {
    /// Taken out by a forked child, in which it is closed already.
    file: Option<OwnedFd>,
    number: i32,
    process: u32,
}

impl KernelLocks {
    /// Of an open region file.
    pub fn new(file: File) -> KernelLocks {
        KernelLocks { file: Arc::new(file) }
    }

    /// Has children that are forked from now on close their copies of claims. The first claim does so, too. Functions that are
    /// registered for forks after this one come before it, and may wait for a thread that claims an id.
    pub fn expect_forks() {
        close_in_children();
    }

    /// A description that no forked child keeps. Its lock is taken afterwards, which may take long.
    fn reopen(&self) -> io::Result<KernelClaim> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        close_in_children();
        let _opening = Opening::begin();
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(KernelClaim::new(file))
    }
}

fn request(byte: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: LOCKS_AT + byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn of_client(id: ClientId) -> libc::flock {
    request(i64::from(id.number()))
}

impl Liveness for KernelLocks {
    type Claim = KernelClaim;

    fn claim(&self, id: ClientId) -> io::Result<Option<KernelClaim>> {
        let claim = self.reopen()?;
        match fcntl(claim.file()?, FcntlArg::F_OFD_SETLK(&of_client(id))) {
            Ok(_) => Ok(Some(claim)),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// One lock of all bytes, and so one descriptor.
    fn claim_all(&self) -> io::Result<Option<Vec<KernelClaim>>> {
        let claim = self.reopen()?;
        let all = libc::flock { l_len: i64::from(CLIENTS), ..request(1) };
        match fcntl(claim.file()?, FcntlArg::F_OFD_SETLK(&all)) {
            Ok(_) => Ok(Some(vec![claim])),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn is_alive(&self, id: ClientId) -> io::Result<bool> {
        let mut request = of_client(id);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut request))?;
        Ok(i32::from(request.l_type) != libc::F_UNLCK)
    }

    fn is_held_by(&self, id: ClientId, pid: u32) -> bool {
        let Ok(inode) = self.file.metadata().map(|found| found.ino()) else { return false };
        // E.g. "lock: 1: OFDLCK  ADVISORY  WRITE -1 00:18:7 4611686018427387905 4611686018427387905".
        let byte = (LOCKS_AT + i64::from(id.number())).to_string();
        let is_it = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, _, "OFDLCK", _, _, _, file, first, last] = fields[..] else { return false };
            let is_file = file.rsplit(':').next() == Some(inode.to_string().as_str());
            is_file && first == byte && last == byte
        };
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
        files
            .flatten()
            .any(|file| fs::read_to_string(file.path()).is_ok_and(|text| text.lines().any(is_it)))
    }

    fn turn(&self) -> io::Result<KernelClaim> {
        let claim = self.reopen()?;
        loop {
            match fcntl(claim.file()?, FcntlArg::F_OFD_SETLKW(&request(0))) {
                Ok(_) => return Ok(claim),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl KernelClaim {
    fn new(file: OwnedFd) -> KernelClaim {
        let number = file.as_raw_fd();
        let _ = HELD.iter().any(|held| take(held, number));
        KernelClaim { file: Some(file), number, process: std::process::id() }
    }

    /// Holds the lock until the process ends, without a descriptor that the program could close: a mapping of the file keeps its
    /// description. A forked child does not have the mapping, and so not the lock.
    ///
    /// # Errors
    /// Those of `mmap` and `madvise`. The lock is given back then.
    pub fn hold_until_exit(mut self) -> io::Result<()> {
        let page = NonZero::new(4096).ok_or(io::ErrorKind::InvalidInput)?;
        let (protection, flags) = (ProtFlags::PROT_NONE, MapFlags::MAP_SHARED);
        // SAFETY: a new mapping, which nothing can read or write.
        let mapped = unsafe { mmap(None, page, protection, flags, self.file()?, 0) }?;
        // SAFETY: changes what a fork copies, and nothing in this process.
        if let Err(errno) = unsafe { madvise(mapped, page.get(), MmapAdvise::MADV_DONTFORK) } {
            // SAFETY: the mapping from above.
            let _ = unsafe { munmap(mapped, page.get()) };
            return Err(errno.into());
        }
        self.forget_number();
        // Closed here, and not unlocked.
        drop(self.file.take());
        Ok(())
    }

    /// Children need not close the descriptor any more.
    fn forget_number(&self) {
        let place = HELD.iter().find(|held| held.load(Ordering::Acquire) == self.number);
        if let Some(place) = place {
            place.store(NONE, Ordering::Release);
        }
    }

    fn file(&self) -> io::Result<&OwnedFd> {
        self.file.as_ref().ok_or_else(|| Errno::EBADF.into())
    }
}

impl Drop for KernelClaim {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.file.take());
            return;
        }
        // Without it, a mapping holds the lock, and the number may be another file's.
        if let Some(file) = &self.file {
            // By hand: a child that is forked from here on may have a copy of the descriptor.
            let all = libc::flock { l_type: libc::F_UNLCK as i16, l_len: 0, ..request(0) };
            let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&all));
            self.forget_number();
        }
    }
}

const NONE: i32 = -1;
/// Descriptors of held locks. Beyond so many in one process, children keep them.
static HELD: [AtomicI32; 1024] = [const { AtomicI32::new(NONE) }; 1024];

fn take(place: &AtomicI32, number: i32) -> bool {
    place.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

fn close_in_children() {
    // Not `Once`: a child whose parent was here in another thread would wait for that thread. Two threads may both
    // register, so that each fork calls the functions twice.
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.load(Ordering::Acquire) {
        register();
        IS_REGISTERED.store(true, Ordering::Release);
    }
}

fn register() {
    // SAFETY: the functions call `close`, `gettid` and `sched_yield` only, which are async-signal-safe.
    unsafe { libc::pthread_atfork(Some(await_opening), Some(go_on), Some(close_held)) };
}

/// Whether a thread has a new descriptor that is not in [`HELD`] yet. A fork waits for it.
static IS_OPENING: AtomicBool = AtomicBool::new(false);
/// Turns that a fork waits for it: more than a second. A signal handler that forks may have interrupted it.
const MOST_TURNS: u32 = 1 << 22;

struct Opening;

impl Opening {
    fn begin() -> Opening {
        while IS_OPENING.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Opening
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        IS_OPENING.store(false, Ordering::Release);
    }
}

/// The thread that forks, and has [`IS_OPENING`]; otherwise 0.
static FORKING: AtomicI32 = AtomicI32::new(0);

unsafe extern "C" fn await_opening() {
    // SAFETY: asks for the number of this thread.
    let thread = unsafe { libc::gettid() };
    if FORKING.load(Ordering::Acquire) == thread {
        return;
    }
    for _ in 0..MOST_TURNS {
        if !IS_OPENING.swap(true, Ordering::Acquire) {
            FORKING.store(thread, Ordering::Release);
            return;
        }
        #[cfg(test)]
        TURNS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: gives the processor to others.
        unsafe { libc::sched_yield() };
    }
}

unsafe extern "C" fn go_on() {
    // SAFETY: asks for the number of this thread.
    let thread = unsafe { libc::gettid() };
    // Once only: by the second call another thread may have begun to open its region.
    if FORKING.compare_exchange(thread, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        IS_OPENING.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn close_held() {
    FORKING.store(0, Ordering::Release);
    IS_OPENING.store(false, Ordering::Release);
    for held in &HELD {
        let number = held.swap(NONE, Ordering::AcqRel);
        if number != NONE {
            // SAFETY: the child's copy of a lock's descriptor. The handle that it belongs to cannot be used
            // in the child, as the region is not mapped there.
            unsafe { libc::close(number) };
        }
    }
}

#[cfg(test)]
static TURNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads that open their first regions at once both register what a fork calls.
    #[test]
    fn a_fork_does_not_wait_for_itself() {
        register();
        register();
        for _ in 0..3 {
            // SAFETY: the child calls `_exit` only.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: waits for the child; no status is written.
            let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            assert_eq!(ended, child);
        }
        IS_OPENING.store(true, Ordering::Release);
        // SAFETY: what a fork calls in its parent, here without one.
        unsafe { go_on() };
        assert!(IS_OPENING.swap(false, Ordering::AcqRel), "it took another thread's turn");
        // Other tests of this program may open regions meanwhile, which takes a few turns.
        assert!(TURNS.load(Ordering::Relaxed) < MOST_TURNS, "it waited for itself");
        assert_eq!(FORKING.load(Ordering::Acquire), 0);
    }
}
