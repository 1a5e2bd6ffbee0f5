//! Keeping all other threads of a caller's process from writing while memory that must not change
//! is copied.
//!
//! Each is stopped as by a debugger, on its way to user code. One that is in the middle of a system
//! call may have that call interrupted, as by `SIGSTOP` and `SIGCONT` (signal(7), last section).

use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::caller::Caller;
use super::proc::{self, Proc};
use super::visit::{State, TracedThread};
use crate::call::{self, Errno, fail, syscall};

/// The other threads of a process, traced.
pub struct Standstill {
    threads: [Stopped; MOST],
    count: usize,
}

/// A thread and the stop to which it has come, if any.
#[derive(Clone, Copy)]
struct Stopped {
    tid: u32,
    stop: i32,
}

/// Most other threads that a process may have to be brought to a standstill.
const MOST: usize = 1024;

/// How long to wait for a thread in an uninterruptible call. After that it still does not get back to
/// user code; only the call itself can write.
const PATIENCE_NS: u64 = 100_000_000;

impl Standstill {
    /// None as yet.
    pub const fn new() -> Standstill {
        Standstill { threads: [Stopped { tid: 0, stop: 0 }; MOST], count: 0 }
    }

    /// Stops all threads of the caller's process but the caller. Those that are stopped start no
    /// others: when a look finds none that is new, it was all. To be [ended](Self::end) in any case.
    ///
    /// # Errors
    /// ENOMEM: there are too many, or one of them has another tracer.
    pub fn begin(&mut self, caller: &Caller, proc: Proc) -> Result<(), Errno> {
        loop {
            let known = self.count;
            let found = self.seize_new(caller, proc);
            let late = call::now_ns() + PATIENCE_NS;
            for thread in &mut self.threads[known..self.count] {
                thread.await_stop(late);
            }
            found?;
            if self.count == known {
                return Ok(());
            }
        }
    }

    fn seize_new(&mut self, caller: &Caller, proc: Proc) -> Result<(), Errno> {
        let directory = proc.file(&proc::path_of(caller.tid, b"task"), k::O_DIRECTORY)?;
        let seized = each_number(directory, |tid| {
            let known = &self.threads[..self.count];
            if tid == caller.tid || known.iter().any(|thread| thread.tid == tid) {
                return Ok(());
            }
            let Some(place) = self.threads.get_mut(self.count) else { return fail(e::ENOMEM) };
            match TracedThread::take(tid) {
                Ok(_) => {
                    *place = Stopped { tid, stop: 0 };
                    self.count += 1;
                    Ok(())
                }
                Err(_) if has_ended(proc, tid) => Ok(()),
                Err(_) => fail(e::ENOMEM),
            }
        });
        call::close_range(directory as u32, directory as u32);
        seized
    }

    /// Lets them go on. A thread that has not stopped yet goes on when it does: the supervisor waits
    /// for it ([`TracedThread::let_go`]).
    pub fn end(&self) {
        for thread in &self.threads[..self.count] {
            TracedThread::known(thread.tid).let_go(thread.stop);
        }
    }
}

impl Stopped {
    fn await_stop(&mut self, late: u64) {
        let traced = TracedThread::known(self.tid);
        loop {
            match traced.state() {
                State::Stopped(stop) => return self.stop = stop,
                State::Ended => return,
                State::Runs if call::now_ns() >= late => return,
                State::Runs => pause(),
            }
        }
    }
}

/// Whether a thread has ended.
fn has_ended(proc: Proc, tid: u32) -> bool {
    let mut text = [0u8; 128];
    let Ok(text) = proc.read(&proc::path_of(tid, b"stat"), &mut text) else { return true };
    let state = text.iter().rposition(|byte| *byte == b')').and_then(|at| text.get(at + 2));
    matches!(state, Some(b'Z' | b'X') | None)
}

/// Calls `each` with the numbers among the names in a directory.
fn each_number(
    directory: i32,
    mut each: impl FnMut(u32) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut entries = [0u8; 4096];
    loop {
        let args = [directory as u64, entries.as_mut_ptr() as u64, entries.len() as u64];
        // SAFETY: the kernel writes at most as many bytes.
        let bytes = unsafe { syscall(k::__NR_getdents64, args) }? as usize;
        if bytes == 0 {
            return Ok(());
        }
        let mut rest = &entries[..bytes];
        while let [_, .., _] = rest {
            let length = u16::from_ne_bytes([rest[RECORD_LENGTH], rest[RECORD_LENGTH + 1]]);
            let (entry, next) = rest.split_at(usize::from(length));
            let name = entry[NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
            if name.iter().all(u8::is_ascii_digit) {
                each(name.iter().fold(0, |n, digit| n * 10 + u32::from(digit - b'0')))?;
            }
            rest = next;
        }
    }
}

/// Offsets in a `struct linux_dirent64`.
const RECORD_LENGTH: usize = 16;
const NAME: usize = 19;

fn pause() {
    let time = k::__kernel_timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY: the kernel reads one timespec.
    let _ = unsafe { syscall(k::__NR_nanosleep, [&raw const time as u64, 0]) };
}
