//! Refusing every `mremap` that grows.
//!
//! A clone maps its image from the pool's file, and the kernel lets a mapping of a file grow over
//! the file's next pages, which are another tenant's image. No check of the caller's code or memory
//! prevents that: a function can run code at any address, jump to any instruction, and change
//! memory between a check and the call. So the filter decides by the two lengths alone. They are in
//! registers, which cannot change after the filter has read them. Allocators fall back to copying.

use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_MISC, BPF_RET};
use libc::{BPF_TAX, BPF_W, BPF_X, ENOMEM, SECCOMP_RET_ERRNO};
use seccompiler::sock_filter;

/// Offsets in `struct seccomp_data`; a length is two words, the lower one first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const OLD_LENGTH: u32 = 24;
const NEW_LENGTH: u32 = 32;
const UPPER: u32 = 4;

const ARCH_X86_64: u32 = 0xc000_003e;
/// Upper word of 2^47, which no length in use reaches. The kernel rounds lengths up to whole pages,
/// and the largest ones to 0, which means "the same memory once more, with the new length".
const TOO_LONG: u32 = 0x8000;
const REFUSED: u32 = SECCOMP_RET_ERRNO | ENOMEM.unsigned_abs();

/// Instructions that precede the program for all calls.
pub const STEPS: [sock_filter; PASS] = [
    load(ARCHITECTURE),
    branch(1, BPF_JEQ | BPF_K, ARCH_X86_64, 2, PASS),
    load(NUMBER),
    branch(3, BPF_JEQ | BPF_K, libc::SYS_mremap as u32, 4, PASS),
    load(OLD_LENGTH + UPPER),
    branch(5, BPF_JGE | BPF_K, TOO_LONG, REFUSE, 6),
    step(BPF_MISC | BPF_TAX, 0),
    load(NEW_LENGTH + UPPER),
    branch(8, BPF_JGT | BPF_X, 0, REFUSE, 9),
    branch(9, BPF_JEQ | BPF_X, 0, 10, PASS),
    load(OLD_LENGTH),
    step(BPF_MISC | BPF_TAX, 0),
    load(NEW_LENGTH),
    branch(13, BPF_JGT | BPF_X, 0, REFUSE, PASS),
    step(BPF_RET | BPF_K, REFUSED),
];
const REFUSE: usize = 14;
const PASS: usize = 15;

const fn step(code: u32, operand: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k: operand }
}

const fn load(offset: u32) -> sock_filter {
    step(BPF_LD | BPF_W | BPF_ABS, offset)
}

/// A conditional jump at `here` to one of two steps.
const fn branch(here: usize, test: u32, operand: u32, yes: usize, no: usize) -> sock_filter {
    let (jt, jf) = ((yes - here - 1) as u8, (no - here - 1) as u8);
    sock_filter { code: (BPF_JMP | test) as u16, jt, jf, k: operand }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The steps' verdict on a call; `None` where the next program decides.
    fn verdict(architecture: u32, number: u32, old: u64, new: u64) -> Option<u32> {
        let word = |offset: u32| match offset {
            NUMBER => number,
            ARCHITECTURE => architecture,
            OLD_LENGTH => old as u32,
            NEW_LENGTH => new as u32,
            _ if offset == OLD_LENGTH + UPPER => (old >> 32) as u32,
            _ if offset == NEW_LENGTH + UPPER => (new >> 32) as u32,
            _ => panic!("the steps read offset {offset}"),
        };
        let (mut at, mut accumulator, mut index) = (0, 0, 0);
        while let Some(step) = STEPS.get(at) {
            at += 1;
            let code = u32::from(step.code);
            if code == BPF_LD | BPF_W | BPF_ABS {
                accumulator = word(step.k);
            } else if code == BPF_MISC | BPF_TAX {
                index = accumulator;
            } else if code == BPF_RET | BPF_K {
                return Some(step.k);
            } else {
                let operand = if code & BPF_X == 0 { step.k } else { index };
                let is_so = match code & !(BPF_JMP | BPF_X) {
                    BPF_JEQ => accumulator == operand,
                    BPF_JGT => accumulator > operand,
                    BPF_JGE => accumulator >= operand,
                    other => panic!("unknown test {other:#x}"),
                };
                at += usize::from(if is_so { step.jt } else { step.jf });
            }
        }
        assert_eq!(at, PASS, "the next program follows");
        None
    }

    const MREMAP: u32 = libc::SYS_mremap as u32;

    proptest! {
        #[test]
        fn a_call_is_refused_exactly_if_it_grows(old: u64, new: u64, near in -2i64..3, shift in 0u32..64) {
            let refused = |old, new| verdict(ARCH_X86_64, MREMAP, old, new);
            for (old, new) in [
                (old, new),
                (old >> shift, new >> shift),
                (old >> shift, (old >> shift).wrapping_add_signed(near)),
            ] {
                let expected = (new > old || old >= 1 << 47).then_some(REFUSED);
                prop_assert_eq!(refused(old, new), expected, "{:#x} to {:#x}", old, new);
            }
        }
    }

    #[test]
    fn lengths_that_the_kernel_rounds_to_nothing_are_refused() {
        for old in [0, u64::MAX, u64::MAX - 4094] {
            assert_eq!(verdict(ARCH_X86_64, MREMAP, old, 4096), Some(REFUSED), "{old:#x}");
        }
    }

    #[test]
    fn other_calls_are_left_to_the_next_program() {
        assert_eq!(verdict(ARCH_X86_64, MREMAP + 1, 1, 2), None);
        assert_eq!(verdict(ARCH_X86_64 + 1, MREMAP, 1, 2), None);
        assert_eq!(verdict(ARCH_X86_64, MREMAP | 0x4000_0000, 1, 2), None, "x32, which is denied");
    }
}
