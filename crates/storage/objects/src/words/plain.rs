//! Memory in which each access is a load or a store.
#![allow(unsafe_code)] // reason: hands out bytes of a mapping

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};
use rustix::thread::{MembarrierCommand, membarrier};

use super::mapping::Mapping;
use super::{Words, outside};

/// A region in the memory of this process that needs no protection key. Coherent.
#[derive(Debug, Clone)]
pub struct Plain {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) mapping: Arc<Mapping>,
}

// SAFETY: the mapping lives as long as any clone of `mapping`; bytes are accessed by atomics only.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

impl Plain {
    #[inline(always)]
    pub(super) fn has_word(&self, at: usize) -> bool {
        at.is_multiple_of(8) && at < self.bytes
    }

    #[inline(always)]
    fn byte_at(&self, at: usize) -> Option<&AtomicU8> {
        // SAFETY: in bounds of a mapping that is readable, writable and lives as long as `self`.
        (at < self.bytes).then(|| unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU8>() })
    }

    #[inline(always)]
    fn word_at(&self, at: usize) -> &AtomicU64 {
        if !self.has_word(at) {
            outside("a word");
        }
        // SAFETY: as above. The region is whole pages, so that a multiple of 8 in it is a whole word.
        // Owner bytes are loaded as words, too, when they are scanned: x86-64 loads them at once.
        unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU64>() }
    }
}

/// Sleeps at a word as [`Words::sleep`] does.
pub(super) fn sleep_at(word: &AtomicU64, seen: u32, time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    let slept = futex::wait(low_half(word), futex::Flags::empty(), seen, time.as_ref());
    slept == Err(Errno::TIMEDOUT)
}

/// Wakes clients that sleep at a word.
pub(super) fn wake_at(word: &AtomicU64) {
    // An error would mean a wrong address.
    let _ = futex::wake(low_half(word), futex::Flags::empty(), u32::MAX >> 1);
}

/// What a futex is.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: the first four bytes of a valid word, aligned to 8. Others store whole words there, which x86-64 does at
    // once; the kernel loads these bytes.
    unsafe { &*std::ptr::from_ref(word).cast::<AtomicU32>() }
}

impl Words for Plain {
    type Plain = Plain;

    #[inline(always)]
    fn plain(&self) -> Option<&Plain> {
        Some(self)
    }

    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        self.byte_within(at).unwrap_or_else(|| outside("a byte"))
    }

    #[inline(always)]
    fn byte_within(&self, at: usize) -> Option<u8> {
        Some(self.byte_at(at)?.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn set_byte(&self, at: usize, value: u8) {
        if !self.set_byte_within(at, value) {
            outside("a byte");
        }
    }

    #[inline(always)]
    fn set_byte_within(&self, at: usize, value: u8) -> bool {
        let Some(byte) = self.byte_at(at) else { return false };
        byte.store(value, Ordering::Release);
        true
    }

    fn tail(&self, at: usize) -> Plain {
        assert!(self.has_word(at), "a place outside of the region");
        // SAFETY: in bounds of the mapping, which lives as long as the new handle.
        let start = unsafe { self.start.add(at) };
        Plain { start, bytes: self.bytes - at, mapping: Arc::clone(&self.mapping) }
    }

    #[inline(always)]
    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        let Some(byte) = self.byte_at(at) else { return false };
        let is_from = byte.load(Ordering::Acquire) == from;
        if is_from {
            byte.store(to, Ordering::Release);
        }
        is_from
    }

    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool {
        let Some(byte) = self.byte_at(at) else { outside("a byte") };
        byte.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        self.word_at(at).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn set_word(&self, at: usize, value: u64) {
        self.word_at(at).store(value, Ordering::Release);
    }

    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.word_at(at).compare_exchange(from, to, order.0, order.1).is_ok()
    }

    fn sleep(&self, at: usize, seen: u32, time: Duration) -> bool {
        sleep_at(self.word_at(at), seen, time)
    }

    fn wake(&self, at: usize) {
        wake_at(self.word_at(at));
    }

    fn order_with_others(&self) {
        // Interrupts the processors on which registered processes run; see `super::mapping`.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }

    #[inline]
    fn flush(&self, _at: usize, _bytes: usize) {}

    #[inline]
    fn invalidate(&self, _at: usize, _bytes: usize) {}
}
