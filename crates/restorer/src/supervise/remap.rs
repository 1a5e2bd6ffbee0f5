//! `mremap`, and turning part of an image into anonymous memory with the same bytes.

use farfork_plan::FileRange;
use farfork_types::{PAGE_BYTES, align_down, align_up};
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::Supervisor;
use super::discard::{Piece, fail};
use super::notify::Answer;
use crate::call::{self, Errno, syscall};

impl Supervisor {
    /// Memory that grows, or that leaves a zeroed range behind, must be anonymous as it was in
    /// the parent: past the image lies another image. Everything else the kernel does right.
    pub(super) fn remap(&self, args: [u64; 6]) -> Answer {
        let [start, old_bytes, new_bytes, flags, ..] = args;
        let grows = new_bytes > old_bytes;
        let leaves_range = flags & u64::from(k::MREMAP_DONTUNMAP) != 0;
        let end = align_up(start.saturating_add(old_bytes), PAGE_BYTES);
        let is_aligned = start == align_down(start, PAGE_BYTES);
        if !(grows || leaves_range) || !is_aligned || !self.touches_image(start, end) {
            return Answer::Kernel;
        }
        match self.materialise(start, end) {
            Ok(()) => Answer::Kernel,
            Err(errno) => Answer::Fail(errno),
        }
    }

    /// Replaces the image's mappings in the range by anonymous memory with the same bytes.
    pub(super) fn materialise(&self, start: u64, end: u64) -> Result<(), Errno> {
        let mut at = start;
        while at < end {
            let Some(mapping) = self.maps.at_or_after(at).filter(|m| m.start < end) else {
                return Ok(());
            };
            let piece = Piece { start: at.max(mapping.start), end: end.min(mapping.end), mapping };
            if self.is_image(&mapping) {
                if self.file_of(&piece).is_some() {
                    return fail(e::ENOMEM); // its file would have to grow with it
                }
                copy_aside(&piece)?;
            }
            at = piece.end;
        }
        Ok(())
    }

    /// The file that lay under a piece of the image in the parent, and the offset in it.
    pub(super) fn file_of(&self, piece: &Piece) -> Option<(&'static FileRange, u64)> {
        let offset = piece.offset();
        let windows = self.context.windows;
        let after = windows.partition_point(|window| window.pool_offset <= offset);
        let window = windows[..after].last()?;
        let inside = offset - window.pool_offset;
        if inside >= window.bytes {
            return None;
        }
        let address = window.address + inside;
        let after = self.context.files.partition_point(|file| file.start <= address);
        let file = self.context.files[..after].last().filter(|file| address < file.end)?;
        Some((file, file.file_offset + (address - file.start)))
    }
}

/// Copies a piece to fresh anonymous memory and puts that in its place.
fn copy_aside(piece: &Piece) -> Result<(), Errno> {
    let rw = k::PROT_READ | k::PROT_WRITE;
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS;
    // SAFETY: the clone's thread that asked for this is held in its system call; the copy goes to
    // memory of its own and replaces the piece in one step.
    unsafe {
        let copy = call::mmap(0, piece.bytes(), rw, flags, -1, 0)?;
        if piece.prot() & k::PROT_READ == 0 {
            syscall(k::__NR_mprotect, [piece.start, piece.bytes(), u64::from(k::PROT_READ)])?;
        }
        core::ptr::copy_nonoverlapping(
            piece.start as *const u8,
            copy as *mut u8,
            piece.bytes() as usize,
        );
        if piece.prot() != rw {
            syscall(k::__NR_mprotect, [copy, piece.bytes(), u64::from(piece.prot())])?;
        }
        call::move_mapping(copy, piece.bytes(), piece.start).map(|_| ())
    }
}
