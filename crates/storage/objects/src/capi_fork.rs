//! The calls of `include/farfork.h` that fork the calling process.
#![allow(unsafe_code)] // reason: the interface to C

use std::ffi::{CStr, c_char, c_int};
use std::ptr::copy_nonoverlapping;

use crate::capi::{fail, invalid};
use crate::fork_self::{self, ForkError, Side};

fn report<T>(error: &ForkError, value: T) -> T {
    fail(error.errno(), error.to_string(), value)
}

/// `int ff_prepare(uint64_t *id, uint64_t *key)`.
///
/// # Safety
/// Both pointers are NULL, or those of numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_prepare(id: *mut u64, key: *mut u64) -> c_int {
    if id.is_null() || key.is_null() {
        return invalid("the place for id or key", -1);
    }
    match fork_self::prepare() {
        Ok(Side::Clone) => 1,
        Ok(Side::Prepared { id: own_id, key: own_key }) => {
            // SAFETY: the caller's numbers.
            unsafe { (*id, *key) = (own_id, own_key) };
            0
        }
        Err(error) => report(&error, -1),
    }
}

/// `int ff_resume(const char *address, uint64_t id, uint64_t key)`.
///
/// # Safety
/// The address is NULL, or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_resume(address: *const c_char, id: u64, key: u64) -> c_int {
    // SAFETY: a string, if it is not NULL.
    let address = (!address.is_null()).then(|| unsafe { CStr::from_ptr(address) });
    let address = address.map(CStr::to_string_lossy);
    fork_self::resume(address.as_deref(), id, key).unwrap_or_else(|error| report(&error, -1))
}

/// `int ff_reclaim(uint64_t id)`.
#[unsafe(no_mangle)]
pub extern "C" fn ff_reclaim(id: u64) -> c_int {
    fork_self::reclaim(id).map_or_else(|error| report(&error, -1), |()| 0)
}

/// `int ff_seed_address(uint64_t id, char *address, size_t bytes)`.
///
/// # Safety
/// The address is NULL, or has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_seed_address(id: u64, address: *mut c_char, bytes: usize) -> c_int {
    if address.is_null() {
        return invalid("the place for the address", -1);
    }
    let found = match fork_self::address(id) {
        Ok(found) => found,
        Err(error) => return report(&error, -1),
    };
    if found.len() >= bytes {
        return fail(libc::ERANGE, format!("an address needs {} bytes", found.len() + 1), -1);
    }
    // SAFETY: it has room for the text and a zero.
    unsafe {
        copy_nonoverlapping(found.as_ptr().cast(), address, found.len());
        *address.add(found.len()) = 0;
    }
    0
}
