//! Having a stopped thread make system calls, for what the kernel tells only to the process
//! itself.
//!
//! A checkpointer may be killed at any moment, and the kernel then lets go of every thread it has
//! stopped, with the registers of that moment. Invariants:
//!
//! 1. A thread's registers are its own, or point into the [`stub`], whose data is then that
//!    thread's. Either way it runs on as if nothing had happened.
//! 2. The signal mask differs from the thread's own only while its registers point into the stub.
//! 3. No thread is single-stepped: the kernel would deliver the SIGTRAP of a step whose tracer has
//!    died, and takes the handler of SIGTRAP away where that signal is blocked.

mod restarted;
mod stub;

use std::cell::Cell;

use farfork_pool::failpoint::step;
use farfork_sys::memory;
use farfork_sys::ptrace::{self, Registers};
use nix::sys::wait::WaitStatus;

use crate::error::{CheckpointError, doing};
use crate::freeze::{Frozen, wait};

pub use stub::RESTARTS;

/// The means to make calls in a frozen process: instructions in its vDSO and a page of scratch
/// memory. Dropping it takes both away again.
pub struct Injector<'f> {
    frozen: &'f Frozen,
    vdso: Vec<u8>,
    stub: u64,
    scratch: Cell<u64>,
}

/// One thread that is lent for calls; its registers and mask come back with the drop.
pub struct Lent<'i> {
    injector: &'i Injector<'i>,
    tid: i32,
    registers: Registers,
    mask: u64,
}

impl<'f> Injector<'f> {
    /// Prepares calls; `vdso` is the range of the process's vDSO.
    pub fn new(frozen: &'f Frozen, vdso: (u64, u64)) -> Result<Injector<'f>, CheckpointError> {
        let pid = frozen.pid();
        let mut code = vec![0u8; (vdso.1 - vdso.0) as usize];
        memory::read(pid, vdso.0, &mut code).map_err(doing(pid, "read the vDSO"))?;
        let at = stub::place(&code).ok_or(CheckpointError::NoVdso { pid })?;
        let left = stub::left_scratch(&code[at..]);
        code[at..at + stub::BYTES as usize].fill(0);
        let (stub, scratch) = (vdso.0 + at as u64, Cell::new(stub::NO_SCRATCH));
        let injector = Injector { frozen, vdso: code, stub, scratch };
        injector.poke(stub, &stub::code())?;
        match left.filter(|page| injector.is_ours(*page)) {
            Some(page) => injector.scratch.set(page),
            None => injector.map_scratch()?,
        }
        Ok(injector)
    }

    /// Maps the scratch page, and marks it so that it is found if nobody is left to unmap it.
    fn map_scratch(&self) -> Result<(), CheckpointError> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let args = [0, stub::SCRATCH_BYTES, prot, flags, u64::MAX, 0];
        let leader = self.lend(self.frozen.pid())?;
        let page = leader.call(libc::SYS_mmap, args)?;
        self.scratch.set(page);
        self.poke(self.stub + stub::DATA, &page.to_le_bytes())?;
        self.poke(page + stub::SCRATCH_MARK, &stub::MAGIC.to_le_bytes())
    }

    /// Whether there is the scratch page of a checkpointer that was killed.
    fn is_ours(&self, page: u64) -> bool {
        let mut mark = [0u8; 8];
        let got = memory::read(self.frozen.pid(), page + stub::SCRATCH_MARK, &mut mark);
        got.is_ok_and(|bytes| bytes == 8) && mark == stub::MAGIC.to_le_bytes()
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.frozen.pid()
    }

    /// Address of the scratch page.
    pub fn scratch(&self) -> u64 {
        self.scratch.get()
    }

    /// The bytes of the vDSO as the kernel made them.
    pub fn vdso(&self) -> &[u8] {
        &self.vdso
    }

    /// Borrows a thread. No other thread of the process may be lent meanwhile.
    pub fn lend(&self, tid: i32) -> Result<Lent<'_>, CheckpointError> {
        let kernel = |what| doing(self.frozen.pid(), what);
        let registers = ptrace::registers(tid).map_err(kernel("read the registers"))?;
        let mask = ptrace::signal_mask(tid).map_err(kernel("read the signal mask"))?;
        let data = stub::data(self.scratch.get(), mask, &registers);
        let data: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.poke(self.stub + stub::DATA, &data)?;
        // A call such as sigsuspend has another mask for as long as it waits. Without it the call
        // is made again, and no signal is taken in between that the call was to return with.
        ptrace::set_signal_mask(tid, mask).map_err(kernel("set the signal mask"))?;
        step();
        let lent = Lent { injector: self, tid, registers, mask };
        let (rip, orig_rax) = (self.stub + stub::HEAL, u64::MAX);
        lent.set_registers(&Registers { rip, orig_rax, ..registers })?;
        // No handler may run between the calls.
        ptrace::set_signal_mask(tid, u64::MAX).map_err(kernel("set the signal mask"))?;
        step();
        Ok(lent)
    }

    /// Reads words that a call has left in the scratch page.
    pub fn words<const N: usize>(&self) -> Result<[u64; N], CheckpointError> {
        let mut bytes = vec![0u8; 8 * N];
        memory::read(self.frozen.pid(), self.scratch.get(), &mut bytes)
            .map_err(doing(self.frozen.pid(), "read the memory"))?;
        Ok(std::array::from_fn(|i| farfork_sys::xstate::word(&bytes, 8 * i)))
    }

    fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let pid = self.frozen.pid();
        ptrace::poke(pid, address, bytes).map_err(doing(pid, "write to the memory"))?;
        step();
        Ok(())
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        let page = self.scratch.replace(stub::NO_SCRATCH);
        if page != stub::NO_SCRATCH
            && let Ok(leader) = self.lend(self.frozen.pid())
        {
            let _ = leader.call(libc::SYS_munmap, [page, stub::SCRATCH_BYTES, 0, 0, 0, 0]);
        }
        let _ = self.poke(self.stub, &[0; stub::BYTES as usize]);
    }
}

impl Lent<'_> {
    /// Makes one call and returns its result; an error of the call is an error here.
    pub fn call(&self, nr: libc::c_long, args: [u64; 6]) -> Result<u64, CheckpointError> {
        let result = self.try_call(nr, args)?;
        if (-4095..0).contains(&result) {
            let source = std::io::Error::from_raw_os_error(-result as i32);
            return Err(doing(self.injector.frozen.pid(), "make a system call on behalf")(source));
        }
        Ok(result as u64)
    }

    /// Makes one call and returns what the kernel returned.
    pub fn try_call(&self, nr: libc::c_long, args: [u64; 6]) -> Result<i64, CheckpointError> {
        let pid = self.injector.frozen.pid();
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let rip = self.injector.stub + stub::CALL;
        // orig_rax = -1 keeps the kernel from restarting the call that was interrupted.
        let (rax, orig_rax) = (nr as u64, u64::MAX);
        let registers =
            Registers { rdi, rsi, rdx, r10, r8, r9, rip, rax, orig_rax, ..self.registers };
        self.set_registers(&registers)?;
        for _ in ["entry", "exit"] {
            self.until(ptrace::to_system_call, |status| {
                matches!(status, WaitStatus::PtraceSyscall(_))
            })?;
        }
        let after = ptrace::registers(self.tid).map_err(doing(pid, "read the registers"))?;
        Ok(after.rax as i64)
    }

    fn set_registers(&self, registers: &Registers) -> Result<(), CheckpointError> {
        let pid = self.injector.frozen.pid();
        ptrace::set_registers(self.tid, registers).map_err(doing(pid, "set the registers"))?;
        step();
        Ok(())
    }

    /// Lets the thread go on in the way of `resume` up to a stop that is `wanted`.
    fn until(
        &self,
        resume: fn(i32, i32) -> std::io::Result<()>,
        wanted: fn(&WaitStatus) -> bool,
    ) -> Result<(), CheckpointError> {
        let pid = self.injector.frozen.pid();
        let mut signal = 0;
        loop {
            resume(self.tid, signal).map_err(doing(pid, "let a thread go on"))?;
            step();
            match wait(self.tid) {
                Ok(status) if wanted(&status) => break,
                // SIGSTOP cannot be blocked: the thread takes it, and the stop that follows.
                Ok(WaitStatus::Stopped(_, taken)) => signal = taken as i32,
                Ok(WaitStatus::PtraceEvent(..)) => signal = 0,
                _ => return Err(CheckpointError::Changed { pid, what: "was killed" }),
            }
        }
        step();
        Ok(())
    }

    /// Brings the thread to a stop from which the kernel restarts an interrupted call by itself.
    fn give_back(&self) -> Result<(), CheckpointError> {
        let pid = self.injector.frozen.pid();
        let rip = self.injector.stub + stub::HEAL;
        self.set_registers(&Registers { rip, orig_rax: u64::MAX, ..self.registers })?;
        ptrace::interrupt(self.tid).map_err(doing(pid, "stop a thread"))?;
        self.until(ptrace::resume, |status| matches!(status, WaitStatus::PtraceEvent(..)))?;
        ptrace::set_signal_mask(self.tid, self.mask).map_err(doing(pid, "set the signal mask"))?;
        step();
        self.set_registers(&self.registers)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // A thread that was killed meanwhile has nothing to come back to.
        let _ = self.give_back();
    }
}
