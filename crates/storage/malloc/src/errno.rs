//! errno.
#![allow(unsafe_code)] // reason: errno is a place in memory

/// Callers of `free` and `malloc` look at errno of calls before them.
pub(crate) fn keep_errno<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let result = action();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

/// For a call that returns a null pointer.
pub(crate) fn set(number: i32) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = number };
}
