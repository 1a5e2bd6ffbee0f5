//! Restartable sequences that a thread was stopped in.
//!
//! The kernel aborts such a sequence when the thread next returns to user code. But calls are made
//! on the thread's behalf first, and the kernel then sees it return to somewhere outside the
//! sequence, takes it for left, and forgets it: the thread, and every clone, would go on in the
//! middle of a sequence that is no longer guarded. So it is aborted here, as the kernel would.
//!
//! Invariant: at every step the thread runs on rightly if this process dies: as long as it stands
//! in the sequence, its area names the sequence.

use farfork_pool::failpoint::step;
use farfork_sys::ptrace::{self, Registers, RseqConfiguration};
use farfork_sys::{memory, xstate};

use crate::error::{CheckpointError, doing};
use crate::stopped::StoppedProcess;

/// Offset of `rseq_cs` in `struct rseq`.
const SECTION_OFFSET: u64 = 8;

/// `struct rseq_cs`.
#[derive(Clone, Copy, Debug)]
struct Section {
    version: u32,
    flags: u32,
    start: u64,
    bytes: u64,
    abort: u64,
}

/// Aborts the restartable sequence of every thread that stands in one.
pub fn abort(stopped: &StoppedProcess) -> Result<(), CheckpointError> {
    let pid = stopped.pid();
    for tid in stopped.tids() {
        // Linux 5.13; without it nothing is known of sequences.
        let registered = ptrace::rseq_configuration(*tid).unwrap_or_default();
        if registered.address == 0 {
            continue;
        }
        let registers = ptrace::registers(*tid).map_err(doing(pid, "read the registers"))?;
        let section = section(pid, &registered).filter(|section| section.holds(registers.rip));
        if let Some(section) = section.filter(|section| section.is_abortable(pid, &registered)) {
            leave(pid, *tid, &registered, Registers { rip: section.abort, ..registers })?;
        }
    }
    Ok(())
}

fn leave(
    pid: i32,
    tid: i32,
    registered: &RseqConfiguration,
    registers: Registers,
) -> Result<(), CheckpointError> {
    // A sequence holds no system call that could be restarted.
    let registers = Registers { orig_rax: u64::MAX, ..registers };
    ptrace::set_registers(tid, &registers).map_err(doing(pid, "set the registers"))?;
    step();
    ptrace::poke(tid, registered.address + SECTION_OFFSET, &[0; 8])
        .map_err(doing(pid, "write to the memory"))?;
    step();
    Ok(())
}

/// The sequence that the thread has announced, if it has.
fn section(pid: i32, registered: &RseqConfiguration) -> Option<Section> {
    let mut address = [0u8; 8];
    read(pid, registered.address + SECTION_OFFSET, &mut address)?;
    let address = Some(u64::from_le_bytes(address)).filter(|address| *address != 0)?;
    let mut bytes = [0u8; 32];
    read(pid, address, &mut bytes)?;
    let word = |index: usize| xstate::word(&bytes, 8 * index);
    let (version, flags) = (word(0) as u32, (word(0) >> 32) as u32);
    Some(Section { version, flags, start: word(1), bytes: word(2), abort: word(3) })
}

/// What is not there to be read is the kernel's to complain about.
fn read(pid: i32, address: u64, to: &mut [u8]) -> Option<()> {
    let got = memory::read(pid, address, to).ok()?;
    (got == to.len()).then_some(())
}

impl Section {
    fn holds(&self, rip: u64) -> bool {
        rip.wrapping_sub(self.start) < self.bytes
    }

    /// Whether the kernel would abort it. It kills a thread whose sequence is malformed, and so it
    /// may, without help; flags, which once kept it from aborting, are among that since 6.0.
    fn is_abortable(&self, pid: i32, registered: &RseqConfiguration) -> bool {
        let mut signature = [0u8; 4];
        let is_signed = read(pid, self.abort.wrapping_sub(4), &mut signature).is_some()
            && u32::from_le_bytes(signature) == registered.signature;
        self.version == 0 && self.flags == 0 && !self.holds(self.abort) && is_signed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_holds_its_first_instruction_and_not_the_one_after_its_last() {
        let section = Section { version: 0, flags: 0, start: 100, bytes: 8, abort: 200 };
        let held = [99, 100, 107, 108, 200].map(|rip| section.holds(rip));
        assert_eq!(held, [false, true, true, false, false]);
    }
}
