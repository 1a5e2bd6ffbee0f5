//! Having the calling thread perform system calls on its own memory.
//!
//! Every process that still has memory of the image also has this program in its window, among it
//! one `syscall` instruction that the filter lets pass. A thread whose call was handed over is
//! sent there by `ptrace`, once for each call to be made, and then back with the result:
//!
//! ```text
//!  init                          thread
//!  SEIZE, INTERRUPT              traced in its system call
//!  answer 0                 ──►  returns, stops before user code
//!  registers := a call      ──►  performs it; stops at its entry and at its exit
//!  …
//!  registers := saved, rax := result, DETACH
//! ```
//!
//! A thread controls its own memory: whatever it puts in the window's place can harm only itself.

use core::arch::global_asm;

use farfork_plan::register;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::caller::Caller;
use crate::call::{Errno, SysResult, syscall};
use crate::maps;

global_asm!(".globl farfork_gate", "farfork_gate:", "syscall", "ud2");

unsafe extern "C" {
    /// The instruction in the window.
    static farfork_gate: u8;
}

fn gate() -> u64 {
    &raw const farfork_gate as u64
}

const SEIZE: u64 = 0x4206;
const INTERRUPT: u64 = 0x4207;
const GET_REGISTERS: u64 = 12;
const SET_REGISTERS: u64 = 13;
const GET_SIGNAL_MASK: u64 = 0x420a;
const SET_SIGNAL_MASK: u64 = 0x420b;
const RUN_TO_CALL: u64 = 24; // PTRACE_SYSCALL
const DETACH: u64 = 17;
/// `PTRACE_O_TRACESYSGOOD` marks stops at system calls. `PTRACE_O_EXITKILL`: a thread that loses the
/// init halfway does not go on from there.
const OPTIONS: u64 = 1 | 1 << 20;
/// How such a stop looks, as `si_status`.
const AT_CALL: i32 = k::SIGTRAP as i32 | 0x80;
/// How the arrival of a signal to stop looks.
const STOP: i32 = k::SIGSTOP as i32;

type Registers = [u64; register::COUNT];

/// A thread that this process traces.
#[derive(Clone, Copy)]
pub struct TracedThread {
    tid: u64,
}

impl TracedThread {
    /// Traces the caller's thread, which waits for the answer to a call. `None` where that is not
    /// allowed, as when a debugger traces it.
    pub fn seize(caller: &Caller) -> Option<TracedThread> {
        let gate = gate();
        let there = caller.space.at_or_after(gate).ok()??;
        if there.start > gate || there.flags & maps::EXEC == 0 {
            return None; // the window is not what it was
        }
        TracedThread::take(caller.tid).ok()
    }

    /// A thread that is traced already.
    pub const fn known(tid: u32) -> TracedThread {
        TracedThread { tid: tid as u64 }
    }

    /// Has a thread stop before user code. The thread may have been asked to before, without having
    /// stopped yet.
    pub fn take(tid: u32) -> Result<TracedThread, Errno> {
        let traced = TracedThread::known(tid);
        let seized = traced.request(SEIZE, 0, OPTIONS);
        match traced.request(INTERRUPT, 0, 0) {
            Ok(_) => Ok(traced),
            Err(errno) => seized.and(Err(errno)),
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        let stopped = self.peek(k::WSTOPPED);
        match stopped {
            Ok(info) if info[SI_PID] != 0 => State::Stopped(info[SI_STATUS]),
            Ok(_) => match self.peek(k::WEXITED | k::WNOWAIT) {
                Ok(info) if info[SI_PID] == 0 => State::Runs,
                _ => State::Ended,
            },
            Err(_) => State::Ended,
        }
    }

    /// Lets it go on from a stop of this kind, with the signal that stopped it, if one did.
    pub fn let_go(&self, stop: i32) {
        let signal = if stop > 0xff || stop == AT_CALL { 0 } else { stop as u64 };
        let _ = self.request(DETACH, 0, signal);
    }

    fn peek(&self, options: u32) -> Result<[i32; 32], Errno> {
        let mut info = [0i32; 32];
        let options = u64::from(options | k::WNOHANG | k::__WALL);
        let args = [u64::from(k::P_PID), self.tid, info.as_mut_ptr() as u64, options, 0];
        // SAFETY: the kernel writes one siginfo of 128 bytes.
        unsafe { syscall(k::__NR_waitid, args) }.map(|_| info)
    }

    /// Once its call has been answered: brings it to a stop before user code.
    pub fn stop(self) -> Result<StoppedThread, Errno> {
        let mut thread = StoppedThread { traced: self, own: [0; register::COUNT], mask: 0 };
        thread.traced.await_stop()?;
        let (own, mask) = (thread.own.as_mut_ptr() as u64, &raw mut thread.mask as u64);
        thread.traced.request(GET_REGISTERS, 0, own)?;
        thread.traced.request(GET_SIGNAL_MASK, 8, mask)?;
        let all = u64::MAX;
        thread.traced.request(SET_SIGNAL_MASK, 8, &raw const all as u64)?;
        Ok(thread)
    }

    /// Waits for the next stop and returns its kind. It does not wait for the thread's end: the
    /// supervisor must see the end of the clone and report it.
    fn await_stop(&self) -> Result<i32, Errno> {
        let mut info = [0i32; 32];
        let options = u64::from(k::WSTOPPED | k::__WALL);
        let args = [u64::from(k::P_PID), self.tid, info.as_mut_ptr() as u64, options, 0];
        // SAFETY: the kernel writes one siginfo of 128 bytes.
        unsafe { syscall(k::__NR_waitid, args) }?;
        Ok(info[SI_STATUS])
    }

    fn request(&self, what: u64, address: u64, data: u64) -> SysResult {
        // SAFETY: the pointers among the arguments are to values of the callers, of the size
        // that each request takes.
        unsafe { syscall(k::__NR_ptrace, [what, self.tid, address, data]) }
    }
}

/// The state of a thread that was asked to stop.
pub enum State {
    /// It has not stopped yet.
    Runs,
    /// It has stopped; the kind of stop.
    Stopped(i32),
    /// It has ended.
    Ended,
}

/// Indices in a siginfo's words.
const SI_PID: usize = 4;
const SI_STATUS: usize = 6;

/// A thread stopped before user code.
pub struct StoppedThread {
    traced: TracedThread,
    own: Registers,
    mask: u64,
}

impl StoppedThread {
    /// Has the thread make a system call.
    pub fn call(&self, nr: u32, args: [u64; 6]) -> SysResult {
        use register::*;
        let mut registers = self.own;
        registers[RIP] = gate();
        registers[RAX] = u64::from(nr);
        registers[ORIG_RAX] = u64::MAX;
        for (place, arg) in [RDI, RSI, RDX, R10, R8, R9].into_iter().zip(args) {
            registers[place] = arg;
        }
        self.traced.request(SET_REGISTERS, 0, registers.as_ptr() as u64)?;
        self.run_to_call()?;
        self.run_to_call()?;
        self.traced.request(GET_REGISTERS, 0, registers.as_mut_ptr() as u64)?;
        match registers[RAX] as i64 {
            error @ -4095..=-1 => Err(Errno(-error as i32)),
            value => Ok(value as u64),
        }
    }

    /// Up to the next entry to or exit from a system call. Signals are blocked but for SIGSTOP,
    /// which the thread takes, and the stop of the whole process that follows: it is in force
    /// again as soon as the thread is let go. Any other signal means that the window is not what
    /// it was.
    fn run_to_call(&self) -> Result<(), Errno> {
        let mut signal = 0;
        loop {
            self.traced.request(RUN_TO_CALL, 0, signal)?;
            signal = match self.traced.await_stop()? {
                AT_CALL => return Ok(()),
                STOP => k::SIGSTOP.into(),
                event if event > 0xff => 0,
                _ => return Err(Errno(e::EFAULT as i32)),
            };
        }
    }

    /// Lets the thread go on as it was.
    pub fn release(self) {
        let _ = self.traced.request(SET_SIGNAL_MASK, 8, &raw const self.mask as u64);
        let _ = self.traced.request(DETACH, 0, 0);
    }

    /// Lets the thread go on with `result` as what its own call returns. One that was killed
    /// meanwhile needs nothing more.
    pub fn leave(mut self, result: SysResult) {
        self.own[register::RAX] = result.unwrap_or_else(|errno| -i64::from(errno.0) as u64);
        self.own[register::ORIG_RAX] = u64::MAX;
        let _ = self.traced.request(SET_REGISTERS, 0, self.own.as_ptr() as u64);
        self.release();
    }
}
