//! Receiving a handed-over call, choosing who answers, and answering.

use farfork_types::{PAGE_BYTES, align_down, align_up};
use linux_raw_sys::{errno as e, general as k};

use super::Supervisor;
use super::caller::Caller;
use super::filter::{ADVICE, CALLS, CALLS_I386};
use super::outside;
use super::visit::{Held, Visit};
use crate::call::{Errno, syscall};

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    tid: u32,
    flags: u32,
    nr: u32,
    arch: u32,
    instruction_pointer: u64,
    args: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const _: () = {
    assert!(size_of::<Notification>() == 80);
    assert!(size_of::<Response>() == 24);
};

const RECEIVE: u64 = 0xc050_2100;
const SEND: u64 = 0xc018_2101;
const IS_VALID: u64 = 0x4008_2102;
const CONTINUE: u32 = 1;

/// What becomes of a call.
pub enum Answer {
    /// The kernel performs it, with the arguments it came with.
    Kernel,
    /// It was performed here and returns this.
    Done(u64),
    /// It fails.
    Fail(Errno),
}

/// The kernel's word for what it lacks something for.
const NO_MEMORY: Answer = Answer::Fail(Errno(e::ENOMEM as i32));

/// A call whose effect on memory of the image would differ.
pub enum Work<'a> {
    /// `madvise`, or `process_madvise` on the caller itself.
    Advise {
        /// Start and bytes of each range.
        ranges: &'a [[u64; 2]],
        /// One of [`ADVICE`].
        advice: u32,
        /// Whether the call returns the bytes advised.
        is_vector: bool,
    },
    /// `mremap` that grows or leaves a range behind.
    Remap {
        /// Its arguments.
        args: [u64; 6],
    },
}

/// Most ranges that `process_madvise` takes.
const MAX_RANGES: usize = 1024;

impl Supervisor {
    /// Answers one call.
    pub(super) fn answer(&self) {
        let mut call = Notification::default();
        let at = &raw mut call as u64;
        // SAFETY: the kernel writes one notification.
        if unsafe { syscall(k::__NR_ioctl, [self.listener as u64, RECEIVE, at]) }.is_err() {
            return; // the caller was killed meanwhile
        }
        // A call of which nothing can be learnt may be about the image: it must not go on as it is.
        let Ok(caller) = Caller::open(self.proc, call.tid) else {
            return self.send(call.id, NO_MEMORY);
        };
        let args @ [start, bytes, third, fourth, ..] = call.args;
        match native_number(call.nr) {
            k::__NR_madvise => self.advise(call.id, &caller, &[[start, bytes]], third, false),
            k::__NR_mremap if third > bytes || fourth & DONT_UNMAP != 0 => {
                self.settle(call.id, &caller, &[[start, bytes]], &Work::Remap { args });
            }
            k::__NR_process_madvise => match caller.names_itself(start as i32) {
                Ok(true) => self.advise_vector(call.id, &caller, args),
                Ok(false) => self.send(call.id, Answer::Kernel),
                Err(_) => self.send(call.id, NO_MEMORY),
            },
            _ => self.send(call.id, Answer::Kernel),
        }
        caller.close();
    }

    fn advise_vector(&self, id: u64, caller: &Caller, args: [u64; 6]) {
        let [_, vectors, count, advice, ..] = args;
        let mut ranges = [[0; 2]; MAX_RANGES];
        let list = ranges.get_mut(..count as usize);
        match list.map(|list| caller.read_words(vectors, list).map(|()| &*list)) {
            Some(Ok(list)) => self.advise(id, caller, list, advice, true),
            _ => self.send(id, Answer::Kernel), // which will fail it
        }
    }

    fn advise(&self, id: u64, caller: &Caller, ranges: &[[u64; 2]], advice: u64, is_vector: bool) {
        let advice = advice as u32;
        if ADVICE.contains(&advice) {
            self.settle(id, caller, ranges, &Work::Advise { ranges, advice, is_vector });
        } else {
            self.send(id, Answer::Kernel);
        }
    }

    /// Leaves the call to the kernel unless one of `ranges` touches the image.
    fn settle(&self, id: u64, caller: &Caller, ranges: &[[u64; 2]], work: &Work<'_>) {
        let touches = |[start, bytes]: &[u64; 2]| {
            let end = align_up(start.saturating_add(*bytes), PAGE_BYTES);
            let is_aligned = *start == align_down(*start, PAGE_BYTES);
            if is_aligned { self.image.touches(&caller.space, *start, end) } else { Ok(false) }
        };
        match ranges.iter().map(touches).find(|touches| *touches != Ok(false)) {
            None => self.send(id, Answer::Kernel),
            Some(Ok(_)) => self.perform(id, caller, work),
            Some(Err(_)) => self.send(id, NO_MEMORY),
        }
    }

    fn perform(&self, id: u64, caller: &Caller, work: &Work<'_>) {
        let Some(held) = Held::seize(caller.tid) else {
            return self.send(id, outside::answer(&self.image, caller, work));
        };
        // Now that it is held, whether it still is the thread that called.
        let is_waiting = self.is_waiting(id);
        self.send(id, Answer::Done(0));
        let Ok(thread) = held.stop() else { return };
        if is_waiting {
            Visit { image: &self.image, caller, thread }.perform(work);
        } else {
            thread.release();
        }
    }

    /// Whether the call is still to be answered: its thread may have died and its id have gone to
    /// another.
    fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the kernel reads the id.
        unsafe { syscall(k::__NR_ioctl, [self.listener as u64, IS_VALID, &raw const id as u64]) }
            .is_ok()
    }

    fn send(&self, id: u64, answer: Answer) {
        let (value, error, flags) = match answer {
            Answer::Kernel => (0, 0, CONTINUE),
            Answer::Done(value) => (value as i64, 0, 0),
            Answer::Fail(errno) => (0, -errno.0, 0),
        };
        let response = Response { id, value, error, flags };
        let at = &raw const response as u64;
        // SAFETY: the kernel reads one response; a caller killed meanwhile is no error.
        let _ = unsafe { syscall(k::__NR_ioctl, [self.listener as u64, SEND, at]) };
    }
}

const DONT_UNMAP: u64 = k::MREMAP_DONTUNMAP as u64;

/// The x86-64 number of a handed-over call, which may come from a 32-bit program.
fn native_number(nr: u32) -> u32 {
    CALLS_I386.iter().position(|other| *other == nr).map_or(nr, |index| CALLS[index])
}
