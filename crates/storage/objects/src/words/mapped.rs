//! Memory of regions, whose metadata may be protected.
#![allow(unsafe_code)] // reason: hands out bytes of a mapping

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::mman::{MRemapFlags, MmapAdvise, madvise, mremap};

use super::mapping::{self, Mapping, Parts, Protected};
use super::plain::{Plain, sleep_at, wake_at};
use super::{Words, outside};
use crate::keys::Key;
use crate::layout::PAGE_BYTES;

/// A region in the memory of this process, at its own address. Coherent.
///
/// Each access compares its place with the end of the memory. Where metadata is protected ([`crate::keys`]), the end of what needs
/// no key is 0, and a place beyond it is looked for with the key. So other regions pay for no comparison, though for code that
/// could use the key: [`Words::plain`] is without it.
#[derive(Debug, Clone)]
pub struct Mapped {
    /// What needs no key: all, or nothing.
    plain: Plain,
    /// Bytes that need it: none, or all.
    protected_bytes: usize,
}

impl Mapped {
    /// Maps the first bytes of `file` at `address`, and `parts` of another file over them. The same files again give the same
    /// mapping.
    ///
    /// # Errors
    /// `EEXIST` if something else is mapped there; `ESTALE` if this process has the same file with parts of another one mapped.
    /// Other errors of `mmap`.
    pub(crate) fn map(
        file: &File,
        parts: Option<&Parts<'_>>,
        protected: Option<&Protected<'_>>,
        (address, bytes): (u64, u64),
    ) -> io::Result<Mapped> {
        Ok(Mapped::all(mapping::map(file, parts, protected, (address, bytes))?))
    }

    /// All of a mapping.
    fn all(mapping: Arc<Mapping>) -> Mapped {
        let (start, all) = (mapping.start, mapping.bytes);
        let (bytes, protected_bytes) = if mapping.key.is_some() { (0, all) } else { (all, 0) };
        Mapped { plain: Plain { start, bytes, mapping }, protected_bytes }
    }

    fn key(&self) -> Option<Key> {
        self.plain.mapping.key
    }

    fn protected_byte_at(&self, at: usize) -> Option<(&AtomicU8, Key)> {
        let key = self.key().filter(|_| at < self.protected_bytes)?;
        // SAFETY: in bounds of the mapping, which lives as long as `self`; usable with the rights that the key gives.
        Some((unsafe { &*self.plain.start.as_ptr().add(at).cast::<AtomicU8>() }, key))
    }

    fn protected_word_at(&self, at: usize) -> (&AtomicU64, Key) {
        let is_one = at.is_multiple_of(8) && at < self.protected_bytes;
        let Some(key) = self.key().filter(|_| is_one) else { outside("a word") };
        // SAFETY: as above. The region is whole pages, so that a multiple of 8 in it is a whole word.
        (unsafe { &*self.plain.start.as_ptr().add(at).cast::<AtomicU64>() }, key)
    }

    #[cold]
    #[inline(never)]
    fn protected_byte(&self, at: usize) -> Option<u8> {
        let (byte, key) = self.protected_byte_at(at)?;
        key.reading();
        Some(byte.load(Ordering::Acquire))
    }

    #[cold]
    #[inline(never)]
    fn protected_word(&self, at: usize) -> u64 {
        let (word, key) = self.protected_word_at(at);
        key.reading();
        word.load(Ordering::Acquire)
    }

    #[cold]
    #[inline(never)]
    fn set_protected_byte(&self, at: usize, value: u8) -> bool {
        let Some((byte, key)) = self.protected_byte_at(at) else { return false };
        key.writing(|| byte.store(value, Ordering::Release));
        true
    }

    #[cold]
    #[inline(never)]
    fn set_protected_word(&self, at: usize, value: u64) {
        let (word, key) = self.protected_word_at(at);
        key.writing(|| word.store(value, Ordering::Release));
    }

    #[cold]
    #[inline(never)]
    fn replace_protected_byte(&self, at: usize, from: u8, to: u8) -> bool {
        self.protected_byte(at) == Some(from) && self.set_protected_byte(at, to)
    }

    /// A word for the kernel, which accesses it with this thread's rights.
    fn protected_futex(&self, at: usize) -> &AtomicU64 {
        let (word, key) = self.protected_word_at(at);
        key.reading();
        word
    }

    /// All bytes.
    fn len(&self) -> usize {
        self.plain.bytes.max(self.protected_bytes)
    }

    /// Memory of this process alone, at a multiple of `alignment`. It is taken from the machine when it is first touched, and
    /// children of `fork()` get a copy, as of any memory.
    pub(crate) fn private(bytes: u64, alignment: usize) -> io::Result<Mapped> {
        Ok(Mapped::all(Arc::new(Mapping::private(bytes, alignment)?)))
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.plain.start.addr().get() as u64
    }

    /// Says how the kernel is to treat a part of the memory, as far as that changes no byte that is used.
    ///
    /// # Safety
    /// For an advice that drops pages: nothing may be in these bytes.
    pub(crate) unsafe fn advise(&self, part: Range<u64>, advice: MmapAdvise) -> io::Result<()> {
        let (from, to) = (part.start as usize, (part.end as usize).min(self.len()));
        if from >= to {
            return Ok(());
        }
        // SAFETY: in bounds of the mapping; for the rest the caller vouches.
        unsafe { madvise(self.plain.start.add(from).cast(), to - from, advice) }?;
        Ok(())
    }

    /// Replaces the mapping by memory of this process alone that has the same bytes in these parts, and 0 elsewhere. For a forked
    /// child, while no other thread is there.
    pub(crate) fn make_private(&self, parts: &[Range<u64>]) -> io::Result<()> {
        let (start, bytes) = (self.plain.start, self.len());
        let copy = Mapping::private(bytes as u64, PAGE_BYTES as usize)?;
        if let Some(key) = self.key() {
            key.reading();
        }
        for part in parts {
            let (from, to) = (part.start as usize, part.end as usize);
            assert!(from <= to && to <= bytes, "a part outside of the region");
            // SAFETY: in bounds of both mappings, which do not overlap. Another process may write to the source meanwhile,
            // to bytes that nothing depends on.
            unsafe {
                ptr::copy_nonoverlapping(
                    start.as_ptr().add(from),
                    copy.start.as_ptr().add(from),
                    to - from,
                );
            }
        }
        // The kernel moves it over the old mapping.
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        let to = start.cast();
        // SAFETY: the memory at the old addresses is replaced by what has the same bytes where something lies.
        unsafe { mremap(copy.start.cast(), bytes, bytes, flags, Some(to)) }?;
        // Its place belongs to this mapping now.
        std::mem::forget(copy);
        Ok(())
    }
}

impl Words for Mapped {
    type Plain = Plain;

    #[inline(always)]
    fn plain(&self) -> Option<&Plain> {
        (self.protected_bytes == 0).then_some(&self.plain)
    }

    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        self.byte_within(at).unwrap_or_else(|| outside("a byte"))
    }

    #[inline(always)]
    fn byte_within(&self, at: usize) -> Option<u8> {
        self.plain.byte_within(at).or_else(|| self.protected_byte(at))
    }

    #[inline(always)]
    fn set_byte(&self, at: usize, value: u8) {
        if !self.set_byte_within(at, value) {
            outside("a byte");
        }
    }

    fn tail(&self, at: usize) -> Mapped {
        assert!(at.is_multiple_of(8) && at < self.len(), "a place outside of the region");
        let Plain { start, bytes, mapping } = &self.plain;
        // SAFETY: in bounds of the mapping, which lives as long as the new handle.
        let start = unsafe { start.add(at) };
        let plain = Plain { start, bytes: bytes.saturating_sub(at), mapping: Arc::clone(mapping) };
        Mapped { plain, protected_bytes: self.protected_bytes.saturating_sub(at) }
    }

    fn set_byte_within(&self, at: usize, value: u8) -> bool {
        self.try_set_byte(at, value) || self.set_protected_byte(at, value)
    }

    #[inline(always)]
    fn try_set_byte(&self, at: usize, value: u8) -> bool {
        self.plain.set_byte_within(at, value)
    }

    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        self.try_replace_own_byte(at, from, to) || self.replace_protected_byte(at, from, to)
    }

    #[inline(always)]
    fn try_replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        self.plain.replace_own_byte(at, from, to)
    }

    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool {
        let Some((byte, key)) = self.protected_byte_at(at) else {
            return self.plain.claim_byte(at, from, to);
        };
        key.writing(|| byte.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)).is_ok()
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        if self.plain.has_word(at) { self.plain.word(at) } else { self.protected_word(at) }
    }

    #[inline(always)]
    fn set_word(&self, at: usize, value: u64) {
        if self.plain.has_word(at) {
            self.plain.set_word(at, value);
        } else {
            self.set_protected_word(at, value);
        }
    }

    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool {
        if let Some(plain) = self.plain() {
            return plain.claim_word(at, from, to);
        }
        let (word, key) = self.protected_word_at(at);
        key.writing(|| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)).is_ok()
    }

    fn sleep(&self, at: usize, seen: u32, time: Duration) -> bool {
        match self.plain() {
            Some(plain) => plain.sleep(at, seen, time),
            None => sleep_at(self.protected_futex(at), seen, time),
        }
    }

    fn wake(&self, at: usize) {
        match self.plain() {
            Some(plain) => plain.wake(at),
            None => wake_at(self.protected_futex(at)),
        }
    }

    fn order_with_others(&self) {
        self.plain.order_with_others();
    }

    #[inline]
    fn flush(&self, at: usize, bytes: usize) {
        self.plain.flush(at, bytes);
    }

    #[inline]
    fn invalidate(&self, at: usize, bytes: usize) {
        self.plain.invalidate(at, bytes);
    }
}
