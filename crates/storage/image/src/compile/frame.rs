//! The signal frame through which a thread leaves for the parent's code.
//!
//! ```text
//!  frame ─► struct ucontext { flags, link, stack, sigcontext, sigmask }
//!                                                  └─ fpstate ─► XSAVE area, then a magic word
//! ```
//! `rt_sigreturn` restores general and vector registers, the signal mask and the alternate stack
//! from it, so the plan needs no op for any of them.

use farfork_sys::xstate;

use super::arena::Arena;
use crate::model::Thread;

const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;

const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;

/// Puts the frame of `thread` in and returns the address of its `ucontext`.
pub fn put(thread: &Thread, arena: &mut Arena) -> u64 {
    let fpstate = arena.put(&fpstate(&thread.xstate), 64);
    let mut words = vec![
        UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS,
        0, // link
        thread.alternate_stack.0,
        u64::from(thread.alternate_stack.1),
        thread.alternate_stack.2,
    ];
    words.extend(sigcontext(&thread.registers, fpstate));
    words.push(thread.signal_mask);
    arena.words(&words)
}

/// `struct sigcontext`, 32 words.
fn sigcontext(registers: &[u64], fpstate: u64) -> Vec<u64> {
    use farfork_plan::register::*;
    let order =
        [R8, R9, R10, R11, R12, R13, R14, R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP, EFLAGS];
    let mut words: Vec<u64> = order.iter().map(|index| registers[*index]).collect();
    words.push(registers[CS] & 0xffff | (registers[SS] & 0xffff) << 48);
    words.extend([0, 0, 0, 0]); // err, trapno, oldmask, cr2
    words.push(fpstate);
    words.extend([0; 8]);
    words
}

/// The XSAVE area without AMX, as the kernel writes it to a signal stack.
fn fpstate(xstate: &[u8]) -> Vec<u8> {
    let features = xstate::word(xstate, xstate::XCR0_OFFSET) & !xstate::AMX;
    let bytes = xstate::bytes_for(features).min(xstate.len());
    let mut area = xstate[..bytes].to_vec();
    let present = xstate::word(&area, xstate::PRESENT_OFFSET) & features;
    area[xstate::PRESENT_OFFSET..xstate::PRESENT_OFFSET + 8]
        .copy_from_slice(&present.to_le_bytes());
    let mut software = [0u8; 48];
    software[..4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&(bytes as u32 + 4).to_le_bytes());
    software[8..16].copy_from_slice(&features.to_le_bytes());
    software[16..20].copy_from_slice(&(bytes as u32).to_le_bytes());
    area[xstate::XCR0_OFFSET..xstate::XCR0_OFFSET + 48].copy_from_slice(&software);
    area.extend(FP_XSTATE_MAGIC2.to_le_bytes());
    area
}
