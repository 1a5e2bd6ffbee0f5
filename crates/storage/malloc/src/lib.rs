//! `malloc` and its family for any program: `LD_PRELOAD=libfarfork_malloc.so PROGRAM`.
//!
//! ```text
//!  malloc, free … ─► calls ─► arenas ─► spaces: a region, or memory of the process ─► farfork-objects
//!                      ├──── huge: a mapping for each object, in memory of the process
//!                      └──── early: what the C library asks for while this one is at work
//!  own data structures ─► internal (dlmalloc)
//! ```
//! Invariants:
//! 1. This library's own memory comes from [`internal`], never from its `malloc`. What the C library allocates for a call of this
//!    library comes from [`early`]: so no call waits for itself.
//! 2. A thread has an arena, which it may share. An arena is a client of each space, and is used under its lock alone. What another
//!    arena owns is freed without the lock of that one, see `farfork::memory`.
//! 3. Locks are taken in this order: arenas by their numbers, growth, internal. A fork takes all of them, so that
//!    nothing is in the middle of a change in the child.
//! 4. What belongs to a thread is one word of static thread-local memory, and has no destructor.
#![allow(unsafe_code)] // reason: the interface to C

mod arenas;
mod calls;
mod early;
mod errno;
mod forks;
mod huge;
mod internal;
mod lock;
mod refusal;
mod spaces;
mod start;
mod thread;

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull, null_mut};

const PAGE_BYTES: usize = 4096;
/// Every object lies at a multiple of it.
const ALIGNMENT: usize = 16;

fn out_of_memory() -> *mut c_void {
    errno::set(libc::ENOMEM);
    null_mut()
}

fn to_c(object: Option<NonNull<u8>>) -> *mut c_void {
    object.map_or_else(out_of_memory, |object| object.as_ptr().cast())
}

/// `void *malloc(size_t bytes)`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: usize) -> *mut c_void {
    to_c(calls::allocate(bytes))
}

/// `void free(void *object)`.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(object: *mut c_void) {
    if let Some(object) = NonNull::new(object.cast()) {
        // SAFETY: the caller's.
        unsafe { calls::free(object) };
    }
}

/// `void free_sized(void *object, size_t bytes)` of C23.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(object: *mut c_void, _bytes: usize) {
    // SAFETY: the caller's.
    unsafe { free(object) };
}

/// `void free_aligned_sized(void *object, size_t alignment, size_t bytes)` of C23.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(object: *mut c_void, _alignment: usize, _bytes: usize) {
    // SAFETY: the caller's.
    unsafe { free(object) };
}

/// `void *calloc(size_t count, size_t bytes)`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    let Some(all) = count.checked_mul(bytes) else { return out_of_memory() };
    let object = calls::allocate(all);
    // Other places are new memory.
    if let Some(object) = object.filter(|object| spaces::find(*object).is_some()) {
        // SAFETY: it has as many bytes.
        unsafe { ptr::write_bytes(object.as_ptr(), 0, all) };
    }
    to_c(object)
}

/// `void *realloc(void *object, size_t bytes)`. With 0 bytes it frees, as that of the GNU C library.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(object: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(object) = NonNull::new(object.cast()) else { return to_c(calls::allocate(bytes)) };
    if bytes == 0 {
        // SAFETY: the caller's.
        unsafe { calls::free(object) };
        return null_mut();
    }
    // SAFETY: the caller's.
    to_c(unsafe { calls::resize(object, bytes) })
}

/// `void *reallocarray(void *object, size_t count, size_t bytes)`.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    object: *mut c_void,
    count: usize,
    bytes: usize,
) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller's.
        Some(all) => unsafe { realloc(object, all) },
        None => out_of_memory(),
    }
}

/// `int posix_memalign(void **object, size_t alignment, size_t bytes)`. Leaves errno alone.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    object: *mut *mut c_void,
    alignment: usize,
    bytes: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    match calls::allocate_aligned(alignment, bytes) {
        Some(allocated) => {
            // SAFETY: the caller passes a place for a pointer.
            unsafe { *object = allocated.as_ptr().cast() };
            0
        }
        None => libc::ENOMEM,
    }
}

/// `void *aligned_alloc(size_t alignment, size_t bytes)`. As that of the GNU C library, for alignments that are not powers of
/// two, too.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    memalign(alignment, bytes)
}

/// `void *memalign(size_t alignment, size_t bytes)`.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        Some(alignment) => to_c(calls::allocate_aligned(alignment, bytes)),
        None => {
            errno::set(libc::EINVAL);
            null_mut()
        }
    }
}

/// `void *valloc(size_t bytes)`.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(bytes: usize) -> *mut c_void {
    to_c(calls::allocate_aligned(PAGE_BYTES, bytes))
}

/// `void *pvalloc(size_t bytes)`: whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    match bytes.max(1).checked_next_multiple_of(PAGE_BYTES) {
        Some(bytes) => to_c(calls::allocate_aligned(PAGE_BYTES, bytes)),
        None => out_of_memory(),
    }
}

/// `size_t malloc_usable_size(void *object)`.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    // SAFETY: the caller's.
    NonNull::new(object.cast()).map_or(0, |object| unsafe { calls::usable_bytes(object) })
}

/// `int malloc_trim(size_t pad)`: gives the pages of free spans back to the machine.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(calls::trim())
}
