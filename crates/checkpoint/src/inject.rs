//! Having a stopped thread make system calls, for what the kernel tells only to the process
//! itself.

use farfork_sys::memory;
use farfork_sys::ptrace::{self, Registers};
use nix::sys::wait::WaitStatus;

use crate::error::{CheckpointError, doing};
use crate::freeze::{Frozen, wait};

const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
const SCRATCH_BYTES: u64 = 4096;

/// The means to make calls in a frozen process: a `syscall` instruction of its vDSO and a page of
/// scratch memory. Dropping it takes the page away again.
pub struct Injector<'f> {
    frozen: &'f Frozen,
    instruction: u64,
    scratch: u64,
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
        let instruction = find_instruction(frozen.pid(), vdso)?;
        let mut injector = Injector { frozen, instruction, scratch: 0 };
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let args = [0, SCRATCH_BYTES, prot, flags, u64::MAX, 0];
        let page = injector.lend(frozen.pid())?.call(libc::SYS_mmap, args)?;
        injector.scratch = page;
        Ok(injector)
    }

    /// Address of the scratch page.
    pub fn scratch(&self) -> u64 {
        self.scratch
    }

    /// Borrows a thread.
    pub fn lend(&self, tid: i32) -> Result<Lent<'_>, CheckpointError> {
        let kernel = |what| doing(self.frozen.pid(), what);
        let registers = ptrace::registers(tid).map_err(kernel("read the registers"))?;
        let mask = ptrace::signal_mask(tid).map_err(kernel("read the signal mask"))?;
        // No handler may run on borrowed registers.
        ptrace::set_signal_mask(tid, u64::MAX).map_err(kernel("set the signal mask"))?;
        Ok(Lent { injector: self, tid, registers, mask })
    }

    /// Reads words that a call has left in the scratch page.
    pub fn words<const N: usize>(&self) -> Result<[u64; N], CheckpointError> {
        let mut bytes = vec![0u8; 8 * N];
        memory::read(self.frozen.pid(), self.scratch, &mut bytes)
            .map_err(doing(self.frozen.pid(), "read the memory"))?;
        Ok(std::array::from_fn(|i| farfork_sys::xstate::word(&bytes, 8 * i)))
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        if self.scratch != 0
            && let Ok(leader) = self.lend(self.frozen.pid())
        {
            let _ = leader.call(libc::SYS_munmap, [self.scratch, SCRATCH_BYTES, 0, 0, 0, 0]);
        }
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
        let rip = self.injector.instruction;
        // orig_rax = -1 keeps the kernel from restarting the call that was interrupted.
        let (rax, orig_rax) = (nr as u64, u64::MAX);
        let registers =
            Registers { rdi, rsi, rdx, r10, r8, r9, rip, rax, orig_rax, ..self.registers };
        ptrace::set_registers(self.tid, &registers).map_err(doing(pid, "set the registers"))?;
        ptrace::step(self.tid).map_err(doing(pid, "step a thread"))?;
        match wait(self.tid) {
            Ok(WaitStatus::Stopped(..)) => {}
            _ => return Err(CheckpointError::Changed { pid, what: "was killed" }),
        }
        let after = ptrace::registers(self.tid).map_err(doing(pid, "read the registers"))?;
        Ok(after.rax as i64)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // With its own registers back, the kernel restarts the interrupted call by itself.
        let _ = ptrace::set_registers(self.tid, &self.registers);
        let _ = ptrace::set_signal_mask(self.tid, self.mask);
    }
}

fn find_instruction(pid: i32, vdso: (u64, u64)) -> Result<u64, CheckpointError> {
    let mut code = vec![0u8; (vdso.1 - vdso.0) as usize];
    memory::read(pid, vdso.0, &mut code).map_err(doing(pid, "read the vDSO"))?;
    code.windows(2)
        .position(|bytes| bytes == SYSCALL_INSTRUCTION)
        .map(|at| vdso.0 + at as u64)
        .ok_or(CheckpointError::Proc { pid, what: "a system call instruction" })
}
