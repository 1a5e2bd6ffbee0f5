//! Kernel locks: a byte of the region file for each client, far beyond its end.
//!
//! A claim is an open file description of its own, so that two clients of one process exclude each
//! other. The kernel drops the lock when the last descriptor of it is closed: when the process dies, however
//! it dies. A forked child closes its copies, as it would keep its dead parent alive otherwise.
#![allow(unsafe_code)] // reason: registers a function that runs in forked children

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Once};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{Mode, OFlags};

use super::Liveness;
use crate::layout::ClientId;

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

    fn reopen(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
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
        let file = self.reopen()?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&of_client(id))) {
            Ok(_) => Ok(Some(KernelClaim::new(file))),
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
        let file = self.reopen()?;
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLKW(&request(0))) {
                Ok(_) => return Ok(KernelClaim::new(file)),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl KernelClaim {
    fn new(file: OwnedFd) -> KernelClaim {
        close_in_children();
        let number = file.as_raw_fd();
        let _ = HELD.iter().any(|held| take(held, number));
        KernelClaim { file: Some(file), number, process: std::process::id() }
    }
}

impl Drop for KernelClaim {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.file.take());
            return;
        }
        let place = HELD.iter().find(|held| held.load(Ordering::Acquire) == self.number);
        if let Some(place) = place {
            place.store(NONE, Ordering::Release);
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
    static REGISTERED: Once = Once::new();
    // SAFETY: the function calls `close` only, which is async-signal-safe.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(close_held));
    });
}

unsafe extern "C" fn close_held() {
    for held in &HELD {
        let number = held.swap(NONE, Ordering::AcqRel);
        if number != NONE {
            // SAFETY: the child's copy of a lock's descriptor. The handle that it belongs to cannot be used
            // in the child, as the region is not mapped there.
            unsafe { libc::close(number) };
        }
    }
}
