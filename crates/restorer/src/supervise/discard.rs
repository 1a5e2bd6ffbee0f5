//! `madvise` and `process_madvise` on the clone's own memory.

use farfork_types::{align_down, align_up};
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::Supervisor;
use super::filter::{ADVICE, MADV_GUARD_INSTALL};
use super::notify::{Answer, read_file};
use super::target::ProcPath;
use crate::call::{self, Errno, SysResult, syscall};
use crate::maps::{self, Mapping};

/// Part of one mapping, or the whole.
#[derive(Clone, Copy)]
pub struct Piece {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// The mapping it belongs to.
    pub mapping: Mapping,
}

impl Piece {
    /// Offset of its start in the mapped file.
    pub fn offset(&self) -> u64 {
        self.mapping.offset + (self.start - self.mapping.start)
    }

    /// Protection as `mmap` takes it; the bits are the same.
    pub fn prot(&self) -> u32 {
        (self.mapping.flags & (maps::READ | maps::WRITE | maps::EXEC)) as u32
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// An error of the kind the kernel gives.
pub fn fail<T>(errno: u32) -> Result<T, Errno> {
    Err(Errno(errno as i32))
}

impl Supervisor {
    pub(super) fn advise(&self, start: u64, bytes: u64, advice: u32) -> Answer {
        let end = align_up(start.saturating_add(bytes), PAGE);
        let is_aligned = start == align_down(start, PAGE);
        if !ADVICE.contains(&advice) || !is_aligned || !self.touches_image(start, end) {
            return Answer::Kernel;
        }
        self.discard(start, end, advice).map(|()| 0).into()
    }

    /// Whether any part of the range still shows bytes of the image.
    pub(super) fn touches_image(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while let Some(mapping) = self.maps.at_or_after(at).filter(|m| at < end && m.start < end) {
            if self.is_image(&mapping) {
                return true;
            }
            at = mapping.end;
        }
        false
    }

    /// Performs the advice mapping by mapping, as the kernel does: it stops at the first error,
    /// and tells of holes at the end.
    fn discard(&self, start: u64, end: u64, advice: u32) -> Result<(), Errno> {
        let mut at = start;
        let mut is_whole = true;
        while at < end {
            let Some(mapping) = self.maps.at_or_after(at).filter(|m| m.start < end) else {
                is_whole = false;
                break;
            };
            is_whole &= mapping.start <= at;
            let piece = Piece { start: at.max(mapping.start), end: end.min(mapping.end), mapping };
            if self.is_image(&mapping) {
                self.discard_image(&piece, advice)?;
            } else {
                madvise(&piece, advice)?;
            }
            at = piece.end;
        }
        if is_whole { Ok(()) } else { fail(e::ENOMEM) }
    }

    fn discard_image(&self, piece: &Piece, advice: u32) -> Result<(), Errno> {
        let is_file = self.file_of(piece).is_some();
        match advice {
            k::MADV_REMOVE => fail(if is_file { e::EACCES } else { e::EINVAL }),
            k::MADV_WIPEONFORK | k::MADV_FREE if is_file => fail(e::EINVAL),
            k::MADV_WIPEONFORK => {
                self.materialise(piece.start, piece.end)?;
                madvise(piece, advice).map(|_| ())
            }
            MADV_GUARD_INSTALL => {
                self.renew(piece)?;
                madvise(piece, advice).map(|_| ())
            }
            _ => {
                // The kernel's own check of locked memory comes with doing the real thing first.
                let real = if advice == k::MADV_FREE { k::MADV_DONTNEED } else { advice };
                madvise(piece, real)?;
                self.renew(piece)
            }
        }
    }

    /// Turns part of an image into what the parent had underneath: zeros, or its file.
    fn renew(&self, piece: &Piece) -> Result<(), Errno> {
        let Some((file, file_offset)) = self.file_of(piece) else {
            return map_anonymous(piece).map(|_| ());
        };
        let at = k::AT_FDCWD as i64 as u64;
        let flags = u64::from(k::O_RDONLY | k::O_CLOEXEC);
        // SAFETY: the path is in the plan, NUL-terminated; the mapping replaces the piece, whose
        // bytes the clone has just given up.
        unsafe {
            let fd = syscall(k::__NR_openat, [at, file.path, flags, 0])? as i32;
            let fixed = k::MAP_PRIVATE | k::MAP_FIXED;
            let mapped =
                call::mmap(piece.start, piece.bytes(), piece.prot(), fixed, fd, file_offset);
            call::close_range(fd as u32, fd as u32);
            mapped.map(|_| ())
        }
    }

    /// `process_madvise` by a task of this address space.
    pub(super) fn advise_process(&self, tid: u32, args: [u64; 6]) -> Answer {
        let [pidfd, vectors, count, advice, ..] = args;
        if !ADVICE.contains(&(advice as u32)) || !self.names_self(tid, pidfd as i32) {
            return Answer::Kernel;
        }
        let mut ranges = [[0u64; 2]; MAX_RANGES];
        if count as usize > MAX_RANGES {
            return Answer::Fail(Errno(e::EINVAL as i32));
        }
        if let Err(errno) = copy_from_clone(vectors, &mut ranges[..count as usize]) {
            return Answer::Fail(errno);
        }
        self.advise_ranges(&ranges[..count as usize], advice as u32)
    }

    fn advise_ranges(&self, ranges: &[[u64; 2]], advice: u32) -> Answer {
        let end_of = |range: &[u64; 2]| align_up(range[0].saturating_add(range[1]), PAGE);
        if !ranges.iter().any(|range| self.touches_image(range[0], end_of(range))) {
            return Answer::Kernel;
        }
        let mut advised = 0;
        for range in ranges {
            match self.discard(range[0], end_of(range), advice) {
                Ok(()) => advised += range[1],
                Err(errno) if advised == 0 => return Answer::Fail(errno),
                Err(_) => break,
            }
        }
        Answer::Done(advised)
    }

    /// Whether the caller's pidfd refers to a task of this address space.
    fn names_self(&self, tid: u32, pidfd: i32) -> bool {
        if pidfd <= PIDFD_SELF_FIRST {
            return true; // one of the PIDFD_SELF values (Linux 6.14); others are refused below
        }
        let mut text = [0u8; 1024];
        let path = ProcPath::new(tid).file(b"fdinfo/").number(pidfd as u32);
        let Ok(text) = read_file(path.bytes(), &mut text) else { return false };
        let pid = text
            .split(|byte| *byte == b'\n')
            .find_map(|line| line.strip_prefix(b"Pid:\t"))
            .map_or(0, |digits| digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')));
        pid != 0 && self.shares_memory(pid)
    }
}

const PAGE: u64 = farfork_types::PAGE_BYTES;
/// The kernel takes 1,024; what is beyond this is refused.
const MAX_RANGES: usize = 1024;
const PIDFD_SELF_FIRST: i32 = -10_000;

fn madvise(piece: &Piece, advice: u32) -> SysResult {
    // SAFETY: the clone asked for this on its own memory.
    unsafe { syscall(k::__NR_madvise, [piece.start, piece.bytes(), u64::from(advice)]) }
}

fn map_anonymous(piece: &Piece) -> SysResult {
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED;
    // SAFETY: replaces a range whose bytes the clone has just given up.
    unsafe { call::mmap(piece.start, piece.bytes(), piece.prot(), flags, -1, 0) }
}

/// Copies words from an address that the clone named, which may be bad.
fn copy_from_clone(from: u64, to: &mut [[u64; 2]]) -> Result<(), Errno> {
    let bytes = size_of_val(to) as u64;
    let local = [to.as_mut_ptr() as u64, bytes];
    let remote = [from, bytes];
    // SAFETY: the kernel copies between this process and itself and reports bad addresses.
    unsafe {
        let own = syscall(k::__NR_getpid, [])?;
        let args = [own, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0];
        match syscall(k::__NR_process_vm_readv, args) {
            Ok(read) if read == bytes => Ok(()),
            Ok(_) => fail(e::EFAULT),
            Err(errno) => Err(errno),
        }
    }
}
