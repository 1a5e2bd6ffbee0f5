//! What C calls, for a thread in any state: new, with an arena, or in the middle of a call.
#![allow(unsafe_code)] // reason: objects without a type

use std::ptr::{self, NonNull};

use farfork::memory::{Memory, class_of};

use crate::arenas::Arena;
use crate::errno::keep_errno;
use crate::refusal::misuse;
use crate::spaces::SPAN_BYTES;
use crate::thread::{self, BUSY, Busy};
use crate::{ALIGNMENT, arenas, early, huge, spaces, start};

/// Objects of more bytes have mappings of their own, where the memory is the process's own.
const HUGE_BYTES: usize = 4 << 20;
/// Objects of so many bytes stay where they are when they become smaller.
const KEPT_BYTES: usize = 128;

/// Allocates an object. `None` if memory is exhausted.
#[inline]
pub(crate) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    if let Some(arena) = Arena::of_thread()
        && let Some(class) = class_of(bytes)
        && let Some(object) = arena.allocate_known(class)
    {
        return Some(object);
    }
    allocate_slowly(bytes)
}

#[cold]
#[inline(never)]
fn allocate_slowly(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.max(1);
    if thread::word() == BUSY {
        return early::allocate(ALIGNMENT, bytes);
    }
    keep_errno(|| {
        let busy = Busy::begin();
        start::once();
        let arena = Arena::for_thread(&busy);
        let object = match bytes > HUGE_BYTES && spaces::are_private() {
            true => huge::allocate(ALIGNMENT, bytes),
            false => arena.allocate_anywhere(bytes).or_else(|| alone(ALIGNMENT, bytes)),
        };
        busy.end_with(arena.word());
        object
    })
}

/// A large object for which no space has room may have some beside them.
fn alone(alignment: usize, bytes: usize) -> Option<NonNull<u8>> {
    let may_be = bytes >= SPAN_BYTES && spaces::are_private();
    may_be.then(|| huge::allocate(alignment, bytes))?
}

/// Allocates an object at a multiple of a power of two.
pub(crate) fn allocate_aligned(alignment: usize, bytes: usize) -> Option<NonNull<u8>> {
    if alignment <= ALIGNMENT {
        return allocate(bytes);
    }
    if thread::word() == BUSY {
        return early::allocate(alignment, bytes.max(1));
    }
    let is_huge = alignment > SPAN_BYTES || bytes > HUGE_BYTES;
    keep_errno(|| {
        let busy = Busy::begin();
        start::once();
        let arena = Arena::for_thread(&busy);
        let object = match is_huge && spaces::are_private() {
            true => huge::allocate(alignment, bytes.max(1)),
            false => arena.allocate_aligned(alignment, bytes).or_else(|| alone(alignment, bytes)),
        };
        busy.end_with(arena.word());
        object
    })
}

/// Frees an object.
///
/// # Safety
/// It comes from here, and nothing uses it any more. Misuse that shows ends the process.
#[inline]
pub(crate) unsafe fn free(object: NonNull<u8>) {
    match (spaces::find(object), Arena::of_thread()) {
        (Some((space, memory, offset)), Some(arena)) => arena.free(object, space, memory, offset),
        (Some((space, memory, offset)), None) => free_in_new_thread(object, space, memory, offset),
        // SAFETY: the caller's.
        (None, _) => unsafe { free_elsewhere(object) },
    }
}

/// Frees an object for a thread that has no arena, or for which this library is at work.
#[cold]
#[inline(never)]
fn free_in_new_thread(object: NonNull<u8>, space: usize, memory: &Memory, offset: usize) {
    if thread::word() == BUSY {
        arenas::free_of_any(object, space, memory, offset);
        return;
    }
    let arena = keep_errno(|| {
        let busy = Busy::begin();
        let arena = Arena::for_thread(&busy);
        busy.end_with(arena.word());
        arena
    });
    arena.free(object, space, memory, offset);
}

#[cold]
#[inline(never)]
unsafe fn free_elsewhere(object: NonNull<u8>) {
    // SAFETY: the caller's; so something lies before the object.
    let is_freed =
        early::usable_bytes(object).is_some() || keep_errno(|| unsafe { huge::free(object) });
    if !is_freed {
        misuse("free", object);
    }
}

/// Bytes that an object has.
///
/// # Safety
/// It comes from here.
pub(crate) unsafe fn usable_bytes(object: NonNull<u8>) -> usize {
    let bytes = match spaces::find(object) {
        Some((_, memory, offset)) => memory.room(offset),
        // SAFETY: the caller's.
        None => early::usable_bytes(object).or_else(|| unsafe { huge::usable_bytes(object) }),
    };
    bytes.unwrap_or_else(|| misuse("measure", object))
}

/// Changes the size of an object, which may move. `None` if memory is exhausted; the object then stays as it is.
///
/// # Safety
/// It comes from here, and its address is used no more if it has moved.
pub(crate) unsafe fn resize(object: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller's.
    let known = unsafe { usable_bytes(object) };
    // Rather some bytes too many than a copy.
    let is_close = bytes >= known / 2 || known <= KEPT_BYTES;
    // A large mapping gives single pages back.
    let may_stay = || known <= HUGE_BYTES || spaces::find(object).is_some();
    if bytes <= known && is_close && may_stay() {
        return Some(object);
    }
    if bytes > HUGE_BYTES && spaces::find(object).is_none() && early::usable_bytes(object).is_none()
    {
        // SAFETY: the caller's.
        if let Some(moved) = keep_errno(|| unsafe { huge::resize(object, bytes) }) {
            return Some(moved);
        }
    }
    let Some(new) = allocate(bytes) else { return (bytes <= known).then_some(object) };
    // SAFETY: both have as many bytes, and nothing else uses the new one yet.
    unsafe {
        ptr::copy_nonoverlapping(object.as_ptr(), new.as_ptr(), known.min(bytes));
        free(object);
    }
    Some(new)
}

/// Gives memory that nothing uses back to the machine; returns whether there was some.
pub(crate) fn trim() -> bool {
    keep_errno(|| {
        arenas::give_back();
        // A child that is forked meanwhile would never have the spans that are being looked at.
        let _held = spaces::lock().hold();
        let mut is_any = false;
        for memory in spaces::all() {
            is_any |= memory.trim();
        }
        is_any
    })
}
