//! A call on memory of the image, performed in the kernel's stead.
//!
//! Where the calling thread can be traced, it is [sent](super::visit) through calls of its own. Where
//! a debugger has the thread, or the kernel refuses the mapping ([`Job::overwrite`]), the supervisor
//! writes the caller's memory instead. That does not save the memory that the call was meant to save,
//! but the bytes are right.

use core::cell::Cell;

use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::Supervisor;
use super::caller::Caller;
use super::image::Piece;
use super::visit::StoppedThread;
use crate::call::{SysResult, fail, syscall};

/// A call whose effect on memory of the image would differ from that on anonymous memory.
pub enum MemoryCall<'a> {
    /// `madvise`, or `process_madvise` on the caller itself.
    Advise {
        /// Start and bytes of each range.
        ranges: &'a [[u64; 2]],
        /// One of [`DISCARDING`](super::filter::DISCARDING).
        advice: u32,
        /// Whether the call returns the bytes advised.
        is_vector: bool,
    },
    /// `mremap` that grows, moves, or leaves a range behind.
    Remap {
        /// Its arguments.
        args: [u64; 6],
        /// Whether memory of the image has to become anonymous first. Otherwise the range has several mappings, and
        /// where the thread cannot be held, the call is left to the kernel.
        is_image: bool,
    },
}

/// A call, and what is needed to perform it.
pub struct Job<'a> {
    /// The supervisor of the clone.
    pub supervisor: &'a Supervisor,
    /// The calling task.
    pub caller: &'a Caller,
    /// Its thread, unless it cannot be held.
    pub thread: Option<StoppedThread>,
    /// Files that the caller was lent.
    pub lent: LentFiles,
}

impl Job<'_> {
    /// Has the thread make a system call.
    pub(super) fn call(&self, nr: u32, args: [u64; 6]) -> SysResult {
        match &self.thread {
            Some(thread) => thread.call(nr, args),
            None => fail(e::ENOMEM),
        }
    }

    /// Lets the thread, if there is one, go on with the result of its own call.
    pub fn finish(self, result: SysResult) {
        for (_, fd) in self.lent.pairs() {
            let _ = self.call(k::__NR_close, [*fd as u64, 0, 0, 0, 0, 0]);
        }
        if let Some(thread) = self.thread {
            thread.leave(result);
        }
    }
}

/// Descriptors of files that were put among those of the caller, which maps them.
pub struct LentFiles {
    pairs: [(i32, i32); MOST_LENT],
    count: usize,
}

/// Of more files than these in one call, the bytes are copied.
const MOST_LENT: usize = 8;

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddDescriptor {
    id: u64,
    flags: u32,
    fd: u32,
    target: u32,
    target_flags: u32,
}

const _: () = assert!(size_of::<AddDescriptor>() == 24);
const ADD_DESCRIPTOR: u64 = 0x4018_2103;

impl LentFiles {
    /// None.
    pub const fn new() -> LentFiles {
        LentFiles { pairs: [(-1, -1); MOST_LENT], count: 0 }
    }

    /// Puts `file` among the descriptors of the caller of the call `id`, which waits. It is not
    /// there if the caller has as many as it may have.
    pub fn lend(&mut self, listener: i32, id: u64, file: i32) {
        if self.count == MOST_LENT || self.fd_of(file).is_some() {
            return;
        }
        let request =
            AddDescriptor { id, flags: 0, fd: file as u32, target: 0, target_flags: k::O_CLOEXEC };
        let args = [listener as u64, ADD_DESCRIPTOR, &raw const request as u64];
        // SAFETY: the kernel reads one request.
        if let Ok(fd) = unsafe { syscall(k::__NR_ioctl, args) } {
            self.pairs[self.count] = (file, fd as i32);
            self.count += 1;
        }
    }

    /// The caller's descriptor of `file`.
    pub fn fd_of(&self, file: i32) -> Option<i32> {
        self.pairs().iter().find(|(own, _)| *own == file).map(|(_, lent)| *lent)
    }

    fn pairs(&self) -> &[(i32, i32)] {
        &self.pairs[..self.count]
    }
}

/// Counts the mappings that were put into those of the image: each cuts one in three, and the
/// kernel allows a process no more than 65530 by default.
pub struct Cuts(Cell<u32>);

impl Cuts {
    /// None as yet.
    pub const fn new() -> Cuts {
        Cuts(Cell::new(0))
    }

    /// One more.
    pub fn add(&self) {
        self.0.set(self.0.get().saturating_add(1));
    }

    /// Whether to leave a piece in its mapping, for what it would save is little.
    pub fn are_too_many_for(&self, piece: &Piece) -> bool {
        self.0.get() >= MANY_CUTS && piece.bytes() < WORTH_A_CUT
    }
}

const MANY_CUTS: u32 = 8192;
const WORTH_A_CUT: u64 = 64 << 10;

/// Counts calls of `mremap` that grew a range part by part.
pub struct Growths(Cell<u32>);

/// One in so many has the range joined first.
const JOINED: u32 = 32;

impl Growths {
    /// None as yet.
    pub const fn new() -> Growths {
        Growths(Cell::new(0))
    }

    /// One more. Whether it is one of a program that grows memory again and again.
    pub fn add(&self) -> bool {
        let count = self.0.get().wrapping_add(1);
        self.0.set(count);
        count.is_multiple_of(JOINED)
    }
}
