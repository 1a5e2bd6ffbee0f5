//! Receiving a handed-over call, choosing who answers, and answering.

use linux_raw_sys::general as k;

use super::Supervisor;
use super::filter::{CALLS, CALLS_I386};
use super::target::Target;
use super::visit::Visitor;
use crate::call::{self, Errno, syscall};
use crate::settle;

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

impl From<Result<u64, Errno>> for Answer {
    fn from(result: Result<u64, Errno>) -> Answer {
        match result {
            Ok(value) => Answer::Done(value),
            Err(errno) => Answer::Fail(errno),
        }
    }
}

impl Supervisor {
    /// Answers one call.
    pub(super) fn answer(&self) {
        let mut call = Notification::default();
        let at = &raw mut call as u64;
        // SAFETY: the kernel writes one notification.
        if unsafe { syscall(k::__NR_ioctl, [self.listener as u64, RECEIVE, at]) }.is_err() {
            return; // the caller was killed meanwhile
        }
        let nr = native_number(call.nr);
        if self.needs_visit(nr, call.tid, call.args)
            && let Some(visitor) = Visitor::seize(call.tid)
        {
            self.send(call.id, Answer::Done(0));
            return visitor.perform(nr, call.args);
        }
        let answer = self.decide(nr, call.tid, call.args);
        self.send(call.id, answer);
        if matches!(nr, k::__NR_execve | k::__NR_execveat) {
            self.watch_execution(call.tid);
        }
    }

    fn decide(&self, nr: u32, tid: u32, args: [u64; 6]) -> Answer {
        if matches!(nr, k::__NR_execve | k::__NR_execveat) {
            return Answer::Kernel;
        }
        match (nr, self.target(tid)) {
            (_, Target::Own) => self.decide_own(nr, tid, args),
            (k::__NR_madvise, Target::Other(other)) => {
                other.advise(self, args[0], args[1], args[2] as u32)
            }
            (k::__NR_mremap, Target::Other(other)) => other.remap(self, args),
            _ => Answer::Kernel,
        }
    }

    /// What becomes of a call on this address space.
    pub(super) fn decide_own(&self, nr: u32, tid: u32, args: [u64; 6]) -> Answer {
        match nr {
            k::__NR_madvise => self.advise(args[0], args[1], args[2] as u32),
            k::__NR_mremap => self.remap(args),
            k::__NR_process_madvise => self.advise_process(tid, args),
            _ => Answer::Kernel,
        }
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

    /// After the clone's own `execve` this process would be the last holder of the old memory:
    /// gives it back as soon as the clone has left it. A call that fails leaves it at once.
    fn watch_execution(&self, tid: u32) {
        if !self.shares_memory(tid) {
            return;
        }
        for _ in 0..EXECUTION_CHECKS {
            if !self.shares_memory(self.process as u32) {
                settle::drop_the_rest();
                return;
            }
            let pause = k::__kernel_timespec { tv_sec: 0, tv_nsec: 200_000 };
            // SAFETY: the kernel reads one timespec.
            let _ = unsafe { syscall(k::__NR_nanosleep, [&raw const pause as u64, 0]) };
        }
    }

    /// Whether the task runs in this address space.
    pub(super) fn shares_memory(&self, tid: u32) -> bool {
        // SAFETY: getpid and kcmp have no effects.
        unsafe {
            let own = syscall(k::__NR_getpid, []).unwrap_or(0);
            syscall(k::__NR_kcmp, [own, u64::from(tid), KCMP_VM, 0, 0]) == Ok(0)
        }
    }
}

const KCMP_VM: u64 = 1;
/// Times 0.2 ms; a vforked child's memory stays shared until its `execve` is through.
const EXECUTION_CHECKS: usize = 50;

/// The x86-64 number of a handed-over call, which may come from a 32-bit program.
fn native_number(nr: u32) -> u32 {
    CALLS_I386.iter().position(|other| *other == nr).map_or(nr, |index| CALLS[index])
}

/// A file's text, for the few lines under `/proc` that are needed.
pub fn read_file<'a>(path: &[u8], text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let at = k::AT_FDCWD as i64 as u64;
    // SAFETY: `path` ends in NUL; the kernel writes at most `text.len()` bytes.
    unsafe {
        let fd = syscall(k::__NR_openat, [at, path.as_ptr() as u64, u64::from(k::O_CLOEXEC), 0])?;
        let read = syscall(k::__NR_read, [fd, text.as_mut_ptr() as u64, text.len() as u64]);
        call::close_range(fd as u32, fd as u32);
        Ok(&text[..read? as usize])
    }
}
