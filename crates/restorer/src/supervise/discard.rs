//! `madvise` and `process_madvise` on a caller's own memory.

use farfork_types::{PAGE_BYTES, align_up};
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::filter::MADV_GUARD_INSTALL;
use super::image::Piece;
use super::visit::Visit;
use crate::call::{Errno, SysResult};

/// An error of the kind the kernel gives.
pub fn fail<T>(errno: u32) -> Result<T, Errno> {
    Err(Errno(errno as i32))
}

impl Visit<'_> {
    /// Advises range by range up to the first that fails, and gives the bytes advised.
    pub(super) fn advise(&self, ranges: &[[u64; 2]], advice: u32) -> SysResult {
        let mut advised = 0;
        for [start, bytes] in ranges {
            match self.discard(*start, align_up(start.saturating_add(*bytes), PAGE_BYTES), advice) {
                Ok(()) => advised += bytes,
                Err(errno) if advised == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(advised)
    }

    /// Performs the advice mapping by mapping, as the kernel does: it stops at the first error,
    /// and tells of holes at the end.
    fn discard(&self, start: u64, end: u64, advice: u32) -> Result<(), Errno> {
        let mut at = start;
        let mut is_whole = true;
        for piece in self.image.pieces(&self.caller.space, start, end) {
            let piece = piece?;
            is_whole &= piece.start == at;
            if self.image.holds(&piece.mapping) {
                self.discard_image(&piece, advice)?;
            } else {
                self.madvise(&piece, advice)?;
            }
            at = piece.end;
        }
        if is_whole && at >= end { Ok(()) } else { fail(e::ENOMEM) }
    }

    fn discard_image(&self, piece: &Piece, advice: u32) -> Result<(), Errno> {
        let is_file = self.image.file_of(piece).is_some();
        match advice {
            k::MADV_REMOVE => fail(if is_file { e::EACCES } else { e::EINVAL }),
            k::MADV_WIPEONFORK | k::MADV_FREE if is_file => fail(e::EINVAL),
            k::MADV_WIPEONFORK => {
                self.make_anonymous(piece.start, piece.end, piece.prot())?;
                self.madvise(piece, advice)
            }
            MADV_GUARD_INSTALL => {
                self.renew(piece)?;
                self.madvise(piece, advice)
            }
            _ => {
                // The kernel's own check of locked memory comes with doing the real thing first.
                let real = if advice == k::MADV_FREE { k::MADV_DONTNEED } else { advice };
                self.madvise(piece, real)?;
                self.renew(piece)
            }
        }
    }

    /// Turns part of an image into what the parent had underneath: zeros, or its file.
    fn renew(&self, piece: &Piece) -> Result<(), Errno> {
        let map = |flags: u32, fd: u64, offset: u64| {
            let flags = u64::from(k::MAP_PRIVATE | k::MAP_FIXED | flags);
            let args = [piece.start, piece.bytes(), piece.prot(), flags, fd, offset];
            self.thread.call(k::__NR_mmap, args).map(|_| ())
        };
        let Some((file, offset)) = self.image.file_of(piece) else {
            return map(k::MAP_ANONYMOUS, u64::MAX, 0);
        };
        let at = k::AT_FDCWD as i64 as u64;
        let flags = u64::from(k::O_RDONLY | k::O_CLOEXEC);
        // The plan, and so the path, is mapped at the same address there.
        let fd = self.thread.call(k::__NR_openat, [at, file.path, flags, 0, 0, 0])?;
        let mapped = map(0, fd, offset);
        let _ = self.thread.call(k::__NR_close, [fd, 0, 0, 0, 0, 0]);
        mapped
    }

    fn madvise(&self, piece: &Piece, advice: u32) -> Result<(), Errno> {
        let args = [piece.start, piece.bytes(), u64::from(advice), 0, 0, 0];
        self.thread.call(k::__NR_madvise, args).map(|_| ())
    }
}
