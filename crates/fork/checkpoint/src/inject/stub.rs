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
//!   heal:   r8d = 1; jmp back       the interrupted call is made again
//!           jmp  heal               where the kernel restarts a call of a parked thread
//!   park:   r8d = 0                 a call of a parked thread was interrupted, or there was none
//!   back:   munmap(scratch, 4096)
//!           rt_sigprocmask(SIG_SETMASK, &mask)
//!           mov rdi, rsi, rdx, r10, r9, r11
//!           r8 != 0:  mov r8, rcx, rax;  jmp target     the interrupted call again
//!           r8 == 0:  mov r8, rcx, late; jmp rip        behind the interrupted call
//!   fork:   syscall (clone)         in the parent: jmp heal; in the copy:
//!           jmp  end
//!   last:   syscall                 a call of the copy
//!   end:    exit_group              the copy never runs the process's own code
//!   data:   scratch, mask, rdi, rsi, rdx, r10, r8, r9, rcx, r11, rax, target, late, rip, and for
//!           the next checkpointer: result, orig_rax, tid
//! ```
//! Invariants: neither the stack pointer, nor the flags, nor a vector register ever changes, so a
//! signal handler that runs in the middle runs as it would have, and the thread's own registers
//! follow from the data and its registers at any instruction; no instruction touches what the
//! kernel keeps for a call that it is going to restart. A thread is parked with its own mask, and
//! with `rax` and `orig_rax` as they were: the kernel then does with an interrupted call and a
//! signal what it would have done.

use farfork_sys::ptrace::Registers;

/// First word, by which the next checkpointer recognises the stub of a killed one.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ffcalls3");
/// Bytes of a scratch area, as the code has it.
pub const SCRATCH_BYTES: u64 = 4096;
/// Where in a scratch area its mark is: [`MAGIC`] once more.
pub const SCRATCH_MARK: u64 = SCRATCH_BYTES - 8;
/// Where the instruction is that makes a call.
pub const CALL: u64 = 8;
/// Where a thread goes that has no more calls to make.
pub const HEAL: u64 = 10;
/// Where a thread is left that cannot run now, with its own mask, `rax` and `orig_rax`.
pub const PARK: u64 = 20;
/// Where the instruction is that forks a copy of the process.
pub const FORK: u64 = 176;
/// Where the instruction is that makes a call of the copy, which exits after it unless it is stopped.
pub const LAST: u64 = FORK + 11;
/// Exit code of a copy whose tracer died.
pub const ABANDONED: i32 = 94;
/// What stands for no scratch area: no address that the kernel would unmap.
pub const NO_SCRATCH: u64 = 1;

/// Instructions before an operand that is the distance to a word of the data, and the word.
const CODE: [(&[u8], Option<usize>); 28] = [
    (&[0x0f, 0x05], None),                                           // syscall
    (&[0x41, 0xb8, 1, 0, 0, 0, 0xeb, 0x08], None),                   // mov r8d, 1; jmp back
    (&[0xeb, 0xf6], None),                                           // jmp heal
    (&[0x41, 0xb8, 0, 0, 0, 0], None),                               // mov r8d, 0
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
    (&[0x4c, 0x8b, 0x0d], Some(7)),                                  // mov r9
    (&[0x4c, 0x8b, 0x1d], Some(9)),                                  // mov r11
    (&[0x4c, 0x89, 0xc1, 0xe3, 0x1b, 0x4c, 0x8b, 0x05], Some(6)),    // rcx = r8; jrcxz; mov r8
    (&[0x48, 0x8b, 0x0d], Some(8)),                                  // mov rcx
    (&[0x48, 0x8b, 0x05], Some(10)),                                 // mov rax
    (&[0xff, 0x25], Some(11)),                                       // jmp [target]
    (&[0x4c, 0x8b, 0x05], Some(6)),                                  // mov r8
    (&[0x48, 0x8b, 0x0d], Some(8)),                                  // mov rcx
    (&[0x48, 0x8b, 0x05], Some(12)),                                 // mov rax, [late]
    (&[0xff, 0x25], Some(13)),                                       // jmp [rip]
    (&[0x0f, 0x05, 0x89, 0xc1, 0xe3, 0x07], None), // syscall; ecx = eax; jrcxz end
    (&[0xe9, 0x4f, 0xff, 0xff, 0xff], None),       // jmp heal
    (&[0x0f, 0x05], None),                         // syscall
    // mov edi, ABANDONED; mov eax, SYS_exit_group; syscall; ud2
    (&[0xbf, ABANDONED as u8, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b], None),
];

/// Words of the data.
const WORDS: usize = 17;
/// Where the data begins.
pub const DATA: u64 = 208;
/// Where the id of the thread is whose data this is; 0 if no thread needs it.
pub const OWNER: u64 = DATA + 8 * (WORDS as u64 - 1);
/// Bytes of the whole.
pub const BYTES: u64 = DATA + 8 * WORDS as u64;

/// Results that make the kernel restart a call after a stop. They never reach a program.
pub const RESTARTS: [i64; 4] = [-512, -513, -514, RESTART_BLOCK];
/// The same, where the kernel has kept what is left of the call.
pub const RESTART_BLOCK: i64 = -516;
const EINTR: u64 = -(libc::EINTR as i64) as u64;

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

/// The data from which a thread restores its own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data([u64; WORDS]);

impl Data {
    /// For thread `tid`, which was stopped with `registers` and `mask`.
    pub fn new(tid: i32, scratch: u64, mask: u64, registers: &Registers) -> Data {
        let r = registers;
        let ((rax, target), late) = (resumption(r), if is_restarted(r) { EINTR } else { r.rax });
        Data([
            scratch, mask, r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9, r.rcx, r.r11, rax, target, late,
            r.rip, r.rax, r.orig_rax, tid as u64,
        ])
    }

    /// That of a stub, if this is one.
    pub fn read(stub: &[u8]) -> Option<Data> {
        let words = stub.get(DATA as usize..BYTES as usize)?.chunks_exact(8);
        let mut words = words.map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let data = Data(std::array::from_fn(|_| words.next().unwrap_or(0)));
        Some(data).filter(|_| stub.starts_with(&MAGIC.to_le_bytes()))
    }

    /// As it lies in the stub, up to the owner.
    pub fn bytes(&self) -> Vec<u8> {
        self.0[..WORDS - 1].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The thread, unless none needs this any more.
    pub fn owner(&self) -> Option<i32> {
        Some(self.0[WORDS - 1] as i32).filter(|tid| *tid != 0)
    }

    /// The scratch area, if there may be one.
    pub fn scratch(&self) -> Option<u64> {
        Some(self.0[0]).filter(|page| page % SCRATCH_BYTES == 0 && *page != 0)
    }

    /// The thread's own mask.
    pub fn mask(&self) -> u64 {
        self.0[1]
    }

    /// The thread's own registers, from those that it has in the stub.
    pub fn own(&self, now: &Registers) -> Registers {
        let [_, _, rdi, rsi, rdx, r10, r8, r9, rcx, r11, _, _, _, rip, rax, orig_rax, _] = self.0;
        Registers { rdi, rsi, rdx, r10, r8, r9, rcx, r11, rip, rax, orig_rax, ..*now }
    }
}

/// Whether the kernel would restart the call that the thread was interrupted in.
fn is_restarted(registers: &Registers) -> bool {
    (registers.orig_rax as i64) >= 0 && RESTARTS.contains(&(registers.rax as i64))
}

/// `rax` and `rip` with which the thread does what the kernel would have had it do: an interrupted
/// call is made again.
fn resumption(registers: &Registers) -> (u64, u64) {
    match registers.rax as i64 {
        _ if !is_restarted(registers) => (registers.rax, registers.rip),
        RESTART_BLOCK => (libc::SYS_restart_syscall as u64, registers.rip - 2),
        _ => (registers.orig_rax, registers.rip - 2),
    }
}

/// Offsets in the vDSO at which there is room, or where killed checkpointers have left the same.
pub fn places(vdso: &[u8]) -> impl Iterator<Item = usize> {
    let starts = (1..).map_while(|number| vdso.len().checked_sub(number * BYTES as usize));
    starts.map(|at| at / 8 * 8).take_while(|at| {
        let place = &vdso[*at..*at + BYTES as usize];
        place.starts_with(&MAGIC.to_le_bytes()) || place.iter().all(|byte| *byte == 0)
    })
}

const _: () = assert!(DATA.is_multiple_of(8) && BYTES.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(orig_rax: u64, result: i64) -> Registers {
        let [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8] =
            std::array::from_fn(|index| 100 + index as u64);
        let [rcx, rdx, rsi, rdi, rip, cs, eflags, rsp, ss] =
            std::array::from_fn(|index| 200 + index as u64);
        let [fs_base, gs_base, ds, es, fs, gs] = std::array::from_fn(|index| 300 + index as u64);
        #[rustfmt::skip]
        return Registers {
            r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax: result as u64, rcx, rdx, rsi, rdi,
            orig_rax, rip, cs, eflags, rsp, ss, fs_base, gs_base, ds, es, fs, gs,
        };
    }

    #[test]
    fn the_code_fits_before_its_data() {
        let length: usize = CODE
            .iter()
            .map(|(bytes, operand)| bytes.len() + 4 * usize::from(operand.is_some()))
            .sum();
        assert_eq!((8 + length).next_multiple_of(8), DATA as usize);
        let code = code();
        assert_eq!(code[CALL as usize..HEAL as usize], [0x0f, 0x05]);
        // The jumps lead to where the instructions are.
        let jump = |at: usize| (at + 2).wrapping_add_signed(code[at + 1] as i8 as isize);
        assert_eq!(code[HEAL as usize..][..2], [0x41, 0xb8]);
        assert_eq!(jump(16), 26);
        assert_eq!(code[26..31], [0xb8, 11, 0, 0, 0]);
        assert_eq!((PARK - 2, jump(18)), (18, HEAL as usize));
        assert_eq!(code[PARK as usize..][..3], [0x41, 0xb8, 0]);
        let branch = code.windows(2).position(|pair| pair == [0xe3, 0x1b]).unwrap();
        assert_eq!(code[jump(branch)..][..3], [0x4c, 0x8b, 0x05]);
        assert_eq!(code[jump(branch) - 6..][..2], [0xff, 0x25]);
        // After a fork the parent heals, and the copy exits.
        let [fork, last] = [FORK as usize, LAST as usize];
        assert_eq!(
            (&code[fork..fork + 2], &code[last..last + 2]),
            (&[0x0f, 0x05][..], &[0x0f, 0x05][..])
        );
        assert_eq!((code[fork + 4], jump(fork + 4)), (0xe3, last + 2));
        assert_eq!((code[fork + 6], code[last + 2]), (0xe9, 0xbf));
        let distance = i32::from_le_bytes(code[fork + 7..last].try_into().unwrap());
        assert_eq!(last.wrapping_add_signed(distance as isize), HEAL as usize);
    }

    #[test]
    fn there_is_room_only_where_nothing_is() {
        let all = |vdso: &[u8]| places(vdso).collect::<Vec<_>>();
        let bytes = BYTES as usize;
        let mut vdso = vec![0u8; 4 * bytes];
        vdso[bytes + 3] = 1;
        assert_eq!(all(&vdso), [3 * bytes, 2 * bytes]);
        vdso[3 * bytes..3 * bytes + 8].copy_from_slice(&MAGIC.to_le_bytes());
        vdso[4 * bytes - 1] = 1;
        assert_eq!(all(&vdso), [3 * bytes, 2 * bytes]);
        vdso[3 * bytes] = 0;
        assert_eq!(all(&vdso), [0; 0]);
        assert_eq!(all(&[0; 64]), [0; 0]);
    }

    #[test]
    fn a_thread_finds_back_to_the_registers_that_it_had() {
        for (number, result) in [(u64::MAX, 7), (0, -512), (35, RESTART_BLOCK), (1, 1), (1, -4)] {
            let own = registers(number, result);
            let data = Data::new(9, NO_SCRATCH, 3, &own);
            let stub = [code(), data.bytes(), 9u64.to_le_bytes().to_vec()].concat();
            assert_eq!(Data::read(&stub), Some(data));
            assert_eq!((data.owner(), data.mask(), data.scratch()), (Some(9), 3, None));
            let [rdi, rsi, rdx, r10, r8, r9, rcx, r11, rax, rip] = [5; 10];
            let within =
                Registers { rdi, rsi, rdx, r10, r8, r9, rcx, r11, rax, rip, orig_rax: 5, ..own };
            let words = farfork_sys::ptrace::words;
            assert_eq!(words(&data.own(&within)), words(&own));
        }
    }

    #[test]
    fn an_interrupted_call_is_made_again_or_returns_that_it_was() {
        let tail = |number, result| Data::new(9, NO_SCRATCH, 0, &registers(number, result)).0;
        let rip = registers(0, 0).rip;
        assert_eq!(tail(0, -512)[10..14], [0, rip - 2, EINTR, rip]);
        assert_eq!(tail(35, RESTART_BLOCK)[10..14], [219, rip - 2, EINTR, rip]);
        assert_eq!(tail(u64::MAX, -512)[10..14], [-512i64 as u64, rip, -512i64 as u64, rip]);
        assert_eq!(tail(1, 8)[10..14], [8, rip, 8, rip]);
    }
}
