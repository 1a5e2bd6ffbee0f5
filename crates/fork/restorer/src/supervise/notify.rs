//! Receiving a handed-over call, and answering it or leaving it to the kernel.

use linux_raw_sys::{errno as e, general as k};

use super::Supervisor;
use super::caller::Caller;
use super::filter::{DISCARDING, NR_MSEAL, is_marking, native_number};
use super::image::is_cut;
use super::job::{Job, LentFiles, MemoryCall};
use super::range::{pages, range};
use super::visit::TracedThread;
use crate::call::{Errno, SysResult, syscall};

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

/// The error that the kernel returns where it is out of memory.
const NO_MEMORY: Answer = Answer::Fail(Errno(e::ENOMEM as i32));

/// Most ranges that `process_madvise` takes.
const MAX_RANGES: usize = 1024;

impl Supervisor {
    /// Answers one call.
    pub(super) fn answer(&self) {
        let mut call = Notification::default();
        let at = &raw mut call as u64;
        // SAFETY: the kernel writes one notification.
        if unsafe { syscall(k::__NR_ioctl, [self.tools.listener as u64, RECEIVE, at]) }.is_err() {
            return; // the caller was killed meanwhile
        }
        // A call that cannot be examined may be about the image: the kernel must not perform it.
        let Ok(caller) = Caller::open(self.tools.proc, call.tid) else {
            return self.send(call.id, NO_MEMORY);
        };
        self.answer_to(&call, &caller);
        caller.close();
    }

    fn answer_to(&self, call: &Notification, caller: &Caller) {
        let args @ [start, bytes, third, fourth, ..] = call.args;
        let id = call.id;
        match native_number(call.arch, call.nr) {
            k::__NR_madvise => self.advise(id, caller, &[[start, bytes]], third, false),
            k::__NR_mremap if third > bytes || fourth & (FIXED | DONT_UNMAP) != 0 => {
                self.remap(id, caller, args);
            }
            k::__NR_process_madvise => match caller.names_itself(start as i32) {
                Ok(true) => self.advise_vector(id, caller, args),
                Ok(false) => self.send(id, Answer::Kernel),
                Err(_) => self.send(id, NO_MEMORY),
            },
            nr => {
                self.mark(caller, nr, args);
                self.send(id, Answer::Kernel);
            }
        }
    }

    /// Remembers where a call changes attributes from those in the plan.
    fn mark(&self, caller: &Caller, nr: u32, args: [u64; 6]) {
        let [start, bytes, ..] = args;
        match nr {
            k::__NR_mlockall | k::__NR_munlockall => self.changes.add_future(),
            k::__NR_ioctl if is_marking(bytes) => {
                self.end_watch();
                self.changes.add_all();
            }
            k::__NR_mlock
            | k::__NR_mlock2
            | k::__NR_munlock
            | k::__NR_madvise
            | k::__NR_pkey_mprotect
            | NR_MSEAL => {
                let (start, end) = pages(start, bytes);
                for piece in self.image.pieces(&caller.space, start, end) {
                    match piece {
                        Ok(piece) if !self.image.holds(&piece.mapping) => self.changes.add_other(),
                        Ok(piece) => {
                            let place = self.image.place(&piece);
                            self.changes.add(place, place + piece.bytes());
                        }
                        Err(_) => self.changes.add_all(),
                    }
                }
            }
            _ => {}
        }
    }

    fn advise_vector(&self, id: u64, caller: &Caller, args: [u64; 6]) {
        let [_, vectors, count, advice, flags, _] = args;
        let mut ranges = [[0; 2]; MAX_RANGES];
        let list = ranges.get_mut(..count as usize).filter(|_| flags == 0);
        let read = |list| caller.memory().and_then(|memory| memory.read_words(vectors, list));
        match list {
            // The kernel refuses it, whatever the ranges are.
            None => self.send(id, Answer::Kernel),
            Some(list) => match read(list) {
                Ok(()) => self.advise(id, caller, list, advice, true),
                Err(errno) => self.send(id, Answer::Fail(errno)),
            },
        }
    }

    fn advise(&self, id: u64, caller: &Caller, ranges: &[[u64; 2]], advice: u64, is_vector: bool) {
        let advice = advice as u32;
        if DISCARDING.contains(&advice) {
            return self.settle(id, caller, ranges, advice, is_vector);
        }
        for [start, bytes] in ranges {
            self.mark(caller, k::__NR_madvise, [*start, *bytes, 0, 0, 0, 0]);
        }
        self.send(id, Answer::Kernel);
    }

    /// Leaves the call to the kernel unless one of `ranges` touches the image.
    fn settle(&self, id: u64, caller: &Caller, ranges: &[[u64; 2]], advice: u32, is_vector: bool) {
        let touches = |[start, bytes]: &[u64; 2]| match range(*start, *bytes) {
            Ok((start, end)) => self.image.touches(&caller.space, start, end),
            Err(_) => Ok(false), // the kernel refuses it
        };
        match ranges.iter().map(touches).find(|touches| *touches != Ok(false)) {
            None => self.send(id, Answer::Kernel),
            Some(Ok(_)) => {
                self.perform(id, caller, &MemoryCall::Advise { ranges, advice, is_vector });
            }
            Some(Err(_)) => self.send(id, NO_MEMORY),
        }
    }

    /// Leaves `mremap` to the kernel if it is about one mapping that is as it was in the parent. What only moves may be
    /// of the image.
    fn remap(&self, id: u64, caller: &Caller, args: [u64; 6]) {
        let [start, old_bytes, new_bytes, flags, ..] = args;
        let Ok((start, end)) = range(start, old_bytes.min(new_bytes)) else {
            return self.send(id, Answer::Kernel); // which refuses it
        };
        let only_moves = new_bytes <= old_bytes && flags & DONT_UNMAP == 0;
        let touches =
            if only_moves { Ok(false) } else { self.image.touches(&caller.space, start, end) };
        let is_cut = || is_cut(&caller.space, start, end);
        match touches.and_then(|is_image| Ok((is_image, is_image || is_cut()?))) {
            Ok((_, false)) => self.send(id, Answer::Kernel),
            Ok((is_image, true)) => {
                self.perform(id, caller, &MemoryCall::Remap { args, is_image });
            }
            Err(_) => self.send(id, NO_MEMORY),
        }
    }

    fn perform(&self, id: u64, caller: &Caller, call: &MemoryCall<'_>) {
        let traced = TracedThread::seize(caller);
        if traced.is_none() {
            // Opened before the check below, after which the id may belong to another task.
            let _ = caller.memory();
        }
        if !self.is_waiting(id) {
            if let Some(thread) = traced.and_then(|traced| traced.stop().ok()) {
                thread.release();
            }
            return;
        }
        let Some(traced) = traced else {
            if let MemoryCall::Remap { is_image: false, .. } = call {
                return self.send(id, Answer::Kernel); // a program that was executed has its own mappings
            }
            let job = Job { supervisor: self, caller, thread: None, lent: LentFiles::new() };
            let answer = job.perform(call).map_or_else(Answer::Fail, Answer::Done);
            return self.send(id, answer);
        };
        let lent = self.lend(id, caller, call);
        // What the call returns if this process dies before it has a result.
        self.send(id, NO_MEMORY);
        let Ok(thread) = traced.stop() else { return };
        let job = Job { supervisor: self, caller, thread: Some(thread), lent };
        let result = job.perform(call);
        job.finish(result);
    }

    /// Lends the caller the files that are to be mapped again.
    fn lend(&self, id: u64, caller: &Caller, call: &MemoryCall<'_>) -> LentFiles {
        let mut lent = LentFiles::new();
        let MemoryCall::Advise { ranges, .. } = call else { return lent };
        for (start, end) in ranges.iter().filter_map(|[start, bytes]| range(*start, *bytes).ok()) {
            for piece in self.image.pieces(&caller.space, start, end).flatten() {
                let is_image = self.image.holds(&piece.mapping);
                let file = if is_image { self.image.file_of(&piece) } else { None };
                if let Some(Ok(fd)) = file.map(|(file, _)| self.files.fd(file)) {
                    lent.lend(self.tools.listener, id, fd);
                }
            }
        }
        lent
    }

    /// Whether the call is still to be answered: its thread may have died and its id have gone to
    /// another.
    fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the kernel reads the id.
        unsafe {
            syscall(k::__NR_ioctl, [self.tools.listener as u64, IS_VALID, &raw const id as u64])
        }
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
        // SAFETY: the kernel reads one response. That the caller was killed meanwhile is not an error.
        let _ = unsafe { syscall(k::__NR_ioctl, [self.tools.listener as u64, SEND, at]) };
    }
}

const FIXED: u64 = k::MREMAP_FIXED as u64;
const DONT_UNMAP: u64 = k::MREMAP_DONTUNMAP as u64;

impl Job<'_> {
    /// Does what the call asked for.
    fn perform(&self, call: &MemoryCall<'_>) -> SysResult {
        match call {
            MemoryCall::Advise { ranges, advice, is_vector } => {
                let advised = self.advise(ranges, *advice);
                advised.map(|bytes| if *is_vector { bytes } else { 0 })
            }
            MemoryCall::Remap { args, is_image: true } => self.remap(*args),
            MemoryCall::Remap { args, is_image: false } => self.remap_parts(*args),
        }
    }
}
