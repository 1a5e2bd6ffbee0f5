//! System calls that a stopped thread makes for the checkpoint. The kernel shows some state only to
//! the process itself.
//!
//! A checkpointer may be killed at any moment, and the kernel then lets go of every thread it has
//! stopped, with the registers of that moment. A thread may also be kept from running at any
//! moment, by a frozen cgroup, and then makes no call before the thaw. Invariants:
//!
//! 1. A thread's registers are its own, or point into the [`stub`], whose data is then that
//!    thread's. Either way it runs on as if nothing had happened, or the next checkpointer brings
//!    it back ([`leftover`]).
//! 2. The signal mask differs from the thread's own only while its registers point into the stub.
//! 3. No thread is single-stepped: the kernel would deliver the SIGTRAP of a step whose tracer has
//!    died, and takes the handler of SIGTRAP away where that signal is blocked.
//! 4. As long as a thread may still run in a stub, or return to it, no checkpointer changes that
//!    stub: another takes another place. The owner in its data says so.
//! 5. The scratch page is where nothing else comes to be, so that unmapping it twice is harmless;
//!    what is mapped stands in the data before the call that maps it.
//! 6. Every wait has a limit. A thread that cannot be stopped again after it is left alone in the stub,
//!    from where it comes back by itself.

mod fork;
pub mod leftover;
mod restarted;
mod stub;

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use farfork_pool::failpoint::step;
use farfork_sys::memory;
use farfork_sys::ptrace::{self, Registers, State};

use crate::error::{CheckpointError, doing};
use crate::stopped::{STOP_LIMIT, StoppedProcess};
use farfork_sys::status::Status;

pub use fork::{NAME as COPY_NAME, StoppedCopy};
pub use stub::{ABANDONED, RESTARTS};

/// How long to wait for a thread that did not make its call to stop: only a running thread stops.
const STOP_AGAIN_LIMIT: Duration = Duration::from_millis(200);
/// How a stop at a call differs from a stop at a signal.
const AT_CALL: State = State::Taking(libc::SIGTRAP | 0x80);

/// Makes system calls in a stopped process, by instructions in its vDSO and a page of scratch
/// memory. Dropping it removes both.
pub struct Injector<'f> {
    stopped: &'f StoppedProcess,
    /// Its memory, to write many words by one call; none where the kernel does not let it be written.
    mem: Option<File>,
    vdso: Vec<u8>,
    stub: u64,
    scratch: Cell<u64>,
    ability: Cell<Ability>,
}

/// Whether the threads of the process can make calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ability {
    Call,
    /// One did not make its call. It is stopped, with its own registers again.
    Stand,
    /// One could not be stopped after that, and is in the stub.
    Nothing,
}

/// One thread that makes calls for the checkpoint. Dropping it restores the thread's registers and
/// signal mask.
pub struct RemoteThread<'i> {
    injector: &'i Injector<'i>,
    tid: i32,
    registers: Registers,
    mask: u64,
    /// Whether it was resumed and has not been seen to stop.
    runs: Cell<bool>,
}

impl<'f> Injector<'f> {
    /// Prepares calls; `vdso` is the range of the process's vDSO, and nothing is mapped in the page
    /// at `hole`, nor comes to be mapped there before others.
    pub fn new(
        stopped: &'f StoppedProcess,
        vdso: (u64, u64),
        hole: u64,
    ) -> Result<Injector<'f>, CheckpointError> {
        let pid = stopped.pid();
        let code = leftover::read(pid, vdso)?;
        let at = leftover::free_place(stopped, &code)?;
        let page = leftover::scratch(pid, &code);
        let stub = vdso.0 + at as u64;
        let scratch = Cell::new(page.unwrap_or(stub::NO_SCRATCH));
        let (vdso, ability) = (leftover::without(code), Cell::new(Ability::Call));
        let mem = File::options().write(true).open(format!("/proc/{pid}/mem")).ok();
        let injector = Injector { stopped, mem, vdso, stub, scratch, ability };
        injector.own(0)?;
        injector.poke(stub, &stub::code())?;
        if page.is_none() {
            injector.map_scratch(hole)?;
        }
        Ok(injector)
    }

    /// Maps the scratch page.
    fn map_scratch(&self, hole: u64) -> Result<(), CheckpointError> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let args = [hole, stub::SCRATCH_BYTES, prot, flags, u64::MAX, 0];
        self.scratch.set(hole);
        let leader = self.thread(self.stopped.pid())?;
        let page = leader.call(libc::SYS_mmap, args)?;
        if page != hole {
            self.scratch.set(page);
            self.poke(self.stub + stub::DATA, &page.to_le_bytes())?;
        }
        leftover::mark(self.stopped.pid(), page)
    }

    /// Records which thread the data is for.
    fn own(&self, tid: i32) -> Result<(), CheckpointError> {
        self.poke(self.stub + stub::OWNER, &(tid as u64).to_le_bytes())
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.stopped.pid()
    }

    /// Address of the scratch page.
    pub fn scratch(&self) -> u64 {
        self.scratch.get()
    }

    /// The bytes of the vDSO as the kernel made them.
    pub fn vdso(&self) -> &[u8] {
        &self.vdso
    }

    /// The thread `tid`, prepared for calls. Only one thread of the process may be in use at a
    /// time.
    pub fn thread(&self, tid: i32) -> Result<RemoteThread<'_>, CheckpointError> {
        let kernel = |what| doing(self.stopped.pid(), what);
        if self.ability.get() == Ability::Nothing {
            return Err(self.stopped.does_not_stop(tid));
        }
        let registers = ptrace::registers(tid).map_err(kernel("read the registers"))?;
        let mask = ptrace::signal_mask(tid).map_err(kernel("read the signal mask"))?;
        self.prepare(tid, mask, &registers)?;
        // A call such as sigsuspend has another mask for as long as it waits. Without it the call
        // is made again, and no signal is taken in between that the call was to return with.
        ptrace::set_signal_mask(tid, mask).map_err(kernel("set the signal mask"))?;
        step();
        let lent = RemoteThread { injector: self, tid, registers, mask, runs: Cell::new(false) };
        let (rip, orig_rax) = (self.stub + stub::HEAL, u64::MAX);
        lent.set_registers(&Registers { rip, orig_rax, ..registers })?;
        // No handler may run between the calls.
        ptrace::set_signal_mask(tid, u64::MAX).map_err(kernel("set the signal mask"))?;
        step();
        Ok(lent)
    }

    /// Writes the data from which the thread restores its own state.
    fn prepare(&self, tid: i32, mask: u64, own: &Registers) -> Result<(), CheckpointError> {
        let data = stub::Data::new(tid, self.scratch.get(), mask, own);
        self.poke(self.stub + stub::DATA, &data.bytes())?;
        self.own(tid)
    }

    /// Unmaps the scratch page.
    fn unmap_scratch(&self) -> Result<(), CheckpointError> {
        let leader = self.thread(self.stopped.pid())?;
        leader.call(libc::SYS_munmap, [self.scratch.get(), stub::SCRATCH_BYTES, 0, 0, 0, 0])?;
        Ok(())
    }

    /// Leaves the leader where it unmaps the scratch page when it can run, and goes on. Filters might
    /// not let it do that: the page stays then, for the next checkpointer to unmap.
    fn park(&self) -> Result<(), CheckpointError> {
        let tid = self.stopped.pid();
        if Status::read(tid, tid)?.seccomp != 0 {
            return Ok(());
        }
        let own = ptrace::registers(tid).map_err(doing(tid, "read the registers"))?;
        let mask = ptrace::signal_mask(tid).map_err(doing(tid, "read the signal mask"))?;
        self.prepare(tid, mask, &own)?;
        let rip = self.stub + stub::PARK;
        ptrace::set_registers(tid, &Registers { rip, ..own })
            .map_err(doing(tid, "set the registers"))?;
        step();
        Ok(())
    }

    /// Removes the stub. The magic goes last, so that a killed removal can be repeated.
    fn clear(&self) -> Result<(), CheckpointError> {
        self.poke(self.stub + 8, &[0; stub::BYTES as usize - 8])?;
        self.poke(self.stub, &[0; 8])
    }

    /// Reads words that a call has left in the scratch page.
    pub fn words<const N: usize>(&self) -> Result<[u64; N], CheckpointError> {
        let mut bytes = vec![0u8; 8 * N];
        memory::read(self.stopped.pid(), self.scratch.get(), &mut bytes)
            .map_err(doing(self.stopped.pid(), "read the memory"))?;
        Ok(std::array::from_fn(|i| farfork_sys::xstate::word(&bytes, 8 * i)))
    }

    fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let pid = self.stopped.pid();
        // A kernel may forbid this where protection does (`proc_mem.force_override`), and allow what debuggers do.
        let is_written = |mem: &File| mem.write_all_at(bytes, address).is_ok();
        if !self.mem.as_ref().is_some_and(is_written) {
            ptrace::poke(pid, address, bytes).map_err(doing(pid, "write to the memory"))?;
        }
        step();
        Ok(())
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        let is_mapped = self.scratch.get() != stub::NO_SCRATCH;
        let can_call = self.ability.get() == Ability::Call;
        let is_unmapped = !is_mapped || can_call && self.unmap_scratch().is_ok();
        // A process that was killed meanwhile has no stub to remove.
        let _ = match self.ability.get() {
            Ability::Nothing => Ok(()),
            Ability::Stand if !is_unmapped => self.park(),
            _ => self.clear(),
        };
    }
}

impl RemoteThread<'_> {
    /// Makes one call and returns its result; an error of the call is an error here.
    pub fn call(&self, nr: libc::c_long, args: [u64; 6]) -> Result<u64, CheckpointError> {
        let result = self.try_call(nr, args)?;
        if (-4095..0).contains(&result) {
            let source = std::io::Error::from_raw_os_error(-result as i32);
            return Err(doing(self.injector.stopped.pid(), "make a system call on behalf")(source));
        }
        Ok(result as u64)
    }

    /// Makes one call and returns what the kernel returned.
    pub fn try_call(&self, nr: libc::c_long, args: [u64; 6]) -> Result<i64, CheckpointError> {
        let pid = self.injector.stopped.pid();
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let rip = self.injector.stub + stub::CALL;
        // orig_rax = -1 keeps the kernel from restarting the call that was interrupted.
        let (rax, orig_rax) = (nr as u64, u64::MAX);
        let registers =
            Registers { rdi, rsi, rdx, r10, r8, r9, rip, rax, orig_rax, ..self.registers };
        self.set_registers(&registers)?;
        for _ in ["entry", "exit"] {
            self.until(ptrace::to_system_call, |state| state == AT_CALL)?;
        }
        let after = ptrace::registers(self.tid).map_err(doing(pid, "read the registers"))?;
        Ok(after.rax as i64)
    }

    fn set_registers(&self, registers: &Registers) -> Result<(), CheckpointError> {
        let pid = self.injector.stopped.pid();
        ptrace::set_registers(self.tid, registers).map_err(doing(pid, "set the registers"))?;
        step();
        Ok(())
    }

    /// Resumes the thread by `resume` until a stop that is `wanted`.
    fn until(
        &self,
        resume: fn(i32, i32) -> std::io::Result<()>,
        wanted: fn(State) -> bool,
    ) -> Result<(), CheckpointError> {
        let mut signal = 0;
        loop {
            self.go_on(resume, signal)?;
            match self.stop_by(Instant::now() + STOP_LIMIT)? {
                state if wanted(state) => return Ok(()),
                // SIGSTOP cannot be blocked: the thread takes it, and the stop that follows.
                State::Taking(taken) => signal = taken,
                _ => signal = 0,
            }
        }
    }

    /// Resumes the thread by `resume`.
    fn go_on(
        &self,
        resume: fn(i32, i32) -> std::io::Result<()>,
        signal: i32,
    ) -> Result<(), CheckpointError> {
        resume(self.tid, signal).map_err(doing(self.injector.pid(), "resume a thread"))?;
        self.runs.set(true);
        step();
        Ok(())
    }

    /// Waits for the next stop of the thread. If there is none by `late`, no call is made any more.
    fn stop_by(&self, late: Instant) -> Result<State, CheckpointError> {
        let (pid, stopped) = (self.injector.pid(), self.injector.stopped);
        let unable = || self.injector.ability.set(Ability::Stand);
        match stopped.state_until(self.tid, late).inspect_err(|_| unable())? {
            Some(State::Ended) => Err(CheckpointError::Changed { pid, what: "was killed" }),
            Some(state) => {
                self.runs.set(false);
                step();
                Ok(state)
            }
            None => {
                unable();
                Err(stopped.does_not_stop(self.tid))
            }
        }
    }

    /// Stops the thread after it was let go on. One in a frozen cgroup stops at once in cgroup v2,
    /// and after the thaw in v1.
    fn stop(&self) -> Result<(), CheckpointError> {
        let pid = self.injector.pid();
        ptrace::interrupt(self.tid).map_err(doing(pid, "stop a thread"))?;
        let late = Instant::now() + STOP_AGAIN_LIMIT;
        loop {
            match self.stop_by(late)? {
                State::Taking(signal) if AT_CALL != State::Taking(signal) => {
                    self.go_on(ptrace::resume, signal)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Brings the thread to a stop from which the kernel restarts an interrupted call by itself.
    fn restore(&self) -> Result<(), CheckpointError> {
        let pid = self.injector.pid();
        if self.runs.get() {
            self.stop()?;
        }
        let rip = self.injector.stub + stub::HEAL;
        self.set_registers(&Registers { rip, orig_rax: u64::MAX, ..self.registers })?;
        ptrace::interrupt(self.tid).map_err(doing(pid, "stop a thread"))?;
        self.until(ptrace::resume, |state| matches!(state, State::Stopped(_)))?;
        ptrace::set_signal_mask(self.tid, self.mask).map_err(doing(pid, "set the signal mask"))?;
        step();
        self.set_registers(&self.registers)?;
        self.injector.own(0)
    }
}

impl Drop for RemoteThread<'_> {
    fn drop(&mut self) {
        // A thread that was killed meanwhile has no state to restore.
        if self.restore().is_err() {
            self.injector.ability.set(Ability::Nothing);
        }
    }
}
