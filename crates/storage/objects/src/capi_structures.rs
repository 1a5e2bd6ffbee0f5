//! The C interface for structures. What [`crate::capi`] says of pointers holds here, too.
#![allow(unsafe_code)] // reason: the interface to C

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use crate::capi::{Handle, MailboxHandle, invalid, late, report, timeout};
use crate::client::Client;
use crate::error::ObjectsError;
use crate::layout::ClientId;

/// Calls `act` with the client and the root. -1 with the error's number if it fails.
///
/// # Safety
/// `region` is `NULL` or open.
unsafe fn with_root(
    region: *mut Handle,
    root: *mut c_void,
    act: impl FnOnce(&mut Client, NonNull<u8>) -> Result<c_int, ObjectsError>,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(region) = (unsafe { region.as_mut() }) else { return invalid("the region", -1) };
    let Some(root) = NonNull::new(root.cast()) else { return invalid("the root", -1) };
    act(&mut region.client, root).unwrap_or_else(|error| report(&error, -1))
}

/// `int ff_client(ff_region *region)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_client(region: *mut Handle) -> c_int {
    // SAFETY: made by `ff_open`.
    match unsafe { region.as_ref() } {
        Some(region) => c_int::from(region.client.id()),
        None => invalid("the region", -1),
    }
}

/// `void *ff_alloc_refs(ff_region *region, size_t bytes, unsigned refs)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_alloc_refs(
    region: *mut Handle,
    bytes: usize,
    references: c_uint,
) -> *mut c_void {
    // SAFETY: made by `ff_open`.
    let Some(region) = (unsafe { region.as_mut() }) else {
        return invalid("the region", null_mut());
    };
    // Beyond 16 bits, no size is large enough.
    let (bytes, references) = match u16::try_from(references) {
        Ok(references) => (bytes, references),
        Err(_) => (usize::MAX, 0),
    };
    match region.client.allocate_linkable(bytes, references) {
        Ok(object) => object.as_ptr().cast(),
        Err(error) => report(&error, null_mut()),
    }
}

/// `int ff_link(ff_region *region, void *root, void *from, unsigned field, void *to)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_link(
    region: *mut Handle,
    root: *mut c_void,
    from: *mut c_void,
    field: c_uint,
    to: *mut c_void,
) -> c_int {
    let Some(to) = NonNull::new(to.cast()) else { return invalid("the object", -1) };
    let Some(from) = NonNull::new(from.cast()) else { return invalid("the object", -1) };
    let field = u16::try_from(field).unwrap_or(u16::MAX);
    // SAFETY: as above.
    unsafe {
        with_root(region, root, |client, root| client.link(root, from, field, to).map(|()| 0))
    }
}

/// `int ff_unlink(ff_region *region, void *root, void *from, unsigned field)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_unlink(
    region: *mut Handle,
    root: *mut c_void,
    from: *mut c_void,
    field: c_uint,
) -> c_int {
    // SAFETY: as above.
    unsafe { ff_change(region, root, from, field, null_mut()) }
}

/// `int ff_change(ff_region *region, void *root, void *from, unsigned field, void *to)`.
///
/// # Safety
/// See the module. `to` may be `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_change(
    region: *mut Handle,
    root: *mut c_void,
    from: *mut c_void,
    field: c_uint,
    to: *mut c_void,
) -> c_int {
    let Some(from) = NonNull::new(from.cast()) else { return invalid("the object", -1) };
    let (field, to) = (u16::try_from(field).unwrap_or(u16::MAX), NonNull::new(to.cast()));
    let change = |client: &mut Client, root| client.change(root, from, field, to).map(|()| 0);
    // SAFETY: as above.
    unsafe { with_root(region, root, change) }
}

/// `int ff_send_root(ff_mailbox *mailbox, void *root, int64_t timeout_us)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_send_root(
    mailbox: *mut MailboxHandle,
    root: *mut c_void,
    timeout_us: i64,
) -> c_int {
    if mailbox.is_null() {
        return invalid("the mailbox", -1);
    }
    // SAFETY: made by `ff_mailbox_open`.
    let (region, mailbox) = unsafe { ((*mailbox).region, (*mailbox).mailbox) };
    let send = |client: &mut Client, root| {
        let is_sent = client.send_root(mailbox, root, timeout(timeout_us))?;
        Ok(if is_sent { 0 } else { late(timeout_us, "the mailbox is full", -1) })
    };
    // SAFETY: its region is open.
    unsafe { with_root(region, root, send) }
}

/// `int ff_release(ff_region *region, void *root)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_release(region: *mut Handle, root: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { with_root(region, root, |client, root| client.release(root).map(|()| 0)) }
}

/// `int ff_collect(ff_region *region, void *root)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_collect(region: *mut Handle, root: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { with_root(region, root, |client, root| client.collect(root).map(c_int::from)) }
}

/// `int ff_writer_transfer(ff_region *region, void *root, int client)`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ff_writer_transfer(
    region: *mut Handle,
    root: *mut c_void,
    to: c_int,
) -> c_int {
    let to = match u8::try_from(to) {
        Ok(0) => None,
        to => match to.ok().and_then(ClientId::new) {
            Some(to) => Some(to),
            None => return invalid("the client's id", -1),
        },
    };
    // SAFETY: as above.
    unsafe { with_root(region, root, |client, root| client.transfer_writer(root, to).map(|()| 0)) }
}
