//! Whose memory a call is about, and answers for those who do not share it with the init.
//!
//! A child that the clone forks has its own copy of the mappings, and answers its calls itself
//! (see `visit`). Where it cannot be traced, what must read as zeros is overwritten with zeros
//! from here: right, at the price of the memory that the call was meant to save; and what would
//! have to grow is told that there is no memory.

use farfork_types::{PAGE_BYTES, align_up};
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::Supervisor;
use super::discard::{Piece, fail};
use super::filter::ADVICE;
use super::notify::Answer;
use crate::call::{self, Errno, syscall};
use crate::maps::AddressSpace;

/// Whose memory.
pub enum Target {
    /// This process's, that is the clone's.
    Own,
    /// That of a process the clone has forked.
    Other(Forked),
}

/// A process with a forked copy of the clone's memory, or one that has executed another program.
pub struct Forked {
    tid: u32,
}

/// A path below `/proc/PID`, NUL-terminated.
pub struct ProcPath {
    bytes: [u8; 64],
    length: usize,
}

impl ProcPath {
    /// `/proc/TID/`.
    pub fn new(tid: u32) -> ProcPath {
        ProcPath { bytes: [0; 64], length: 0 }.file(b"/proc/").number(tid).file(b"/")
    }

    /// The same with `name` appended.
    pub fn file(mut self, name: &[u8]) -> ProcPath {
        for byte in name {
            if self.length + 1 < self.bytes.len() {
                self.bytes[self.length] = *byte;
                self.length += 1;
            }
        }
        self
    }

    /// The same with a decimal number appended.
    pub fn number(self, value: u32) -> ProcPath {
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        let mut rest = value;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return self.file(&digits[at..]);
            }
        }
    }

    /// The path with its NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}

impl Supervisor {
    pub(super) fn target(&self, tid: u32) -> Target {
        if self.shares_memory(tid) { Target::Own } else { Target::Other(Forked { tid }) }
    }

    /// Whether a forked process has called about memory of the image.
    pub(super) fn needs_visit(&self, nr: u32, tid: u32, args: [u64; 6]) -> bool {
        let Target::Other(other) = self.target(tid) else { return false };
        match nr {
            k::__NR_process_madvise => ADVICE.contains(&(args[3] as u32)),
            k::__NR_madvise | k::__NR_mremap => other.holds_image(self, args[0], args[1]),
            _ => false,
        }
    }
}

impl Forked {
    /// `madvise` in the forked process.
    pub fn advise(&self, init: &Supervisor, start: u64, bytes: u64, advice: u32) -> Answer {
        let end = align_up(start.saturating_add(bytes), PAGE_BYTES);
        if !ADVICE.contains(&advice) {
            return Answer::Kernel;
        }
        match self.discard(init, start, end, advice) {
            Ok(false) => Answer::Kernel,
            Ok(true) => Answer::Done(0),
            Err(errno) => Answer::Fail(errno),
        }
    }

    /// `mremap` in the forked process: callers such as `realloc` fall back to copying.
    pub fn remap(&self, init: &Supervisor, args: [u64; 6]) -> Answer {
        let [start, old_bytes, new_bytes, flags, ..] = args;
        let needs_anonymous = new_bytes > old_bytes || flags & u64::from(k::MREMAP_DONTUNMAP) != 0;
        if needs_anonymous && self.holds_image(init, start, old_bytes) {
            return Answer::Fail(NO_MEMORY);
        }
        Answer::Kernel
    }

    fn holds_image(&self, init: &Supervisor, start: u64, bytes: u64) -> bool {
        let end = align_up(start.saturating_add(bytes), PAGE_BYTES);
        self.maps().is_ok_and(|maps| {
            let is_held = first_image(init, maps, start, end).is_some();
            maps.close();
            is_held
        })
    }

    fn maps(&self) -> Result<AddressSpace, Errno> {
        AddressSpace::open(ProcPath::new(self.tid).file(b"maps").bytes())
    }

    /// True if the range held parts of the image, which now read as they should.
    fn discard(&self, init: &Supervisor, start: u64, end: u64, advice: u32) -> Result<bool, Errno> {
        let maps = self.maps()?;
        let result = self.discard_pieces(init, maps, start, end, advice);
        maps.close();
        result
    }

    fn discard_pieces(
        &self,
        init: &Supervisor,
        maps: AddressSpace,
        start: u64,
        end: u64,
        advice: u32,
    ) -> Result<bool, Errno> {
        if first_image(init, maps, start, end).is_none() {
            return Ok(false);
        }
        if !matches!(advice, k::MADV_DONTNEED | k::MADV_FREE | k::MADV_DONTNEED_LOCKED) {
            return fail(e::EINVAL);
        }
        let mut at = start;
        while let Some(mapping) = maps.at_or_after(at).filter(|m| at < end && m.start < end) {
            let piece = Piece { start: at.max(mapping.start), end: end.min(mapping.end), mapping };
            let is_private_memory = init.is_image(&mapping) || mapping.inode == 0;
            if is_private_memory && init.file_of(&piece).is_none() {
                self.overwrite_with_zeros(&piece)?;
            }
            at = piece.end;
        }
        Ok(true)
    }

    fn overwrite_with_zeros(&self, piece: &Piece) -> Result<(), Errno> {
        let path = ProcPath::new(self.tid).file(b"mem");
        let at = k::AT_FDCWD as i64 as u64;
        let flags = u64::from(k::O_RDWR | k::O_CLOEXEC);
        // SAFETY: opens a file by a NUL-terminated path and writes zeros to the other process.
        unsafe {
            let fd = syscall(k::__NR_openat, [at, path.bytes().as_ptr() as u64, flags, 0])?;
            let mut done = 0;
            while done < piece.bytes() {
                let part = (piece.bytes() - done).min(ZEROS.len() as u64);
                let args = [fd, ZEROS.as_ptr() as u64, part, piece.start + done];
                match syscall(k::__NR_pwrite64, args) {
                    Ok(written @ 1..) => done += written,
                    _ => break,
                }
            }
            call::close_range(fd as u32, fd as u32);
            if done == piece.bytes() { Ok(()) } else { fail(e::ENOMEM) }
        }
    }
}

const NO_MEMORY: Errno = Errno(e::ENOMEM as i32);

static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

fn first_image(init: &Supervisor, maps: AddressSpace, start: u64, end: u64) -> Option<u64> {
    let mut at = start;
    while let Some(mapping) = maps.at_or_after(at).filter(|m| at < end && m.start < end) {
        if init.is_image(&mapping) {
            return Some(mapping.start);
        }
        at = mapping.end;
    }
    None
}
