//! `madvise` and `process_madvise` on a caller's own memory.
//!
//! No memory is discarded before its replacement exists. At every moment an address has its old bytes
//! or the right new ones, for other threads too, and also when a call fails.

use farfork_plan::traits;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::filter::MADV_GUARD_INSTALL;
use super::image::Piece;
use super::job::Job;
use super::range::range;
use super::smaps::{KEY_SHIFT, SEALED, WATCHED};
use crate::call::{Errno, SysResult, fail};
use crate::maps;

/// Attributes with which a mapping cannot be replaced by a new one.
const STAYS_IN_PLACE: u64 = traits::LOCKED | traits::LOCKS_FUTURE | SEALED | u64::MAX << KEY_SHIFT;

/// Attributes set by advice, and whether programs rely on them.
const ADVICE: [(u64, u32, bool); 5] = [
    (traits::DONT_FORK, k::MADV_DONTFORK, true),
    (traits::DONT_DUMP, k::MADV_DONTDUMP, true),
    (traits::HUGE, k::MADV_HUGEPAGE, false),
    (traits::NO_HUGE, k::MADV_NOHUGEPAGE, false),
    (traits::MERGEABLE, k::MADV_MERGEABLE, false),
];

impl Job<'_> {
    /// Advises range by range up to the first that fails, and gives the bytes advised.
    pub(super) fn advise(&self, ranges: &[[u64; 2]], advice: u32) -> SysResult {
        let mut advised = 0;
        for [start, bytes] in ranges {
            match range(*start, *bytes).and_then(|(start, end)| self.discard(start, end, advice)) {
                Ok(()) => advised += bytes,
                Err(errno) if advised == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(advised)
    }

    /// Performs the advice mapping by mapping, as the kernel does: it stops at the first error, and
    /// reports holes at the end.
    fn discard(&self, start: u64, end: u64, advice: u32) -> Result<(), Errno> {
        let image = &self.supervisor.image;
        let mut at = start;
        let mut is_whole = true;
        for piece in image.pieces(&self.caller.space, start, end) {
            let piece = piece?;
            is_whole &= piece.start == at;
            if image.holds(&piece.mapping) {
                self.discard_image(&piece, advice)?;
            } else if self.thread.is_some() {
                self.madvise(piece.start, piece.bytes(), advice)?;
            } else {
                self.discard_other(&piece, advice)?;
            }
            at = piece.end;
        }
        if is_whole && at >= end { Ok(()) } else { fail(e::ENOMEM) }
    }

    fn discard_image(&self, piece: &Piece, advice: u32) -> Result<(), Errno> {
        let is_file = self.supervisor.image.file_of(piece).is_some();
        let traits = self.attributes(piece)?;
        if traits & traits::LOCKED != 0 && !KEEPS_LOCKED.contains(&advice) {
            return fail(e::EINVAL);
        }
        if traits & SEALED != 0 && !is_file && !piece.is_writable() {
            return fail(e::EPERM);
        }
        if traits & WATCHED != 0 {
            return fail(e::ENOMEM); // its watcher decides what comes next
        }
        match advice {
            k::MADV_REMOVE => fail(if is_file { e::EACCES } else { e::EINVAL }),
            k::MADV_WIPEONFORK | k::MADV_FREE if is_file => fail(e::EINVAL),
            k::MADV_WIPEONFORK | MADV_GUARD_INSTALL if self.thread.is_none() => fail(e::EINVAL),
            k::MADV_WIPEONFORK => self.at_standstill(|| {
                self.make_anonymous(piece.start, piece.end, piece.prot(), traits, Some(advice))
            }),
            MADV_GUARD_INSTALL => self.renew(piece, traits, Some(advice)),
            _ if self.is_better_overwritten(piece, traits) => self.overwrite(piece),
            _ => self.renew(piece, traits, None).or_else(|_| self.overwrite(piece)),
        }
    }

    fn is_better_overwritten(&self, piece: &Piece, traits: u64) -> bool {
        let is_cut_up = self.supervisor.cuts.are_too_many_for(piece);
        self.thread.is_none() || traits & STAYS_IN_PLACE != 0 || is_cut_up
    }

    /// The attributes of a piece of the image, as bits of [`traits`] and of
    /// [`smaps`](super::smaps).
    pub(super) fn attributes(&self, piece: &Piece) -> Result<u64, Errno> {
        let (image, changes) = (&self.supervisor.image, &self.supervisor.changes);
        let planned = image.traits_of(piece);
        let place = self.supervisor.image.place(piece);
        if planned & traits::LOCKED == 0 && !changes.has(place, place + piece.bytes()) {
            return Ok(planned);
        }
        // Attributes that farfork has set to watch the clone are not the program's.
        let is_watched = self.supervisor.watch.get().is_some();
        let advised = if is_watched { traits::HUGE | traits::NO_HUGE } else { 0 };
        let kept = planned & (traits::NO_RESERVE | traits::LOCKS_FUTURE | advised);
        let future = if changes.locks_future() { traits::LOCKS_FUTURE } else { 0 };
        // Memory that farfork has registered is not the program's to watch.
        let is_ours = self.supervisor.is_served || is_watched;
        let ours = advised | if is_ours { WATCHED } else { 0 };
        Ok(self.caller.attributes(piece.start)? & !ours | kept | future)
    }

    /// Turns part of an image into a mapping of what the parent had underneath: zeros, or its
    /// file.
    fn renew(&self, piece: &Piece, traits: u64, advice: Option<u32>) -> Result<(), Errno> {
        let is_plain = traits & !traits::NO_RESERVE == 0 && advice.is_none();
        if is_plain {
            self.map(piece, traits, piece.start)?;
        } else {
            let place = self.map(piece, traits, 0)?;
            let dressed = self.dress(place, piece.bytes(), traits, advice);
            self.put(dressed, place, piece.start, piece.bytes())?;
        }
        self.supervisor.cuts.add();
        Ok(())
    }

    /// Maps what belongs in a piece's place, there or, if `at` is 0, anywhere.
    fn map(&self, piece: &Piece, traits: u64, at: u64) -> SysResult {
        let fixed = if at == 0 { 0 } else { k::MAP_FIXED };
        let reserve = if traits & traits::NO_RESERVE == 0 { 0 } else { k::MAP_NORESERVE };
        let flags = k::MAP_PRIVATE | fixed | reserve;
        let (flags, fd, offset) = match self.supervisor.image.file_of(piece) {
            None => (flags | k::MAP_ANONYMOUS, u64::MAX, 0),
            Some((file, offset)) => {
                let lent = self.lent.fd_of(self.supervisor.files.fd(file)?);
                (flags, lent.ok_or(Errno(e::EMFILE as i32))? as u64, offset)
            }
        };
        self.call(k::__NR_mmap, [at, piece.bytes(), piece.prot(), flags.into(), fd, offset])
    }

    /// Gives fresh memory attributes.
    pub(super) fn dress(
        &self,
        at: u64,
        bytes: u64,
        traits: u64,
        more: Option<u32>,
    ) -> Result<(), Errno> {
        for (bit, advice, is_vital) in ADVICE {
            if traits & bit != 0 {
                let given = self.madvise(at, bytes, advice);
                if is_vital {
                    given?;
                }
            }
        }
        more.map_or(Ok(()), |advice| self.madvise(at, bytes, advice))
    }

    /// Moves memory from `from` to its place, in one step, if it is `ready`.
    pub(super) fn put(
        &self,
        ready: Result<(), Errno>,
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), Errno> {
        let flags = u64::from(k::MREMAP_MAYMOVE | k::MREMAP_FIXED);
        let placed =
            ready.and_then(|()| self.call(k::__NR_mremap, [from, bytes, bytes, flags, to, 0]));
        if placed.is_err() {
            let _ = self.call(k::__NR_munmap, [from, bytes, 0, 0, 0, 0]);
        }
        placed.map(|_| ())
    }

    /// Writes what the parent had underneath over a piece of the image.
    fn overwrite(&self, piece: &Piece) -> Result<(), Errno> {
        let memory = self.caller.memory()?;
        match self.supervisor.image.file_of(piece) {
            None => memory.clear(piece.start, piece.end),
            Some((file, offset)) => {
                let file = self.supervisor.files.fd(file)?;
                memory.copy_file(file, offset, piece.start, piece.end)
            }
        }
    }

    /// Discards memory that is not of the image, without the caller's help.
    fn discard_other(&self, piece: &Piece, advice: u32) -> Result<(), Errno> {
        let is_anonymous = piece.mapping.inode == 0;
        let is_shared = piece.mapping.flags & maps::SHARED != 0;
        match advice {
            k::MADV_DONTNEED | k::MADV_DONTNEED_LOCKED if is_shared => Ok(()), // changes no byte
            k::MADV_DONTNEED | k::MADV_DONTNEED_LOCKED | k::MADV_FREE if is_anonymous => {
                let traits = self.caller.attributes(piece.start)?;
                let is_locked = traits & traits::LOCKED != 0;
                if is_locked && !KEEPS_LOCKED.contains(&advice) {
                    return fail(e::EINVAL);
                }
                self.caller.memory()?.clear(piece.start, piece.end)
            }
            _ => fail(e::ENOMEM),
        }
    }

    fn madvise(&self, at: u64, bytes: u64, advice: u32) -> Result<(), Errno> {
        self.call(k::__NR_madvise, [at, bytes, u64::from(advice), 0, 0, 0]).map(|_| ())
    }
}

/// Advice that the kernel takes for locked memory.
const KEEPS_LOCKED: [u32; 2] = [k::MADV_DONTNEED_LOCKED, k::MADV_WIPEONFORK];
