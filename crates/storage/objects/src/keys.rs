//! Metadata that only this library can write: by a protection key (`pkeys(7)`), where the processor has them.
//!
//! A program that writes where it should not can damage what all clients of its region depend on. With
//! `FARFORK_PROTECTED=1` pages that have only metadata get a key that this process's threads may not write with, except for the
//! one store at a time that the library does. A stray store there raises SIGSEGV (`SEGV_PKUERR`) in the program that does it. Objects
//! are not protected, and neither are words of the library's that lie among them (counts of references, trailers).
//!
//! It is a guard against mistakes, not against an attacker: any code can write the register.
#![allow(unsafe_code)] // reason: reads and writes the register of access rights

use std::arch::asm;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Set to `1`, metadata of all regions of the process is protected.
pub(crate) const SETTING: &str = "FARFORK_PROTECTED";

/// In [`FOUND`]: nothing was asked for yet, and protection is not wanted. Keys are 1 to 15: 0 is that of all other memory.
const UNKNOWN: u32 = 0;
const UNWANTED: u32 = u32::MAX;

/// The key of this process. Without a lock: a forked child may have it from a thread that it does not have.
static FOUND: AtomicU32 = AtomicU32::new(UNKNOWN);

/// `PKEY_DISABLE_WRITE`: the thread that allocates the key may not write with it.
const ALLOCATED_WITHOUT_WRITING: usize = 2;

/// A protection key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u32);

impl Key {
    /// The key of this process, if protection is wanted.
    ///
    /// # Errors
    /// Those of `pkey_alloc`: without keys `ENOSPC`, `EINVAL` or `ENOSYS`.
    pub(crate) fn of_process() -> io::Result<Option<Key>> {
        match FOUND.load(Ordering::Acquire) {
            UNWANTED => return Ok(None),
            UNKNOWN => {}
            key => return Ok(Some(Key(key))),
        }
        if !std::env::var(SETTING).is_ok_and(|value| value == "1") {
            FOUND.store(UNWANTED, Ordering::Release);
            return Ok(None);
        }
        // SAFETY: changes access rights of a key that no memory has yet.
        let allocated =
            unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, ALLOCATED_WITHOUT_WRITING) };
        let key = u32::try_from(allocated).map_err(|_| io::Error::last_os_error())?;
        match FOUND.compare_exchange(UNKNOWN, key, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Some(Key(key))),
            Err(others) => {
                // SAFETY: no memory has this key.
                unsafe { libc::syscall(libc::SYS_pkey_free, key) };
                Ok(Some(Key(others)))
            }
        }
    }

    /// Gives pages the key. Their bytes can be used by [`Key::reading`] and [`Key::writing`] from then on.
    ///
    /// # Errors
    /// Those of `pkey_mprotect`.
    pub(crate) fn protect(self, pages: &Range<usize>) -> io::Result<()> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let bytes = pages.end - pages.start;
        // SAFETY: takes away access only, of a mapping that the caller has just made.
        let done =
            unsafe { libc::syscall(libc::SYS_pkey_mprotect, pages.start, bytes, access, self.0) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Lets this thread read. Threads that began before the key was allocated, and handlers of signals, cannot.
    pub(crate) fn reading(self) {
        let rights = rights();
        if rights & self.reads() != 0 {
            set_rights(rights & !self.reads() | self.writes());
        }
    }

    /// Lets this thread write while `store` runs.
    pub(crate) fn writing<T>(self, store: impl FnOnce() -> T) -> T {
        let rights = rights() & !(self.reads() | self.writes());
        set_rights(rights);
        let stored = store();
        set_rights(rights | self.writes());
        stored
    }

    fn reads(self) -> u32 {
        1 << (2 * self.0)
    }

    fn writes(self) -> u32 {
        2 << (2 * self.0)
    }
}

/// Access rights of this thread.
fn rights() -> u32 {
    let rights;
    // SAFETY: the kernel has allocated a key, so that the instruction is there. It reads a register.
    unsafe {
        asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    rights
}

/// Sets them. Loads and stores stay on the side of it on which they are written.
fn set_rights(rights: u32) {
    // SAFETY: as above. Only rights of keys of this library change.
    unsafe {
        asm!("wrpkru", in("ecx") 0, in("eax") rights, in("edx") 0, options(nostack, preserves_flags));
    }
}
