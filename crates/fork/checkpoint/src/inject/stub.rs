//! The few instructions that a process runs on behalf of its checkpointer, and that bring a thread
//! back by themselves when the checkpointer is killed in the middle.
//!
//! They lie in the unused end of the vDSO's last page, written with the debugger's right to change
//! a private copy of any page: no mapping has to be made before the first call. What a thread
//! needs to find back stands beside them, so that whatever the checkpointer did last, letting go
//! of the thread lets it run on into its own state:
//!
//! ```text
//!   magic
//!   call:   syscall                 ─► the tracer stops the thread here, or is dead:
//!   heal:   munmap(scratch, 4096)
//!           rt_sigprocmask(SIG_SETMASK, &mask)
//!           mov rdi, rsi, rdx, r10, r8, r9, rcx, r11, rax
//!           jmp  target             the interrupted instruction, or its `syscall` again
//!   data:   scratch, mask, rdi, rsi, rdx, r10, r8, r9, rcx, r11, rax, target
//! ```
//! Invariants: neither the stack pointer, nor the flags, nor a vector register ever changes, so a
//! signal handler that runs in the middle runs as it would have; none of the instructions touches
//! what the kernel keeps for a call that it is going to restart.

use farfork_sys::ptrace::Registers;

/// First word, by which the next checkpointer recognises what a killed one has left.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ffcalls1");
/// Bytes of a scratch area, as the code has it.
pub const SCRATCH_BYTES: u64 = 4096;
/// Where in a scratch area its mark is: [`MAGIC`] once more.
pub const SCRATCH_MARK: u64 = SCRATCH_BYTES - 8;
/// Where the instruction is that makes a call.
pub const CALL: u64 = 8;
/// Where a thread goes that has no call to make.
pub const HEAL: u64 = 10;
/// What stands for no scratch area: no address that the kernel would unmap.
pub const NO_SCRATCH: u64 = 1;

/// Instructions before an operand that is the distance to a word of the data, and the word.
const CODE: [(&[u8], Option<usize>); 17] = [
    (&[0x0f, 0x05], None),                                           // syscall
    (&[0xb8, 11, 0, 0, 0], None),                                    // mov eax, SYS_munmap
    (&[0x48, 0x8b, 0x3d], Some(0)),                                  // mov rdi, [scratch]
    (&[0xbe, 0x00, 0x10, 0, 0, 0x0f, 0x05], None),                   // mov esi, 4096; syscall
    (&[0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0], None),                  // rt_sigprocmask, SIG_SETMASK
    (&[0x48, 0x8d, 0x35], Some(1)),                                  // lea rsi, [mask]
    (&[0xba, 0, 0, 0, 0, 0x41, 0xba, 8, 0, 0, 0, 0x0f, 0x05], None), // edx 0, r10d 8; syscall
    (&[0x48, 0x8b, 0x3d], Some(2)),                                  // mov rdi
    (&[0x48, 0x8b, 0x35], Some(3)),                                  // mov rsi
    (&[0x48, 0x8b, 0x15], Some(4)),                                  // mov rdx
    (&[0x4c, 0x8b, 0x15], Some(5)),                                  // mov r10
    (&[0x4c, 0x8b, 0x05], Some(6)),                                  // mov r8
    (&[0x4c, 0x8b, 0x0d], Some(7)),                                  // mov r9
    (&[0x48, 0x8b, 0x0d], Some(8)),                                  // mov rcx
    (&[0x4c, 0x8b, 0x1d], Some(9)),                                  // mov r11
    (&[0x48, 0x8b, 0x05], Some(10)),                                 // mov rax
    (&[0xff, 0x25], Some(11)),                                       // jmp [target]
];

/// Words of the data.
const WORDS: usize = 12;
/// Where the data begins.
pub const DATA: u64 = 128;
/// Bytes of the whole.
pub const BYTES: u64 = DATA + 8 * WORDS as u64;

/// Results that tell the kernel to restart a call after a stop, and never reach a program.
pub const RESTARTS: [i64; 4] = [-512, -513, -514, RESTART_BLOCK];
/// The same, where the kernel has kept what is left of the call.
pub const RESTART_BLOCK: i64 = -516;

/// The magic and the instructions.
pub fn code() -> Vec<u8> {
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    for (instruction, operand) in CODE {
        bytes.extend(instruction);
        if let Some(word) = operand {
            let next = bytes.len() as u64 + 4;
            let distance = DATA + 8 * word as u64 - next;
            bytes.extend((distance as u32).to_le_bytes());
        }
    }
    bytes.resize(DATA as usize, 0);
    bytes
}

/// The data with which a thread that was stopped with `registers` and `mask` finds back.
pub fn data(scratch: u64, mask: u64, registers: &Registers) -> [u64; WORDS] {
    let r = registers;
    let (rax, rip) = resumption(registers);
    [scratch, mask, r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9, r.rcx, r.r11, rax, rip]
}

/// `rax` and `rip` with which the thread does what the kernel would have had it do: an interrupted
/// call is made again.
fn resumption(registers: &Registers) -> (u64, u64) {
    let is_call = (registers.orig_rax as i64) >= 0;
    match registers.rax as i64 {
        result if !is_call || !RESTARTS.contains(&result) => (registers.rax, registers.rip),
        RESTART_BLOCK => (libc::SYS_restart_syscall as u64, registers.rip - 2),
        _ => (registers.orig_rax, registers.rip - 2),
    }
}

/// Offset in the vDSO at which there is room, or where a killed checkpointer has left the same.
pub fn place(vdso: &[u8]) -> Option<usize> {
    let left = vdso.chunks_exact(8).position(|word| word == MAGIC.to_le_bytes());
    if let Some(index) = left {
        return Some(8 * index).filter(|at| at + BYTES as usize <= vdso.len());
    }
    let start = vdso.len().checked_sub(BYTES as usize)? / 8 * 8;
    vdso[start..].iter().all(|byte| *byte == 0).then_some(start)
}

/// The scratch area of a killed checkpointer, if this is what one has left; it may be gone.
pub fn left_scratch(stub: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(stub.get(at..at + 8)?.try_into().ok()?));
    let page = word(DATA as usize).filter(|page| page % SCRATCH_BYTES == 0 && *page != 0);
    page.filter(|_| word(0) == Some(MAGIC))
}

const _: () = assert!(DATA.is_multiple_of(8) && BYTES.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_fits_before_its_data() {
        let length: usize = CODE
            .iter()
            .map(|(bytes, operand)| bytes.len() + 4 * usize::from(operand.is_some()))
            .sum();
        assert_eq!((8 + length).next_multiple_of(8), DATA as usize);
        assert_eq!(code()[CALL as usize..HEAL as usize], [0x0f, 0x05]);
    }

    #[test]
    fn there_is_room_only_where_nothing_is() {
        let mut vdso = vec![0u8; 8192];
        assert_eq!(place(&vdso), Some(8192 - BYTES as usize));
        vdso[8191] = 1;
        assert_eq!(place(&vdso), None);
        vdso[1024..1032].copy_from_slice(&MAGIC.to_le_bytes());
        assert_eq!(place(&vdso), Some(1024));
        assert_eq!(place(&[0; 64]), None);
    }
}
