//! The C interface, `include/farfork.h`.
//!
//! Pointers from C are trusted as far as C allows it: a handle must come from `ff_open` and not be closed,
//! a mailbox from `ff_mailbox_open`, a path or name must end with a zero byte.
#![allow(unsafe_code)] // reason: the interface to C

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::time::Duration;

use crate::check::Check;
use crate::client::{Client, Timeout};
use crate::error::ObjectsError;
use crate::guards::Operation;
use crate::mailbox::Mailbox;

/// `ff_region`.
pub struct Handle {
    pub(crate) client: Client,
    /// Boxed: C keeps pointers to them.
    #[allow(clippy::vec_box)]
    mailboxes: Vec<Box<MailboxHandle>>,
    pub(crate) operations: Vec<Operation>,
}

impl Handle {
    fn new(client: Client) -> Handle {
        Handle { client, mailboxes: Vec::new(), operations: Vec::new() }
    }
}

/// `ff_mailbox`.
pub struct MailboxHandle {
    pub(crate) region: *mut Handle,
    pub(crate) mailbox: Mailbox,
}

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

fn set_errno(number: i32) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = number };
}

pub(crate) fn fail<T>(number: i32, message: String, value: T) -> T {
    LAST_ERROR.with_borrow_mut(|last| *last = CString::new(message.replace('\0', "?")).ok());
    set_errno(number);
    value
}

pub(crate) fn report<T>(error: &ObjectsError, value: T) -> T {
    fail(error.errno(), error.to_string(), value)
}

#[cold]
#[inline(never)]
pub(crate) fn invalid<T>(what: &str, value: T) -> T {
    fail(libc::EINVAL, format!("{what} is NULL"), value)
}

pub(crate) fn late<T>(timeout_us: i64, what: &str, value: T) -> T {
    match timeout_us {
        0 => fail(libc::EAGAIN, what.to_owned(), value),
        _ => fail(libc::ETIMEDOUT, format!("{what} after {timeout_us} microseconds"), value),
    }
}

pub(crate) fn timeout(microseconds: i64) -> Timeout {
    match u64::try_from(microseconds) {
        Ok(0) => Timeout::Poll,
        Ok(microseconds) => Timeout::After(Duration::from_micros(microseconds)),
        Err(_) => Timeout::Never,
    }
}

/// `ff_region *ff_open(const char *path)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_open(path: *const c_char) -> *mut Handle {
    if path.is_null() {
        return invalid("the path", null_mut());
    }
    // SAFETY: the caller passes a string.
    let path = unsafe { CStr::from_ptr(path) };
    match Client::open(Path::new(OsStr::from_bytes(path.to_bytes()))) {
        Ok(client) => Box::into_raw(Box::new(Handle::new(client))),
        Err(error) => report(&error, null_mut()),
    }
}

/// `void ff_close(ff_region *region)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_close(region: *mut Handle) {
    if !region.is_null() {
        // SAFETY: made by `ff_open`.
        drop(unsafe { Box::from_raw(region) });
    }
}

/// `int ff_after_fork(ff_region *region)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_after_fork(region: *mut Handle) -> c_int {
    // SAFETY: made by `ff_open`, perhaps in the parent of this process.
    let Some(region) = (unsafe { region.as_mut() }) else { return invalid("the region", -1) };
    region.client.after_fork().map_or_else(|error| report(&error, -1), |()| 0)
}

/// `void *ff_alloc(ff_region *region, size_t bytes)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_alloc(region: *mut Handle, bytes: usize) -> *mut c_void {
    // SAFETY: made by `ff_open`, and used by one thread at a time.
    let Some(region) = (unsafe { region.as_mut() }) else {
        return invalid("the region", null_mut());
    };
    match region.client.allocate_for_c(bytes) {
        Some(object) => object.cast(),
        None => allocate_slowly(region, bytes),
    }
}

/// Apart, so that the fast path needs no stack for errors.
#[cold]
#[inline(never)]
fn allocate_slowly(region: &mut Handle, bytes: usize) -> *mut c_void {
    match region.client.allocate_slowly(bytes) {
        Ok(object) => object.as_ptr().cast(),
        Err(error) => report(&error, null_mut()),
    }
}

/// `void ff_free(ff_region *region, void *object)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_free(region: *mut Handle, object: *mut c_void) {
    let Some(object) = NonNull::new(object.cast()) else { return };
    // SAFETY: as above.
    let Some(region) = (unsafe { region.as_mut() }) else { return invalid("the region", ()) };
    if !region.client.free_own(object) {
        free_slowly(region, object);
    }
}

#[cold]
#[inline(never)]
fn free_slowly(region: &mut Handle, object: NonNull<u8>) {
    if let Err(error) = region.client.free_slowly(object) {
        report(&error, ());
    }
}

/// `size_t ff_usable_size(ff_region *region, const void *object)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_usable_size(region: *mut Handle, object: *const c_void) -> usize {
    // SAFETY: as above.
    let Some(region) = (unsafe { region.as_ref() }) else { return invalid("the region", 0) };
    let Some(object) = NonNull::new(object.cast_mut().cast()) else { return 0 };
    region.client.usable_size(object).unwrap_or_else(|error| report(&error, 0))
}

/// `ff_ref ff_ref_of(ff_region *region, const void *object)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_ref_of(region: *mut Handle, object: *const c_void) -> u64 {
    // SAFETY: as above.
    let Some(region) = (unsafe { region.as_ref() }) else { return invalid("the region", 0) };
    let Some(object) = NonNull::new(object.cast_mut().cast()) else {
        return invalid("the object", 0);
    };
    region.client.reference(object).unwrap_or_else(|error| report(&error, 0))
}

/// `void *ff_deref(ff_region *region, ff_ref ref)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_deref(region: *mut Handle, reference: u64) -> *mut c_void {
    // SAFETY: as above.
    let Some(region) = (unsafe { region.as_ref() }) else {
        return invalid("the region", null_mut());
    };
    match region.client.object(reference) {
        Ok(object) => object.as_ptr().cast(),
        Err(error) => report(&error, null_mut()),
    }
}

/// `ff_mailbox *ff_mailbox_open(ff_region *region, const char *name, size_t slots)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_mailbox_open(
    region: *mut Handle,
    name: *const c_char,
    slots: usize,
) -> *mut MailboxHandle {
    if name.is_null() {
        return invalid("the name", null_mut());
    }
    // SAFETY: the caller passes a string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    // SAFETY: as above.
    let Some(handle) = (unsafe { region.as_mut() }) else {
        return invalid("the region", null_mut());
    };
    let mailbox = match handle.client.mailbox(&name, slots as u64) {
        Ok(mailbox) => mailbox,
        Err(error) => return report(&error, null_mut()),
    };
    let known = handle.mailboxes.iter_mut().find(|known| known.mailbox == mailbox);
    if let Some(known) = known {
        return &raw mut **known;
    }
    let mut made = Box::new(MailboxHandle { region, mailbox });
    let pointer = &raw mut *made;
    handle.mailboxes.push(made);
    pointer
}

/// `int ff_send(ff_mailbox *mailbox, void *object, int64_t timeout_us)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_send(
    mailbox: *mut MailboxHandle,
    object: *mut c_void,
    timeout_us: i64,
) -> c_int {
    let Some(object) = NonNull::new(object.cast()) else { return invalid("the object", -1) };
    if mailbox.is_null() {
        return invalid("the mailbox", -1);
    }
    // SAFETY: made by `ff_mailbox_open`; its region is open, and one thread at a time uses it.
    let (client, mailbox) = unsafe { (&mut (*(*mailbox).region).client, (*mailbox).mailbox) };
    match client.send(mailbox, object, timeout(timeout_us)) {
        Ok(true) => 0,
        Ok(false) => late(timeout_us, "the mailbox is full", -1),
        Err(error) => report(&error, -1),
    }
}

/// `void *ff_recv(ff_mailbox *mailbox, int64_t timeout_us)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_recv(mailbox: *mut MailboxHandle, timeout_us: i64) -> *mut c_void {
    if mailbox.is_null() {
        return invalid("the mailbox", null_mut());
    }
    // SAFETY: as above.
    let (client, mailbox) = unsafe { (&mut (*(*mailbox).region).client, (*mailbox).mailbox) };
    match client.receive(mailbox, timeout(timeout_us)) {
        Ok(Some(object)) => object.as_ptr().cast(),
        Ok(None) => late(timeout_us, "the mailbox is empty", null_mut()),
        Err(error) => report(&error, null_mut()),
    }
}

/// `int ff_check(ff_region *region, struct ff_check *check)`.
///
/// # Safety
/// See the module. `check` may be `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_check(region: *mut Handle, counts: *mut Counts) -> c_int {
    // SAFETY: as above.
    let Some(region) = (unsafe { region.as_ref() }) else { return invalid("the region", -1) };
    match region.client.region().check() {
        Ok(check) => {
            // SAFETY: the caller passes a place for them, or none.
            if let Some(counts) = unsafe { counts.as_mut() } {
                *counts = Counts::of(&check);
            }
            c_int::from(!check.is_clean())
        }
        Err(error) => report(&error, -1),
    }
}

/// `const char *ff_error(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn ff_error() -> *const c_char {
    LAST_ERROR.with_borrow(|last| last.as_ref().map_or(null(), |message| message.as_ptr()))
}

/// `struct ff_check_result`.
#[repr(C)]
pub struct Counts {
    bytes: u64,
    bytes_free: u64,
    owned: u64,
    bytes_owned: u64,
    in_mailboxes: u64,
    bytes_in_mailboxes: u64,
    linked: u64,
    bytes_linked: u64,
    lost: u64,
    double_: u64,
    foreign: u64,
    clients_recovered: u64,
}

impl Counts {
    fn of(check: &Check) -> Counts {
        Counts {
            bytes: check.bytes,
            bytes_free: check.bytes_free,
            owned: check.owned,
            bytes_owned: check.bytes_owned,
            in_mailboxes: check.in_mailboxes,
            bytes_in_mailboxes: check.bytes_in_mailboxes,
            linked: check.linked,
            bytes_linked: check.bytes_linked,
            lost: check.lost,
            double_: check.double,
            foreign: check.foreign,
            clients_recovered: check.clients_recovered,
        }
    }
}
