//! Guarded operations in C. The code of an operation calls farfork by a table of functions that it is given, so that a
//! library of operations is not bound to the build of farfork that loads it.
#![allow(unsafe_code)] // reason: the interface to C

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

use crate::capi::{Handle, invalid, report};
use crate::error::ObjectsError;
use crate::guards::{Code, Guard};
use crate::region::Region;

/// `ff_guard_function`.
pub type Function = unsafe extern "C" fn(*mut CGuard, *const c_void, usize) -> c_int;

/// `struct ff_guard`.
#[repr(C)]
pub struct CGuard {
    calls: &'static Calls,
    /// A [`Guard`] that lives as long as the call.
    guard: *mut c_void,
}

/// `struct ff_guard_calls`. Functions are added at its end only.
#[repr(C)]
struct Calls {
    version: u64,
    done: unsafe extern "C" fn(*mut CGuard, *mut u64) -> c_int,
    record: unsafe extern "C" fn(*mut CGuard, u64) -> c_int,
    lock: unsafe extern "C" fn(*mut CGuard, c_uint) -> c_int,
    load: unsafe extern "C" fn(*mut CGuard, *const u64, *mut u64) -> c_int,
    store: unsafe extern "C" fn(*mut CGuard, *mut u64, u64) -> c_int,
    alloc: unsafe extern "C" fn(*mut CGuard, usize) -> *mut c_void,
    alloc_refs: unsafe extern "C" fn(*mut CGuard, usize, c_uint) -> *mut c_void,
    free: unsafe extern "C" fn(*mut CGuard, *mut c_void) -> c_int,
    change:
        unsafe extern "C" fn(*mut CGuard, *mut c_void, *mut c_void, c_uint, *mut c_void) -> c_int,
    send: unsafe extern "C" fn(*mut CGuard, *const c_char, usize, *mut c_void) -> c_int,
}

static CALLS: Calls =
    Calls { version: 1, done, record, lock, load, store, alloc, alloc_refs, free, change, send };

/// Calls `act` with the guard and an object. -1 with the error's number if it fails.
///
/// # Safety
/// `guard` is what the operation was given, and the operation has not returned.
unsafe fn with<T>(
    guard: *mut CGuard,
    object: *mut c_void,
    failed: T,
    act: impl FnOnce(&mut Guard<'_>, NonNull<u8>) -> Result<T, ObjectsError>,
) -> T {
    let Some(object) = NonNull::new(object.cast()) else { return invalid("the pointer", failed) };
    // SAFETY: the caller's promise.
    let guard = unsafe { &mut *(*guard).guard.cast::<Guard<'_>>() };
    match act(guard, object) {
        Ok(done) => done,
        Err(error) => report(&error, failed),
    }
}

/// In the place of an object where none is needed.
const ANY: *mut c_void = std::ptr::without_provenance_mut(16);

unsafe extern "C" fn done(guard: *mut CGuard, value: *mut u64) -> c_int {
    // SAFETY: as the operation was given it; `value` is a place for a word.
    unsafe {
        with(guard, value.cast(), 0, |guard, value| {
            let Some(known) = guard.done() else { return Ok(0) };
            value.cast().write(known);
            Ok(1)
        })
    }
}

unsafe extern "C" fn record(guard: *mut CGuard, value: u64) -> c_int {
    // SAFETY: as above.
    unsafe { with(guard, ANY, -1, |guard, _| guard.record(value).map(|()| 0)) }
}

unsafe extern "C" fn lock(guard: *mut CGuard, lock: c_uint) -> c_int {
    // SAFETY: as above.
    unsafe { with(guard, ANY, -1, |guard, _| guard.lock(lock as usize).map(|()| 0)) }
}

unsafe extern "C" fn load(guard: *mut CGuard, at: *const u64, value: *mut u64) -> c_int {
    // SAFETY: as above; `value` is a place for a word.
    unsafe {
        with(guard, at.cast_mut().cast(), -1, |guard, at| {
            let loaded = guard.load(at.cast())?;
            match value.is_null() {
                true => return Ok(invalid("the place for the value", -1)),
                false => value.write(loaded),
            }
            Ok(0)
        })
    }
}

unsafe extern "C" fn store(guard: *mut CGuard, at: *mut u64, value: u64) -> c_int {
    // SAFETY: as above.
    unsafe { with(guard, at.cast(), -1, |guard, at| guard.store(at.cast(), value).map(|()| 0)) }
}

unsafe extern "C" fn alloc(guard: *mut CGuard, bytes: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { with(guard, ANY, null_mut(), |guard, _| Ok(guard.allocate(bytes)?.as_ptr().cast())) }
}

unsafe extern "C" fn alloc_refs(guard: *mut CGuard, bytes: usize, refs: c_uint) -> *mut c_void {
    // Beyond 16 bits, no size is large enough.
    let (bytes, refs) = match u16::try_from(refs) {
        Ok(refs) => (bytes, refs),
        Err(_) => (usize::MAX, 0),
    };
    // SAFETY: as above.
    unsafe {
        with(guard, ANY, null_mut(), |guard, _| {
            Ok(guard.allocate_linkable(bytes, refs)?.as_ptr().cast())
        })
    }
}

unsafe extern "C" fn free(guard: *mut CGuard, object: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { with(guard, object, -1, |guard, object| guard.free(object).map(|()| 0)) }
}

unsafe extern "C" fn change(
    guard: *mut CGuard,
    root: *mut c_void,
    from: *mut c_void,
    field: c_uint,
    to: *mut c_void,
) -> c_int {
    let Some(from) = NonNull::new(from.cast()) else { return invalid("the object", -1) };
    let (field, to) = (u16::try_from(field).unwrap_or(u16::MAX), NonNull::new(to.cast()));
    // SAFETY: as above.
    unsafe { with(guard, root, -1, |guard, root| guard.change(root, from, field, to).map(|()| 0)) }
}

unsafe extern "C" fn send(
    guard: *mut CGuard,
    mailbox: *const c_char,
    slots: usize,
    object: *mut c_void,
) -> c_int {
    if mailbox.is_null() {
        return invalid("the name", -1);
    }
    // SAFETY: as above; the operation passes a string.
    unsafe {
        let mailbox = CStr::from_ptr(mailbox).to_string_lossy();
        with(guard, object, -1, |guard, object| {
            guard.send(&mailbox, slots as u64, object).map(c_int::from)
        })
    }
}

/// Code of this process as that of an operation.
///
/// # Safety
/// `function` is valid as long as this process lives, and takes what [`Function`] says.
unsafe fn code(function: Function) -> Code {
    Arc::new(move |guard, arguments| {
        let guard: *mut Guard<'_> = guard;
        let mut guard = CGuard { calls: &CALLS, guard: guard.cast() };
        // SAFETY: the caller's promise; the arguments live as long as the call.
        unsafe { function(&raw mut guard, arguments.as_ptr().cast(), arguments.len()) }
    })
}

/// `int ff_guard_register(ff_region *region, const char *name, unsigned version, ff_guard_function function)`.
///
/// # Safety
/// See [`crate::capi`]. `function` is valid as long as this process lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_guard_register(
    region: *mut Handle,
    name: *const c_char,
    version: c_uint,
    function: Option<Function>,
) -> c_int {
    // SAFETY: made by `ff_open`.
    let Some(handle) = (unsafe { region.as_mut() }) else { return invalid("the region", -1) };
    let Some(function) = function else { return invalid("the function", -1) };
    if name.is_null() {
        return invalid("the name", -1);
    }
    // SAFETY: the caller passes a string, and a function that stays.
    let (name, code) = unsafe { (CStr::from_ptr(name).to_string_lossy(), code(function)) };
    match handle.client.region().guard_register(&name, version, code) {
        Ok(operation) => {
            handle.operations.push(operation);
            handle.operations.len() as c_int - 1
        }
        Err(error) => report(&error, -1),
    }
}

/// `int ff_guard_call(ff_region *region, int operation, const void *arguments, size_t bytes, int *result)`.
///
/// # Safety
/// See [`crate::capi`]. `arguments` are so many bytes; `result` may be `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_guard_call(
    region: *mut Handle,
    operation: c_int,
    arguments: *const c_void,
    bytes: usize,
    result: *mut c_int,
) -> c_int {
    // SAFETY: made by `ff_open`.
    let Some(handle) = (unsafe { region.as_mut() }) else { return invalid("the region", -1) };
    let known = usize::try_from(operation).ok().and_then(|index| handle.operations.get(index));
    let Some(operation) = known else { return invalid("the operation", -1) };
    let arguments = match bytes {
        0 => &[],
        _ if arguments.is_null() => return invalid("the pointer to the arguments", -1),
        // SAFETY: the caller passes so many bytes.
        _ => unsafe { std::slice::from_raw_parts(arguments.cast::<u8>(), bytes) },
    };
    match handle.client.guard_call(operation, arguments) {
        Ok(returned) => {
            if !result.is_null() {
                // SAFETY: the caller passes a place for it.
                unsafe { result.write(returned) };
            }
            0
        }
        Err(error) => report(&error, -1),
    }
}

/// `struct ff_guard_operation`, an entry of `ff_guard_operations`.
#[repr(C)]
struct Entry {
    name: *const c_char,
    version: c_uint,
    function: Option<Function>,
}

/// A shared library with guarded operations, in a table `ff_guard_operations`. It stays loaded.
#[derive(Debug)]
pub struct GuardLibrary {
    entries: Vec<(String, u32, Function)>,
}

impl GuardLibrary {
    /// Loads it. Its code runs in this process.
    ///
    /// # Errors
    /// [`ObjectsError::BadLibrary`].
    pub fn load(path: &Path) -> Result<GuardLibrary, ObjectsError> {
        let bad = |reason: String| ObjectsError::BadLibrary { path: path.to_owned(), reason };
        // With a slash, so that it is not searched for.
        let found = path.canonicalize().map_err(|error| bad(farfork_sys::words::of(&error)))?;
        let name =
            CString::new(found.as_os_str().as_bytes()).map_err(|_| bad("bad path".into()))?;
        // SAFETY: a string. That its constructors run is what the caller wants.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: a string of the loader, after a failure.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(bad(reason.to_string_lossy().into_owned()));
        }
        // SAFETY: an open library and a string.
        let table = unsafe { libc::dlsym(library, c"ff_guard_operations".as_ptr()) };
        if table.is_null() {
            return Err(bad("it has no table \"ff_guard_operations\", see farfork.h".to_owned()));
        }
        let mut entries = Vec::new();
        let mut at: *const Entry = table.cast();
        // SAFETY: a table as `farfork.h` describes it, up to an entry without a name. The library stays.
        unsafe {
            while let (false, Some(function)) = ((*at).name.is_null(), (*at).function) {
                let name = CStr::from_ptr((*at).name).to_string_lossy().into_owned();
                entries.push((name, (*at).version, function));
                at = at.add(1);
            }
        }
        if entries.is_empty() {
            Err(bad("its table is empty".to_owned()))
        } else {
            Ok(GuardLibrary { entries })
        }
    }

    /// Names and versions of its operations.
    pub fn operations(&self) -> impl Iterator<Item = (&str, u32)> {
        self.entries.iter().map(|(name, version, _)| (name.as_str(), *version))
    }

    /// Registers its operations in a region, with a grace period if there is one.
    ///
    /// # Errors
    /// Those of [`Region::guard_register`].
    pub fn register(&self, region: &Region, grace: Option<Duration>) -> Result<(), ObjectsError> {
        for (name, version, function) in &self.entries {
            // SAFETY: the library stays loaded.
            let code = unsafe { code(*function) };
            let operation = region.guard_register(name, *version, code)?;
            if let Some(grace) = grace {
                region.set_grace(&operation, grace);
            }
        }
        Ok(())
    }
}
