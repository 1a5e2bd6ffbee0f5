//! `mremap`, and turning part of an image into anonymous memory with the same bytes.

use farfork_plan::traits;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::job::Job;
use super::range::range;
use super::smaps::{KEY_SHIFT, SEALED, WATCHED};
use super::standstill::Standstill;
use crate::call::{Errno, SysResult, fail};

/// What a range of memory has in common, and how much of it is the image's.
struct Common {
    prot: u64,
    traits: u64,
    image_parts: u64,
    image_bytes: u64,
}

/// Of more parts than these, the copy of the whole is quicker, and moves later as one.
const MOST_PARTS: u64 = 64;

impl Job<'_> {
    /// Memory that grows, or that leaves a zeroed range behind, must be anonymous as it was in
    /// the parent: past the image lies another image. The kernel does the rest.
    pub(super) fn remap(&self, args: [u64; 6]) -> SysResult {
        if self.thread.is_none() {
            return fail(e::ENOMEM); // callers such as `realloc` fall back to copying
        }
        let [start, old_bytes, _, flags, ..] = args;
        let (start, end) = range(start, old_bytes)?;
        let common = self.common(start, end)?;
        let is_small =
            |of: &Common| of.image_parts <= MOST_PARTS && of.image_bytes * 2 <= end - start;
        let stays_cut = common.as_ref().is_some_and(is_small);
        let copy = || match &common {
            Some(common) if stays_cut => self.make_image_anonymous(start, end, common),
            Some(common) => self.make_anonymous(start, end, common.prot, common.traits, None),
            None => Ok(()),
        };
        // A program that lets the memory move does not write to it meanwhile. DONTUNMAP always goes
        // with MAYMOVE; it is for programs that go on at the old address.
        let flags = flags as u32;
        if flags & k::MREMAP_MAYMOVE != 0 && flags & k::MREMAP_DONTUNMAP == 0 {
            copy()?;
        } else {
            self.at_standstill(copy)?;
        }
        if stays_cut { self.remap_parts(args) } else { self.call(k::__NR_mremap, args) }
    }

    /// Replaces what a range has of the image; the rest stays.
    fn make_image_anonymous(&self, start: u64, end: u64, common: &Common) -> Result<(), Errno> {
        let image = &self.supervisor.image;
        for piece in image.pieces(&self.caller.space, start, end) {
            let piece = piece?;
            if image.holds(&piece.mapping) {
                let Common { prot, traits, .. } = *common;
                self.make_anonymous(piece.start, piece.end, prot, traits, None)?;
            }
        }
        if self.are_alike(start, end)? {
            return Ok(());
        }
        self.make_anonymous(start, end, common.prot, common.traits, None)
    }

    /// Does `work` while no other thread of the caller's process writes.
    pub(super) fn at_standstill(
        &self,
        work: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut others = Standstill::new();
        let done = others.begin(self.caller, self.supervisor.tools.proc).and_then(|()| work());
        others.end();
        done
    }

    /// What all pages in the range have in common if it can have been one anonymous mapping in
    /// the parent. If it was not, the kernel refuses the call as it did there.
    fn common(&self, start: u64, end: u64) -> Result<Option<Common>, Errno> {
        let image = &self.supervisor.image;
        let (mut at, mut common, mut traits) = (start, None, None);
        let (mut image_parts, mut image_bytes) = (0, 0);
        for piece in image.pieces(&self.caller.space, start, end) {
            let piece = piece?;
            let is_image = image.holds(&piece.mapping);
            if is_image && image.file_of(&piece).is_some() {
                return fail(e::ENOMEM); // its file would have to grow with it
            }
            let is_alike = *common.get_or_insert(piece.prot()) == piece.prot();
            if piece.start != at || !is_alike || !(is_image || piece.mapping.inode == 0) {
                return Ok(None);
            }
            if is_image && traits.is_none() {
                traits = Some(self.attributes(&piece)?);
            }
            if is_image {
                (image_parts, image_bytes) = (image_parts + 1, image_bytes + piece.bytes());
            }
            at = piece.end;
        }
        let common = common.filter(|_| at == end).zip(traits);
        Ok(common.map(|(prot, traits)| Common { prot, traits, image_parts, image_bytes }))
    }

    /// Replaces a range by one anonymous mapping with the same bytes: separate ones for its parts
    /// would stay separate, and the kernel moves or grows no more than one.
    pub(super) fn make_anonymous(
        &self,
        start: u64,
        end: u64,
        prot: u64,
        traits: u64,
        advice: Option<u32>,
    ) -> Result<(), Errno> {
        if traits & SEALED != 0 {
            return fail(e::EPERM);
        }
        if traits & WATCHED != 0 {
            return fail(e::ENOMEM); // its watcher would be lost
        }
        let bytes = end - start;
        let rw = u64::from(k::PROT_READ | k::PROT_WRITE);
        let reserve = if traits & traits::NO_RESERVE == 0 { 0 } else { k::MAP_NORESERVE };
        let flags = u64::from(k::MAP_PRIVATE | k::MAP_ANONYMOUS | reserve);
        let copy = self.call(k::__NR_mmap, [0, bytes, rw, flags, u64::MAX, 0])?;
        let ready = self
            .caller
            .memory()
            .and_then(|memory| memory.copy_to_zeros(start, copy, bytes))
            .and_then(|()| self.protect(copy, bytes, prot, traits))
            .and_then(|()| self.dress(copy, bytes, traits, advice));
        self.put(ready, copy, start, bytes)
    }

    fn protect(&self, at: u64, bytes: u64, prot: u64, traits: u64) -> Result<(), Errno> {
        if traits & traits::LOCKED != 0 {
            let on_fault = u64::from(k::MLOCK_ONFAULT);
            self.call(k::__NR_mlock2, [at, bytes, on_fault, 0, 0, 0])?;
        } else if traits & traits::LOCKS_FUTURE != 0 {
            self.call(k::__NR_munlock, [at, bytes, 0, 0, 0, 0])?;
        }
        let key = traits >> KEY_SHIFT;
        let call = if key == 0 { k::__NR_mprotect } else { k::__NR_pkey_mprotect };
        self.call(call, [at, bytes, prot, key, 0, 0]).map(|_| ())
    }
}
