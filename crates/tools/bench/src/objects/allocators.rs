//! Allocators that are compared.
#![allow(unsafe_code)] // reason: calls C functions and writes to what they return

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use farfork::Client;
use nix::libc;

unsafe extern "C" {
    fn mi_version() -> c_int;
    fn ff_open(path: *const c_char) -> *mut c_void;
    fn ff_close(region: *mut c_void);
    fn ff_alloc(region: *mut c_void, bytes: usize) -> *mut c_void;
    fn ff_free(region: *mut c_void, object: *mut c_void);
    fn ff_mailbox_open(region: *mut c_void, name: *const c_char, slots: usize) -> *mut c_void;
    fn ff_send(mailbox: *mut c_void, object: *mut c_void, timeout_us: i64) -> c_int;
    fn ff_recv(mailbox: *mut c_void, timeout_us: i64) -> *mut c_void;
}

/// Allocates objects. A failure ends the program: its figures would mean nothing.
pub(super) trait Allocator {
    fn allocate(&mut self, bytes: usize) -> NonNull<u8>;
    fn free(&mut self, object: NonNull<u8>);
}

/// Writes the first word of an object of an [`Allocator`].
#[inline]
pub(super) fn touch(object: NonNull<u8>, word: u64) {
    // SAFETY: objects have 64 bytes at least, and addresses that are multiples of 8.
    unsafe { object.cast().write_volatile(word) }
}

/// Writes all bytes of an object of so many.
#[inline]
pub(super) fn fill(object: NonNull<u8>, bytes: usize, byte: u8) {
    // SAFETY: callers pass the size that they allocated.
    unsafe { object.write_bytes(byte, bytes) }
    std::hint::black_box(object);
}

/// Writes another word of an object.
#[inline]
pub(super) fn touch_word(object: NonNull<u8>, word: usize, value: u64) {
    // SAFETY: callers pass words of their objects, which are at multiples of 8.
    unsafe { object.cast::<u64>().add(word).write_volatile(value) }
}

/// Reads a word of an object.
#[inline]
pub(super) fn word_of(object: NonNull<u8>, word: usize) -> u64 {
    // SAFETY: as above.
    unsafe { object.cast::<u64>().add(word).read_volatile() }
}

/// mimalloc, in memory of this process.
#[derive(Clone, Copy)]
pub(super) struct Mimalloc;

impl Allocator for Mimalloc {
    #[inline]
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        // SAFETY: an ordinary allocation.
        let object = unsafe { libmimalloc_sys::mi_malloc(bytes) };
        NonNull::new(object.cast()).expect("mimalloc has memory")
    }

    #[inline]
    fn free(&mut self, object: NonNull<u8>) {
        // SAFETY: from `allocate`, and freed once.
        unsafe { libmimalloc_sys::mi_free(object.as_ptr().cast()) }
    }
}

/// The words of an object that its client keeps until the end of the program's use of them.
pub(super) fn words<'a>(object: NonNull<u8>, count: usize) -> &'a [AtomicU64] {
    // SAFETY: callers pass an object of so many words, whose client lives on; it is at a multiple of 16, and others do not write to it.
    unsafe { std::slice::from_raw_parts(object.cast().as_ptr(), count) }
}

/// An allocator of this machine's libraries, in memory of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loaded {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

impl Loaded {
    /// Loads a library. `None` if it is not installed.
    pub(super) fn open(library: &CStr, malloc: &CStr, free: &CStr) -> Option<Loaded> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: a string. What the library does when it is loaded is what its users want of it.
        let handle = unsafe { libc::dlopen(library.as_ptr(), flags) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: an open library, and strings.
        let found =
            unsafe { [libc::dlsym(handle, malloc.as_ptr()), libc::dlsym(handle, free.as_ptr())] };
        if found.iter().any(|function| function.is_null()) {
            return None;
        }
        // SAFETY: functions of these types by the library's documentation.
        let malloc = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(found[0])
        };
        // SAFETY: as above.
        let free = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(found[1])
        };
        Some(Loaded { malloc, free })
    }
}

impl Allocator for Loaded {
    #[inline]
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        // SAFETY: an ordinary allocation.
        let object = unsafe { (self.malloc)(bytes) };
        NonNull::new(object.cast()).expect("the library has memory")
    }

    #[inline]
    fn free(&mut self, object: NonNull<u8>) {
        // SAFETY: from `allocate`, and freed once.
        unsafe { (self.free)(object.as_ptr().cast()) }
    }
}

/// Version of mimalloc, e.g. 2.1.7.
pub(super) fn mimalloc_version() -> String {
    // SAFETY: returns a constant.
    let version = unsafe { mi_version() };
    // Since 2.2, two digits each.
    match version {
        ..10_000 => format!("{}.{}.{}", version / 100, version / 10 % 10, version % 10),
        _ => format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100),
    }
}

impl Allocator for Client {
    #[inline]
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        Client::allocate(self, bytes).expect("the region has room")
    }

    #[inline]
    fn free(&mut self, object: NonNull<u8>) {
        Client::free(self, object).expect("it is the client's");
    }
}

/// farfork by its C interface.
pub(super) struct CClient(*mut c_void);

// SAFETY: a handle may be used by any thread, one at a time.
unsafe impl Send for CClient {}

/// A mailbox of a [`CClient`].
#[derive(Clone, Copy)]
pub(super) struct CMailbox(*mut c_void);

// SAFETY: used by the thread that has the client.
unsafe impl Send for CMailbox {}

impl CClient {
    pub(super) fn open(path: &Path) -> Option<CClient> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a string.
        let handle = unsafe { ff_open(path.as_ptr()) };
        (!handle.is_null()).then_some(CClient(handle))
    }

    pub(super) fn mailbox(&self, name: &str, slots: u64) -> CMailbox {
        let name = CString::new(name).expect("a name");
        // SAFETY: an open handle and a string.
        let mailbox = unsafe { ff_mailbox_open(self.0, name.as_ptr(), slots as usize) };
        assert!(!mailbox.is_null(), "a mailbox can be opened");
        CMailbox(mailbox)
    }

    /// Allocates and sends objects.
    pub(super) fn send_new(mut self, to: CMailbox, count: usize) {
        for number in 0..count {
            let object = self.allocate(64);
            touch(object, number as u64);
            // SAFETY: a mailbox of this client, and its own object.
            let sent = unsafe { ff_send(to.0, object.as_ptr().cast(), -1) };
            assert_eq!(sent, 0, "the consumer makes room");
        }
    }

    /// Receives and frees objects.
    pub(super) fn free_received(mut self, from: CMailbox, count: usize) {
        for _ in 0..count {
            // SAFETY: a mailbox of this client.
            let object = unsafe { ff_recv(from.0, -1) };
            self.free(NonNull::new(object.cast()).expect("the producer sends objects"));
        }
    }
}

impl Drop for CClient {
    fn drop(&mut self) {
        // SAFETY: an open handle, used for the last time.
        unsafe { ff_close(self.0) }
    }
}

impl Allocator for CClient {
    #[inline]
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        // SAFETY: an open handle.
        let object = unsafe { ff_alloc(self.0, bytes) };
        NonNull::new(object.cast()).expect("the region has room")
    }

    #[inline]
    fn free(&mut self, object: NonNull<u8>) {
        // SAFETY: an open handle; a wrong object is refused.
        unsafe { ff_free(self.0, object.as_ptr().cast()) }
    }
}
