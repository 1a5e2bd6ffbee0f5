//! Threads that were interrupted in a call for the second time.
//!
//! Some calls that are interrupted go on as `restart_syscall`, for which the kernel keeps what is
//! left of them. After that no register says which call it was, and in a clone the kernel has
//! nothing kept: `restart_syscall` would end with EINTR. So the thread goes to sleep once more, and
//! the function of the kernel that it sleeps in identifies the call.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork_sys::ptrace::{self, Registers, State};

use super::stub::{self, RESTART_BLOCK};
use super::{AT_CALL, Injector, RemoteThread};
use crate::error::{CheckpointError, doing};

/// How long to wait for the thread to sleep again.
const SLEEP_LIMIT: Duration = Duration::from_millis(100);

/// What a call returns that cannot be made again.
const EINTR: u64 = -(libc::EINTR as i64) as u64;

impl Injector<'_> {
    /// The registers of a thread, which name the call that was interrupted, if one was.
    pub fn registers(&self, tid: i32) -> Result<Registers, CheckpointError> {
        let registers = ptrace::registers(tid).map_err(doing(self.pid(), "read the registers"))?;
        let is_restarted = registers.orig_rax == libc::SYS_restart_syscall as u64;
        if !is_restarted || registers.rax as i64 != RESTART_BLOCK {
            return Ok(registers);
        }
        let mut lent = self.thread(tid)?;
        let call = lent.sleep_again()?;
        let registers = lent.registers;
        drop(lent);
        Ok(match call {
            Some(number) => Registers { orig_rax: number as u64, ..registers },
            None if registers.rax as i64 == RESTART_BLOCK => Registers { rax: EINTR, ..registers },
            None => registers,
        })
    }
}

impl RemoteThread<'_> {
    /// Goes on with `restart_syscall` and interrupts it again: the number of the call that this is,
    /// unless the kernel does not show it, or the call has returned.
    fn sleep_again(&mut self) -> Result<Option<libc::c_long>, CheckpointError> {
        let pid = self.injector.pid();
        let rip = self.injector.stub + stub::CALL;
        let (rax, orig_rax) = (libc::SYS_restart_syscall as u64, u64::MAX);
        self.set_registers(&Registers { rip, rax, orig_rax, ..self.registers })?;
        self.until(ptrace::to_system_call, |state| state == AT_CALL)?;
        let number = self.look_asleep()?;
        let after = ptrace::registers(self.tid).map_err(doing(pid, "read the registers"))?;
        if after.rax as i64 == RESTART_BLOCK {
            return Ok(number);
        }
        self.registers = Registers { rax: after.rax, orig_rax: u64::MAX, ..self.registers };
        Ok(None)
    }

    /// From the entry of the call to its exit: looks where it sleeps, and interrupts it then.
    fn look_asleep(&self) -> Result<Option<libc::c_long>, CheckpointError> {
        let pid = self.injector.pid();
        self.go_on(ptrace::to_system_call, 0)?;
        let late = Instant::now() + SLEEP_LIMIT;
        let mut number = None;
        while number.is_none() && Instant::now() < late {
            match ptrace::state(self.tid).map_err(doing(pid, "wait for a thread"))? {
                State::Unchanged => {
                    number = self.sleeps_in();
                    sleep(PAUSE);
                }
                state => {
                    self.runs.set(state == State::Ended);
                    if self.is_at_call(state)? {
                        return Ok(number);
                    }
                }
            }
        }
        ptrace::interrupt(self.tid).map_err(doing(pid, "stop a thread"))?;
        let late = Instant::now() + crate::stopped::STOP_LIMIT;
        loop {
            let state = self.stop_by(late)?;
            if self.is_at_call(state)? {
                return Ok(number);
            }
        }
    }

    /// Whether the thread has stopped at the exit of its call; goes on from other stops.
    fn is_at_call(&self, state: State) -> Result<bool, CheckpointError> {
        let pid = self.injector.pid();
        match state {
            AT_CALL => return Ok(true),
            State::Ended => return Err(CheckpointError::Changed { pid, what: "was killed" }),
            State::Taking(signal) => self.go_on(ptrace::to_system_call, signal)?,
            _ => self.go_on(ptrace::to_system_call, 0)?,
        }
        Ok(false)
    }

    /// The number of the call that the thread sleeps in, of those that go on as `restart_syscall`.
    fn sleeps_in(&self) -> Option<libc::c_long> {
        let path = format!("/proc/{}/task/{}/wchan", self.injector.pid(), self.tid);
        call_of(&fs::read_to_string(path).ok()?, [self.registers.rdi, self.registers.rsi])
    }
}

/// The call with these arguments that sleeps in the kernel's function `place`, of those that the kernel
/// keeps something of.
fn call_of(place: &str, [first, second]: [u64; 2]) -> Option<libc::c_long> {
    // A clock has a small number, or a negative one; nanosleep has an address there.
    let is_clock = first < 16 || (first as i32) < 0 && second == 0;
    match place {
        _ if place.contains("futex") => Some(libc::SYS_futex),
        _ if place.contains("poll") => Some(libc::SYS_poll),
        // What continues a sleep counts among the scheduler's functions, which are left out.
        _ if !place.contains("sleep") && !place.contains("syscall") => None,
        _ if is_clock => Some(libc::SYS_clock_nanosleep),
        _ => Some(libc::SYS_nanosleep),
    }
}

const PAUSE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_by_where_it_sleeps_and_by_its_first_argument() {
        let call = |place, first| call_of(place, [first, 0]);
        assert_eq!(call("futex_do_wait", 0x7fff_0000_1000), Some(libc::SYS_futex));
        assert_eq!(call("poll_schedule_timeout.constprop.0", 0), Some(libc::SYS_poll));
        assert_eq!(call("do_syscall_64", 1), Some(libc::SYS_clock_nanosleep));
        assert_eq!(call("do_cpu_nanosleep", -6i64 as u64), Some(libc::SYS_clock_nanosleep));
        assert_eq!(call("do_syscall_64", 0x7fff_0000_1000), Some(libc::SYS_nanosleep));
        assert_eq!(call("hrtimer_nanosleep", 0x7fff_0000_1000), Some(libc::SYS_nanosleep));
        assert_eq!(call("0", 1), None);
    }
}
