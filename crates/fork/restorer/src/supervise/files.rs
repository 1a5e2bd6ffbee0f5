//! The files that lay under private mappings of the parent. What a clone discards of them comes
//! from the file that was there when it started, whatever is at its path later, and whatever the
//! clone may open itself.

use core::cell::OnceCell;

use farfork_plan::FileRange;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};

/// Descriptors of the files of a plan, in the plan's order.
pub struct Files {
    ranges: &'static [FileRange],
    /// When the clone was about to start, as files have it: seconds and nanoseconds.
    started: (u64, u64),
    held: OnceCell<&'static [i32]>,
}

impl Files {
    /// The files of `ranges`, to be opened.
    pub fn new(ranges: &'static [FileRange]) -> Files {
        let mut now = [0u64; 2];
        let args = [k::CLOCK_REALTIME.into(), now.as_mut_ptr() as u64];
        // SAFETY: the kernel writes one timespec.
        let _ = unsafe { syscall(k::__NR_clock_gettime, args) };
        Files { ranges, started: (now[0], now[1]), held: OnceCell::new() }
    }

    /// Opens them all, once: this is not done before the clone is started, which would wait for it.
    pub fn hold(&self) {
        self.held.get_or_init(|| open_all(self.ranges, self.started).unwrap_or(&[]));
    }

    /// Whether they are open.
    pub fn are_held(&self) -> bool {
        self.held.get().is_some()
    }

    /// The descriptor of the file of `range`.
    pub fn fd(&self, range: &FileRange) -> Result<i32, Errno> {
        self.hold();
        let index = self.ranges.partition_point(|other| other.start < range.start);
        let fd = self.held.get().and_then(|held| held.get(index)).copied();
        fd.filter(|fd| *fd >= 0).ok_or(Errno(e::ENOMEM as i32))
    }
}

fn open_all(ranges: &[FileRange], started: (u64, u64)) -> Result<&'static [i32], Errno> {
    if ranges.is_empty() {
        return Ok(&[]);
    }
    let (prot, flags) = (k::PROT_READ | k::PROT_WRITE, k::MAP_PRIVATE | k::MAP_ANONYMOUS);
    // SAFETY: new memory, which nothing else uses and which stays.
    let fds = unsafe {
        let at = call::mmap(0, 4 * ranges.len() as u64, prot, flags, -1, 0)?;
        core::slice::from_raw_parts_mut(at as *mut i32, ranges.len())
    };
    for (index, range) in ranges.iter().enumerate() {
        // A library is mapped in several parts, one after the other.
        let is_same = index > 0 && is_same_path(&ranges[index - 1], range);
        fds[index] = if is_same { fds[index - 1] } else { open(range, started).unwrap_or(-1) };
    }
    Ok(fds)
}

fn is_same_path(one: &FileRange, other: &FileRange) -> bool {
    // SAFETY: the plan holds the texts, each with its NUL, and stays mapped.
    let byte = |range: &FileRange, at: u64| unsafe { *((range.path + at) as *const u8) };
    let mut at = 0;
    while byte(one, at) == byte(other, at) {
        if byte(one, at) == 0 {
            return true;
        }
        at += 1;
    }
    false
}

/// A path of the kernel's has no symbolic links; where there is one now, it leads elsewhere, and
/// this process might open what the clone may not. A file that was changed or put there after the
/// clone was started may not be the one that the agent found to be right.
fn open(range: &FileRange, started: (u64, u64)) -> Result<i32, Errno> {
    let flags = k::O_RDONLY | k::O_CLOEXEC | k::O_NONBLOCK | k::O_NOCTTY;
    let resolve = k::RESOLVE_NO_SYMLINKS;
    let how = [u64::from(flags), 0, u64::from(resolve)]; // struct open_how
    let args =
        [k::AT_FDCWD as i64 as u64, range.path, how.as_ptr() as u64, size_of_val(&how) as u64];
    // SAFETY: the path is the plan's, with its NUL; the kernel reads `how`.
    let fd = unsafe { syscall(k::__NR_openat2, args) }? as i32;
    if is_regular_since(fd, started) {
        return Ok(fd);
    }
    call::close_range(fd as u32, fd as u32);
    Err(Errno(e::ENOMEM as i32))
}

fn is_regular_since(fd: i32, started: (u64, u64)) -> bool {
    let mut stat = [0u64; 18]; // struct stat
    let args = [fd as u64, stat.as_mut_ptr() as u64];
    // SAFETY: the kernel writes 144 bytes.
    let known = unsafe { syscall(k::__NR_fstat, args) };
    let changed = (stat[CHANGED], stat[CHANGED + 1]);
    known.is_ok() && stat[MODE] as u32 & k::S_IFMT == k::S_IFREG && changed <= started
}

/// Where `st_mode` is in `struct stat`, in words.
const MODE: usize = 3;
/// Where `st_ctime` is, with its nanoseconds behind it.
const CHANGED: usize = 13;
