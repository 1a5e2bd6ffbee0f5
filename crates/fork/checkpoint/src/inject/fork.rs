//! A copy of the process that never runs the process's own code: `clone` without flags and without
//! a signal at its exit, so that `wait` of the process does not see it.
//!
//! ```text
//!  process   fork ─► stop (cloned) ─► heal
//!  copy               └─► stop ─► its name ─► dies with its tracer ─► descriptors closed ─► session
//! ```
//! Invariant: at every step the death of the tracer ends the copy. From its first instruction to
//! [`ptrace::Options::dies_with_tracer`] it would run into `exit_group`, which the stub has behind
//! each of its calls; after that the kernel kills it. It has its name before that, by which
//! others know it.

use std::time::{Duration, Instant};

use farfork_pool::failpoint::step;
use farfork_sys::ptrace::{self, Options, Registers, State};
use farfork_sys::status::Status;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::stub;
use super::{AT_CALL, Injector, RemoteThread};
use crate::error::{CheckpointError, doing};
use crate::stopped::STOP_LIMIT;

/// Name of a copy.
pub const NAME: &str = "farfork-seed";
/// The same as whole words of memory, with the zero at its end.
const NAME_WORDS: &[u8; 16] = b"farfork-seed\0\0\0\0";

/// How long to wait for a killed copy to end.
const END_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(50);

/// A process that is stopped and traced by this thread. Dropping it kills it.
#[derive(Debug)]
pub struct StoppedCopy {
    /// Its id here.
    pub pid: i32,
}

impl Injector<'_> {
    /// Forks the process. The copy has the same memory but for what is not inherited, no descriptors,
    /// a session of its own, and none of the mappings `without`.
    pub fn fork(&self, without: &[(u64, u64)]) -> Result<StoppedCopy, CheckpointError> {
        let pid = self.pid();
        self.poke(self.scratch(), NAME_WORDS)?;
        let leader = self.thread(pid)?;
        let suspends_seccomp = Status::read(pid, pid)?.seccomp != 0;
        let options = Options { suspends_seccomp, follows_clones: true, ..Options::default() };
        ptrace::set_options(pid, options).map_err(doing(pid, "follow the forks"))?;
        let copy = leader.fork();
        let options = Options { suspends_seccomp, ..Options::default() };
        ptrace::set_options(pid, options).map_err(doing(pid, "trace the threads"))?;
        drop(leader);
        let copy = copy?;
        self.settle(&copy, suspends_seccomp, without)?;
        Ok(copy)
    }

    /// Makes the calls after which the copy is nothing but memory.
    fn settle(
        &self,
        copy: &StoppedCopy,
        suspends_seccomp: bool,
        without: &[(u64, u64)],
    ) -> Result<(), CheckpointError> {
        let options = Options { suspends_seccomp, dies_with_tracer: true, follows_clones: false };
        let failed = |what| doing(copy.pid, what);
        let registers = ptrace::registers(copy.pid).map_err(failed("read the registers"))?;
        let call = |nr, args| self.call_of(copy, &registers, nr, args);
        call(libc::SYS_prctl, [libc::PR_SET_NAME as u64, self.scratch(), 0, 0, 0, 0])?;
        ptrace::set_options(copy.pid, options).map_err(failed("trace the copy"))?;
        step();
        call(libc::SYS_close_range, [0, u32::MAX.into(), 0, 0, 0, 0])?;
        call(libc::SYS_setsid, [0; 6])?;
        for (start, end) in without {
            call(libc::SYS_munmap, [*start, end - start, 0, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Makes one call in the copy.
    fn call_of(
        &self,
        copy: &StoppedCopy,
        first: &Registers,
        nr: libc::c_long,
        args: [u64; 6],
    ) -> Result<u64, CheckpointError> {
        let failed = |what| doing(copy.pid, what);
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let (rip, rax, orig_rax) = (self.stub + stub::LAST, nr as u64, u64::MAX);
        let registers = Registers { rdi, rsi, rdx, r10, r8, r9, rip, rax, orig_rax, ..*first };
        ptrace::set_registers(copy.pid, &registers).map_err(failed("set the registers"))?;
        step();
        for _ in ["entry", "exit"] {
            self.continue_copy(copy)?;
        }
        let after = ptrace::registers(copy.pid).map_err(failed("read the registers"))?;
        match after.rax as i64 {
            result @ -4095..0 => {
                let source = std::io::Error::from_raw_os_error(-result as i32);
                Err(doing(copy.pid, "make a system call in the frozen copy")(source))
            }
            result => Ok(result as u64),
        }
    }

    /// Up to the next stop at a call.
    fn continue_copy(&self, copy: &StoppedCopy) -> Result<(), CheckpointError> {
        let mut signal = 0;
        loop {
            ptrace::to_system_call(copy.pid, signal)
                .map_err(doing(copy.pid, "resume the frozen copy"))?;
            step();
            match self.state_of(copy)? {
                AT_CALL => return Ok(()),
                State::Taking(taken) => signal = taken,
                _ => signal = 0,
            }
        }
    }

    fn state_of(&self, copy: &StoppedCopy) -> Result<State, CheckpointError> {
        let state = self.stopped.state_until(copy.pid, Instant::now() + STOP_LIMIT)?;
        step();
        match state {
            Some(State::Ended) => {
                Err(CheckpointError::Changed { pid: self.pid(), what: "lost its frozen copy" })
            }
            Some(state) => Ok(state),
            None => Err(self.stopped.does_not_stop(copy.pid)),
        }
    }
}

impl RemoteThread<'_> {
    /// Makes the copy, which is stopped before its first instruction.
    fn fork(&self) -> Result<StoppedCopy, CheckpointError> {
        let pid = self.injector.pid();
        let [rdi, rsi, rdx, r10, r8] = [0; 5];
        let (rip, rax, orig_rax) =
            (self.injector.stub + stub::FORK, libc::SYS_clone as u64, u64::MAX);
        let registers = Registers { rdi, rsi, rdx, r10, r8, rip, rax, orig_rax, ..self.registers };
        self.set_registers(&registers)?;
        self.until(ptrace::to_system_call, |state| state == AT_CALL)?;
        let copy = self.until_forked()?;
        let result = ptrace::registers(self.tid).map_err(doing(pid, "read the registers"))?.rax;
        let Some(copy) = copy.filter(|_| result as i64 > 0) else {
            let source = std::io::Error::from_raw_os_error(-(result as i64) as i32);
            return Err(doing(pid, "fork a frozen copy")(source));
        };
        match self.injector.state_of(&copy)? {
            State::Stopped(_) => Ok(copy),
            _ => Err(self.injector.stopped.does_not_stop(copy.pid)),
        }
    }

    /// From the entry of the call to its exit.
    fn until_forked(&self) -> Result<Option<StoppedCopy>, CheckpointError> {
        let pid = self.injector.pid();
        let (mut copy, mut signal) = (None, 0);
        loop {
            self.go_on(ptrace::to_system_call, signal)?;
            signal = 0;
            match self.stop_by(Instant::now() + STOP_LIMIT)? {
                AT_CALL => return Ok(copy),
                State::Cloned => {
                    let made = ptrace::cloned(self.tid);
                    let pid = made.map_err(doing(pid, "find the frozen copy"))?;
                    copy = Some(StoppedCopy { pid });
                }
                State::Taking(taken) => signal = taken,
                _ => {}
            }
        }
    }
}

impl StoppedCopy {
    /// Kills it and waits until it has ended; false if that takes too long, as in a frozen cgroup.
    pub fn end(&self) -> bool {
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        let late = Instant::now() + END_LIMIT;
        loop {
            match ptrace::state(self.pid) {
                Ok(State::Ended) | Err(_) => return true,
                Ok(_) if Instant::now() > late => return false,
                Ok(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for StoppedCopy {
    fn drop(&mut self) {
        self.end();
    }
}

const _: () = assert!(NAME.len() < NAME_WORDS.len());
