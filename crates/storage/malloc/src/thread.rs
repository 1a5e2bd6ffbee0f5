//! The word that each thread has.
//!
//! In assembly, as it has to lie in static thread-local memory. Rust's own thread-local variables in a shared library are found
//! by a function that allocates when libraries have been loaded meanwhile, and so would call `malloc` from `malloc`.
#![allow(unsafe_code)] // reason: a thread-local word

use std::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".p2align 3",
    ".globl farfork_malloc_thread",
    ".hidden farfork_malloc_thread",
    ".type farfork_malloc_thread, @object",
    ".size farfork_malloc_thread, 8",
    "farfork_malloc_thread:",
    ".zero 8",
    ".popsection",
);

/// A thread that has no arena yet.
pub(crate) const NEW: usize = 0;
/// A thread for which this library is at work: what is allocated for that comes from elsewhere. Arenas lie above.
pub(crate) const BUSY: usize = 1;

/// The word of this thread.
#[inline]
pub(crate) fn word() -> usize {
    let word;
    // SAFETY: loads the word from above.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + farfork_malloc_thread@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) word,
            options(nostack, preserves_flags, readonly)
        );
    }
    word
}

/// Stores it.
#[inline]
pub(crate) fn set_word(word: usize) {
    // SAFETY: stores to the word from above, which nothing but these functions uses.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + farfork_malloc_thread@GOTTPOFF]",
            "mov qword ptr fs:[{0}], {1}",
            out(reg) _, // written before the other one is read: not the same register
            in(reg) word,
            options(nostack, preserves_flags)
        );
    }
}

/// While it lives, this library is at work for the thread.
pub(crate) struct Busy {
    before: usize,
}

impl Busy {
    /// Begins it.
    pub(crate) fn begin() -> Busy {
        let before = word();
        set_word(BUSY);
        Busy { before }
    }

    /// The arena that the thread had.
    pub(crate) fn arena(&self) -> Option<usize> {
        (self.before > BUSY).then_some(self.before)
    }

    /// The thread's word from now on is another one.
    pub(crate) fn end_with(mut self, word: usize) {
        self.before = word;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        set_word(self.before);
    }
}
