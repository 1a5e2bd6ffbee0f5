//! `mremap`, and turning part of an image into anonymous memory with the same bytes.

use farfork_types::{PAGE_BYTES, align_up};
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::discard::fail;
use super::visit::Visit;
use crate::call::{Errno, SysResult};

impl Visit<'_> {
    /// Memory that grows, or that leaves a zeroed range behind, must be anonymous as it was in
    /// the parent: past the image lies another image. The kernel does the rest.
    pub(super) fn remap(&self, args: [u64; 6]) -> SysResult {
        let [start, old_bytes, ..] = args;
        let end = align_up(start.saturating_add(old_bytes), PAGE_BYTES);
        if let Some(prot) = self.common_protection(start, end)? {
            self.make_anonymous(start, end, prot)?;
        }
        self.thread.call(k::__NR_mremap, args)
    }

    /// The protection of all pages in the range if it can have been one anonymous mapping in the
    /// parent. If it was not, the kernel refuses the call as it did there.
    fn common_protection(&self, start: u64, end: u64) -> Result<Option<u64>, Errno> {
        let (mut at, mut common) = (start, None);
        for piece in self.image.pieces(&self.caller.space, start, end) {
            let piece = piece?;
            let is_image = self.image.holds(&piece.mapping);
            if is_image && self.image.file_of(&piece).is_some() {
                return fail(e::ENOMEM); // its file would have to grow with it
            }
            let is_alike = *common.get_or_insert(piece.prot()) == piece.prot();
            if piece.start != at || !is_alike || !(is_image || piece.mapping.inode == 0) {
                return Ok(None);
            }
            at = piece.end;
        }
        Ok(common.filter(|_| at == end))
    }

    /// Replaces a range by one anonymous mapping with the same bytes: separate ones for its parts
    /// would stay separate, and the kernel moves or grows no more than one.
    pub(super) fn make_anonymous(&self, start: u64, end: u64, prot: u64) -> Result<(), Errno> {
        let bytes = end - start;
        let rw = u64::from(k::PROT_READ | k::PROT_WRITE);
        let flags = u64::from(k::MAP_PRIVATE | k::MAP_ANONYMOUS);
        let copy = self.thread.call(k::__NR_mmap, [0, bytes, rw, flags, u64::MAX, 0])?;
        let placed = self.fill(start, copy, bytes).and_then(|()| {
            self.thread.call(k::__NR_mprotect, [copy, bytes, prot, 0, 0, 0])?;
            let flags = u64::from(k::MREMAP_MAYMOVE | k::MREMAP_FIXED);
            self.thread.call(k::__NR_mremap, [copy, bytes, bytes, flags, start, 0])
        });
        if placed.is_err() {
            let _ = self.thread.call(k::__NR_munmap, [copy, bytes, 0, 0, 0, 0]);
        }
        placed.map(|_| ())
    }

    fn fill(&self, from: u64, to: u64, bytes: u64) -> Result<(), Errno> {
        let memory = self.caller.memory()?;
        let copied = memory.copy_to_zeros(from, to, bytes);
        memory.close();
        copied
    }
}
