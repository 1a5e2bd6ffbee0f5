//! Objects with a mapping of their own. Their pages go back to the machine when they are freed, and to make them larger moves no
//! bytes.
//!
//! ```text
//!  mapping   … │ header, 32 bytes │ object …
//! ```
#![allow(unsafe_code)] // reason: mappings

use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

use crate::PAGE_BYTES;

/// What lies before an object.
#[repr(C, align(32))]
struct Header {
    /// [`MAGIC`] and the object's address.
    seal: usize,
    start: usize,
    bytes: usize,
}

const MAGIC: usize = 0x6675_6765_6661_7266;
/// From the beginning of a mapping to its object, if that needs no larger alignment.
const LEAD: usize = 64;

/// Allocates an object; its bytes are 0.
pub(crate) fn allocate(alignment: usize, bytes: usize) -> Option<NonNull<u8>> {
    let alignment = alignment.max(LEAD);
    // The mapping begins at a page.
    let spare = if alignment > PAGE_BYTES { alignment } else { 0 };
    let all =
        bytes.checked_add(alignment)?.checked_add(spare)?.checked_next_multiple_of(PAGE_BYTES)?;
    if all > isize::MAX as usize {
        return None;
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory.
    let start = unsafe { mmap_anonymous(null_mut(), all, protection, MapFlags::PRIVATE) }.ok()?;
    let object = (start.addr() + LEAD).next_multiple_of(alignment);
    let (mut first, mut end) = (start.addr(), start.addr() + all);
    // Whole pages that nothing needs.
    let needed =
        ((object - LEAD) & !(PAGE_BYTES - 1), (object + bytes).next_multiple_of(PAGE_BYTES));
    for (from, to) in [(first, needed.0), (needed.1, end)] {
        // SAFETY: within the new mapping, and not used.
        if from < to && unsafe { munmap(start.with_addr(from), to - from) }.is_ok() {
            if from == first { first = to } else { end = from }
        }
    }
    let header = Header { seal: MAGIC ^ object, start: first, bytes: end - first };
    let place = start.with_addr(object).cast::<Header>();
    // SAFETY: before the object, in the mapping, at a multiple of 32.
    unsafe { place.sub(1).write(header) };
    NonNull::new(place.cast())
}

/// The header of an object, if it is one of these.
///
/// # Safety
/// The 32 bytes before it must be readable.
unsafe fn header<'a>(object: NonNull<u8>) -> Option<&'a Header> {
    let at = object.addr().get();
    if !at.is_multiple_of(align_of::<Header>()) {
        return None;
    }
    // SAFETY: the caller's.
    let header = unsafe { &*object.as_ptr().cast::<Header>().sub(1) };
    (header.seal == MAGIC ^ at).then_some(header)
}

/// Bytes of the object, if it is one of these.
///
/// # Safety
/// The 32 bytes before it must be readable.
pub(crate) unsafe fn usable_bytes(object: NonNull<u8>) -> Option<usize> {
    // SAFETY: the caller's.
    let header = unsafe { header(object) }?;
    Some(header.start + header.bytes - object.addr().get())
}

/// Frees the object; returns whether it is one of these.
///
/// # Safety
/// The 32 bytes before it must be readable, and nothing may use it any more.
pub(crate) unsafe fn free(object: NonNull<u8>) -> bool {
    // SAFETY: the caller's.
    let Some(header) = (unsafe { header(object) }) else { return false };
    let (start, bytes) = (object.as_ptr().with_addr(header.start), header.bytes);
    // SAFETY: the mapping of an object that nothing uses.
    let _ = unsafe { munmap(start.cast(), bytes) };
    true
}

/// Changes the size of the object, which may move. `None` if it is not one of these, needs a larger alignment, or does not fit;
/// then it stays as it is.
///
/// # Safety
/// The 32 bytes before it must be readable, and its address may be used no more if it has moved.
pub(crate) unsafe fn resize(object: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller's.
    let header = unsafe { header(object) }?;
    if object.addr().get() != header.start + LEAD {
        return None;
    }
    let all = bytes.checked_add(LEAD)?.checked_next_multiple_of(PAGE_BYTES)?;
    if all > isize::MAX as usize {
        return None;
    }
    if all == header.bytes {
        return Some(object);
    }
    let start = object.as_ptr().with_addr(header.start);
    // SAFETY: the object's whole mapping.
    let moved = unsafe { mremap(start.cast(), header.bytes, all, MremapFlags::MAYMOVE) }.ok()?;
    let object = moved.cast::<u8>().wrapping_add(LEAD);
    let header = Header { seal: MAGIC ^ object.addr(), start: moved.addr(), bytes: all };
    // SAFETY: before the object, in the mapping.
    unsafe { object.cast::<Header>().sub(1).write(header) };
    NonNull::new(object)
}
