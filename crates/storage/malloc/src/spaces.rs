//! Where objects lie: a region, or memory of the process that grows by one space after the other.
#![allow(unsafe_code)] // reason: spaces are found without a lock

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use farfork::memory::Memory;

use crate::lock::Lock;

/// Most spaces. With sizes as below they have 900 GiB; objects beyond them have mappings of their own if they take whole spans.
pub(crate) const MOST: usize = 64;
/// Bytes of the first space. Each further one has twice as many.
const FIRST_BYTES: u64 = 64 << 20;
const LARGEST_BYTES: u64 = 16 << 30;
/// Where address space is limited, smaller ones are tried, down to this.
const SMALLEST_BYTES: u64 = 1 << 20;
/// A space without room is tried again after so many times that it was passed over.
const PASSES: u32 = 1024;
pub(crate) const SPAN_BYTES: usize = farfork::SPAN_BYTES as usize;

/// A space.
struct Space {
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// Set before it is counted, and never changed.
    memory: AtomicPtr<Memory>,
    /// Spans side by side that were not found.
    full_for: AtomicU32,
    passes: AtomicU32,
}

static SPACES: [Space; MOST] = [const {
    Space {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        memory: AtomicPtr::new(ptr::null_mut()),
        full_for: AtomicU32::new(u32::MAX),
        passes: AtomicU32::new(0),
    }
}; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static GROWTH: Lock = Lock::new();

/// Number of spaces.
#[inline]
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire).min(MOST)
}

/// The space of this number.
#[inline]
pub(crate) fn at(space: usize) -> Option<&'static Memory> {
    // SAFETY: null, or leaked below.
    unsafe { SPACES.get(space)?.memory.load(Ordering::Acquire).as_ref() }
}

/// All spaces.
pub(crate) fn all() -> impl Iterator<Item = &'static Memory> {
    (0..count()).filter_map(at)
}

/// Whether the memory is the process's own.
pub(crate) fn are_private() -> bool {
    at(0).is_some_and(Memory::is_private)
}

/// The space in which something lies, and its offset there.
#[inline]
pub(crate) fn find(object: NonNull<u8>) -> Option<(usize, &'static Memory, usize)> {
    let address = object.addr().get();
    for (number, space) in SPACES.iter().enumerate().take(count()) {
        let offset = address.wrapping_sub(space.start.load(Ordering::Relaxed));
        if offset < space.bytes.load(Ordering::Relaxed) {
            return Some((number, at(number)?, offset));
        }
    }
    None
}

/// Adds a space.
pub(crate) fn add(memory: Memory) {
    let number = COUNT.load(Ordering::Acquire);
    let Some(space) = SPACES.get(number) else { return };
    space.start.store(memory.address(), Ordering::Relaxed);
    space.bytes.store(memory.bytes(), Ordering::Relaxed);
    space.memory.store(Box::into_raw(Box::new(memory)), Ordering::Release);
    COUNT.store(number + 1, Ordering::Release);
}

/// The first space of a process with memory of its own.
pub(crate) fn first() -> Option<Memory> {
    of_about(FIRST_BYTES, SMALLEST_BYTES)
}

/// Adds a space of the process's own with room for an object of so many bytes, unless another thread has added one since there were
/// `known` of them. Returns whether there are more.
pub(crate) fn grow(known: usize, bytes: usize) -> bool {
    let _held = GROWTH.hold();
    if count() > known {
        return true;
    }
    // Tables take some of it.
    let least = SMALLEST_BYTES.max(2 * bytes as u64);
    let wanted = (FIRST_BYTES << known.min(16)).min(LARGEST_BYTES);
    match of_about(wanted, least).filter(|_| known < MOST) {
        Some(memory) => {
            add(memory);
            true
        }
        None => false,
    }
}

fn of_about(bytes: u64, least: u64) -> Option<Memory> {
    let smaller = |bytes: &u64| Some(bytes / 2).filter(|half| *half >= least);
    std::iter::successors(Some(bytes), smaller).find_map(|bytes| Memory::private(bytes).ok())
}

fn spans(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(SPAN_BYTES)).unwrap_or(u32::MAX)
}

/// Whether it is worth looking for a new span, or for so many bytes in spans side by side.
pub(crate) fn may_have_room(space: usize, bytes: usize) -> bool {
    let space = &SPACES[space];
    if spans(bytes) < space.full_for.load(Ordering::Relaxed) {
        return true;
    }
    let is_due = space.passes.fetch_add(1, Ordering::Relaxed) >= PASSES;
    if is_due {
        expect_room(space);
    }
    is_due
}

fn expect_room(space: &Space) {
    space.passes.store(0, Ordering::Relaxed);
    space.full_for.store(u32::MAX, Ordering::Relaxed);
}

/// Remembers that they were not found.
pub(crate) fn set_full(space: usize, bytes: usize) {
    SPACES[space].full_for.fetch_min(spans(bytes), Ordering::Relaxed);
}

/// Remembers that whole spans were freed there.
pub(crate) fn set_freed(space: usize) {
    if SPACES[space].full_for.load(Ordering::Relaxed) != u32::MAX {
        expect_room(&SPACES[space]);
    }
}

/// All spaces are looked at again.
pub(crate) fn forget_full() {
    SPACES.iter().for_each(expect_room);
}

/// The lock under which spaces are added, the first one at the start.
pub(crate) fn lock() -> &'static Lock {
    &GROWTH
}
