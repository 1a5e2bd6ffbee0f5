//! Having a forked process answer its own call.
//!
//! Nothing can be mapped in another address space from outside. But a process that the clone has
//! forked holds a copy of this very program in its window, so its thread is sent there for a
//! moment, by `ptrace`, and does for itself what the init does for the clone:
//!
//! ```text
//!  init                          thread of the forked process
//!  SEIZE, INTERRUPT              held in its system call
//!  answer 0                 ──►  returns, stops before user code
//!  registers := `perform`   ──►  runs here, on the init's stack in its own copy of the window
//!  result        ◄── int3 ──     stops
//!  registers := saved, rax := result, DETACH
//! ```

use core::arch::asm;

use linux_raw_sys::general as k;

use super::notify::Answer;
use super::{CONTEXT, Supervisor};
use crate::call::{Errno, SysResult, syscall};
use crate::maps::AddressSpace;

const SEIZE: u64 = 0x4206;
const INTERRUPT: u64 = 0x4207;
const GET_REGISTERS: u64 = 12;
const SET_REGISTERS: u64 = 13;
const GET_SIGNAL_MASK: u64 = 0x420a;
const SET_SIGNAL_MASK: u64 = 0x420b;
const CONTINUE: u64 = 7;
const DETACH: u64 = 17;
const WALL: u64 = 0x4000_0000;

/// Indices in `user_regs_struct`.
mod register {
    pub const R9: usize = 8;
    pub const R8: usize = 9;
    pub const RAX: usize = 10;
    pub const RCX: usize = 11;
    pub const RDX: usize = 12;
    pub const RSI: usize = 13;
    pub const RDI: usize = 14;
    pub const ORIG_RAX: usize = 15;
    pub const RIP: usize = 16;
    pub const RSP: usize = 19;
}

type Registers = [u64; 27];

/// A thread on its way into this program. Letting go of it needs its stop first.
pub struct Visitor {
    tid: u64,
}

impl Visitor {
    /// Takes hold of a thread that waits for the answer to a call; nothing where that is not
    /// allowed, as when a debugger has it.
    pub fn seize(tid: u32) -> Option<Visitor> {
        let visitor = Visitor { tid: u64::from(tid) };
        visitor.request(SEIZE, 0, 0).ok()?;
        visitor.request(INTERRUPT, 0, 0).ok()?;
        Some(visitor)
    }

    /// After the call has been answered: has the thread perform it, and lets it go with the
    /// result. A thread that is killed meanwhile needs nothing more.
    pub fn perform(self, nr: u32, args: [u64; 6]) {
        let _ = self.try_perform(nr, args);
        let _ = self.request(DETACH, 0, 0);
    }

    fn try_perform(&self, nr: u32, args: [u64; 6]) -> SysResult {
        self.await_stop()?;
        let (mut own, mut mask) = ([0u64; 27], 0u64);
        self.request(GET_REGISTERS, 0, own.as_mut_ptr() as u64)?;
        self.request(GET_SIGNAL_MASK, 8, &raw mut mask as u64)?;
        let none = u64::MAX;
        self.request(SET_SIGNAL_MASK, 8, &raw const none as u64)?;
        self.request(SET_REGISTERS, 0, entry(own, nr, args).as_ptr() as u64)?;
        self.request(CONTINUE, 0, 0)?;
        self.await_stop()?;
        let mut after = [0u64; 27];
        self.request(GET_REGISTERS, 0, after.as_mut_ptr() as u64)?;
        own[register::RAX] = after[register::RAX];
        own[register::ORIG_RAX] = u64::MAX;
        self.request(SET_REGISTERS, 0, own.as_ptr() as u64)?;
        self.request(SET_SIGNAL_MASK, 8, &raw const mask as u64)
    }

    fn await_stop(&self) -> SysResult {
        let mut status = 0i32;
        // SAFETY: the kernel writes the wait status.
        unsafe { syscall(k::__NR_wait4, [self.tid, &raw mut status as u64, WALL, 0]) }?;
        if status & 0xff == 0x7f { Ok(0) } else { Err(Errno(0)) }
    }

    fn request(&self, what: u64, address: u64, data: u64) -> SysResult {
        // SAFETY: the pointers among the arguments are to locals of the callers, of the size
        // that each request takes.
        unsafe { syscall(k::__NR_ptrace, [what, self.tid, address, data]) }
    }
}

/// Registers that enter [`perform`] with the call as its arguments.
fn entry(own: Registers, nr: u32, args: [u64; 6]) -> Registers {
    use register::*;
    let mut registers = own;
    registers[RIP] = perform as *const () as u64;
    // As after a call: the address that would be returned to takes eight bytes.
    registers[RSP] = crate::stack_top() - 8;
    registers[ORIG_RAX] = u64::MAX;
    registers[RDI] = u64::from(nr);
    registers[RSI] = args[0];
    registers[RDX] = args[1];
    registers[RCX] = args[2];
    registers[R8] = args[3];
    registers[R9] = args[4];
    registers
}

/// Runs in the forked process. No handed-over call but `mremap` has a use for a sixth argument.
extern "C" fn perform(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64) -> ! {
    let args = [a, b, c, d, e, 0];
    let result = match AddressSpace::open(b"/proc/self/maps\0") {
        Ok(maps) => {
            // SAFETY: set by the init before the clone was started, copied with the fork.
            let context = unsafe { *CONTEXT.get() };
            let own = Supervisor { listener: -1, child_events: -1, maps, context, process: 0 };
            let result = own.perform(nr as u32, args);
            maps.close();
            result
        }
        Err(errno) => Err(errno),
    };
    let value = result.unwrap_or_else(|errno| -i64::from(errno.0) as u64);
    // SAFETY: stops for the init, which sets all registers before it lets the thread go.
    unsafe { asm!("int3", "ud2", in("rax") value, options(noreturn)) }
}

impl Supervisor {
    /// Performs a call of the process that this runs in.
    fn perform(&self, nr: u32, args: [u64; 6]) -> SysResult {
        // SAFETY: gettid has no effects.
        let tid = unsafe { syscall(k::__NR_gettid, []) }? as u32;
        match self.decide_own(nr, tid, args) {
            // SAFETY: the call is the caller's own, made from here instead of from where it was.
            Answer::Kernel => unsafe { syscall(nr, args) },
            Answer::Done(value) => Ok(value),
            Answer::Fail(errno) => Err(errno),
        }
    }
}
