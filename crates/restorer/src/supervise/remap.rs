//! `mremap`, and turning part of an image into anonymous memory with the same bytes.

use farfork_types::{PAGE_BYTES, align_up};
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::discard::fail;
use super::image::{Piece, pieces};
use super::visit::Visit;
use crate::call::{Errno, SysResult};

impl Visit<'_> {
    /// Memory that grows, or that leaves a zeroed range behind, must be anonymous as it was in
    /// the parent: past the image lies another image. The kernel does the rest.
    pub(super) fn remap(&self, args: [u64; 6]) -> SysResult {
        let [start, old_bytes, ..] = args;
        self.materialise(start, align_up(start.saturating_add(old_bytes), PAGE_BYTES))?;
        self.thread.call(k::__NR_mremap, args)
    }

    /// Replaces the image's mappings in the range by anonymous memory with the same bytes.
    pub(super) fn materialise(&self, start: u64, end: u64) -> Result<(), Errno> {
        for piece in pieces(&self.caller.space, start, end) {
            if self.image.holds(&piece.mapping) {
                if self.image.file_of(&piece).is_some() {
                    return fail(e::ENOMEM); // its file would have to grow with it
                }
                self.copy_aside(&piece)?;
            }
        }
        Ok(())
    }

    /// Copies a piece to fresh anonymous memory and puts that in its place in one step.
    fn copy_aside(&self, piece: &Piece) -> Result<(), Errno> {
        let rw = u64::from(k::PROT_READ | k::PROT_WRITE);
        let flags = u64::from(k::MAP_PRIVATE | k::MAP_ANONYMOUS);
        let bytes = piece.bytes();
        let copy = self.thread.call(k::__NR_mmap, [0, bytes, rw, flags, u64::MAX, 0])?;
        let done = self.fill_and_place(piece, copy);
        if done.is_err() {
            let _ = self.thread.call(k::__NR_munmap, [copy, bytes, 0, 0, 0, 0]);
        }
        done
    }

    fn fill_and_place(&self, piece: &Piece, copy: u64) -> Result<(), Errno> {
        let bytes = piece.bytes();
        let memory = self.caller.memory()?;
        let copied = memory.copy(piece.start, copy, bytes);
        memory.close();
        copied?;
        self.thread.call(k::__NR_mprotect, [copy, bytes, piece.prot(), 0, 0, 0])?;
        let flags = u64::from(k::MREMAP_MAYMOVE | k::MREMAP_FIXED);
        self.thread.call(k::__NR_mremap, [copy, bytes, bytes, flags, piece.start, 0]).map(|_| ())
    }
}
