//! What a seccomp filter says to a call: an interpreter of classic BPF as the kernel admits it for
//! seccomp (`seccomp_check_filter`). Not all of a call has to be known for that: most filters look at
//! no more than its number.

use farfork_plan::{filter, window};

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_LOG: u32 = 0x7ffc_0000;
const RET_USER_NOTIF: u32 = 0x7fc0_0000;
const ACTION: u32 = 0xffff_0000;

struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

fn decode(word: u64) -> Instruction {
    let [a, b, if_true, if_false, k @ ..] = word.to_le_bytes();
    let (code, k) = (u16::from_le_bytes([a, b]), u32::from_le_bytes(k));
    Instruction { code, if_true, if_false, k }
}

/// Whether the filter names the verdict that hands calls to a supervisor.
pub fn may_notify(program: &[u64]) -> bool {
    let is_verdict = |i: Instruction| i.code == 0x06 && i.k & ACTION == RET_USER_NOTIF;
    program.iter().any(|word| is_verdict(decode(*word)))
}

/// Whether the filter is farfork's own, under which a clone is.
pub fn is_farforks(program: &[u64]) -> bool {
    let is_marked = |i: Instruction| i.code == 0x06 && i.k == RET_USER_NOTIF | filter::MARK;
    program.iter().any(|word| is_marked(decode(*word)))
}

/// A 64-bit call as a filter sees it (`struct seccomp_data`), by words; what is not known is `None`.
pub struct Call {
    words: [Option<u32>; WORDS],
}

const WORDS: usize = 16;

impl Call {
    /// A call from farfork's window, all of which is known.
    pub fn from_window(number: i64, args: [u64; 6]) -> Call {
        Call::new(number, Some(window::BASE), args.map(Some))
    }

    /// A call from anywhere, with the arguments that are known.
    pub fn from_anywhere(number: i64, args: [Option<u64>; 6]) -> Call {
        Call::new(number, None, args)
    }

    fn new(number: i64, caller: Option<u64>, args: [Option<u64>; 6]) -> Call {
        let mut words = [None; WORDS];
        words[..2].copy_from_slice(&[Some(number as u32), Some(AUDIT_ARCH_X86_64)]);
        let known = [caller].into_iter().chain(args);
        for (halves, value) in words[2..].chunks_exact_mut(2).zip(known) {
            halves[0] = value.map(|value| value as u32);
            halves[1] = value.map(|value| (value >> 32) as u32);
        }
        Call { words }
    }

    fn word(&self, offset: u32) -> Option<u32> {
        if offset.is_multiple_of(4) { *self.words.get(offset as usize / 4)? } else { None }
    }
}

/// Whether the filter lets `call` through for certain, whatever is not known of it.
pub fn allows(program: &[u64], call: &Call) -> bool {
    verdict(program, call).is_some_and(|verdict| [RET_ALLOW, RET_LOG].contains(&(verdict & ACTION)))
}

/// None for a program that the kernel would not have taken, or that asks for what is not known.
fn verdict(program: &[u64], call: &Call) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0usize;
    loop {
        let i = decode(*program.get(at)?);
        at += 1;
        match i.code {
            0x06 => return Some(i.k),
            0x16 => return Some(a),
            0x20 => a = call.word(i.k)?,
            0x00 => a = i.k,
            0x01 => x = i.k,
            0x80 => a = DATA_BYTES,
            0x81 => x = DATA_BYTES,
            0x60 => a = *memory.get(i.k as usize)?,
            0x61 => x = *memory.get(i.k as usize)?,
            0x02 => *memory.get_mut(i.k as usize)? = a,
            0x03 => *memory.get_mut(i.k as usize)? = x,
            0x07 => x = a,
            0x87 => a = x,
            0x05 => at += i.k as usize,
            code if code & 7 == 5 => {
                let operand = if code & 8 != 0 { x } else { i.k };
                let holds = compare(code & 0xf0, a, operand)?;
                at += usize::from(if holds { i.if_true } else { i.if_false });
            }
            code if code & 7 == 4 => {
                a = compute(code & 0xf0, a, if code & 8 != 0 { x } else { i.k })?;
            }
            _ => return None,
        }
    }
}

const DATA_BYTES: u32 = 4 * WORDS as u32;

fn compare(operation: u16, a: u32, operand: u32) -> Option<bool> {
    match operation {
        0x10 => Some(a == operand),
        0x20 => Some(a > operand),
        0x30 => Some(a >= operand),
        0x40 => Some(a & operand != 0),
        _ => None,
    }
}

fn compute(operation: u16, a: u32, operand: u32) -> Option<u32> {
    match operation {
        0x00 => Some(a.wrapping_add(operand)),
        0x10 => Some(a.wrapping_sub(operand)),
        0x20 => Some(a.wrapping_mul(operand)),
        0x30 => a.checked_div(operand),
        0x40 => Some(a | operand),
        0x50 => Some(a & operand),
        0x60 => a.checked_shl(operand),
        0x70 => a.checked_shr(operand),
        0x80 => Some(a.wrapping_neg()),
        0xa0 => Some(a ^ operand),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(code: u16, if_true: u8, if_false: u8, k: u32) -> u64 {
        u64::from(code) | u64::from(if_true) << 16 | u64::from(if_false) << 24 | u64::from(k) << 32
    }

    #[test]
    fn verdicts_are_the_kernels() {
        let errno = 0x0005_0000 | 1;
        // Number 39 is refused, and any call whose first argument has bit 3.
        let program = [
            word(0x20, 0, 0, 0),
            word(0x15, 3, 0, 39),
            word(0x20, 0, 0, 16),
            word(0x45, 1, 0, 8),
            word(0x06, 0, 0, RET_ALLOW),
            word(0x06, 0, 0, errno),
        ];
        assert!(allows(&program, &Call::from_window(1, [7, 0, 0, 0, 0, 0])));
        assert!(!allows(&program, &Call::from_window(39, [0; 6])));
        assert!(!allows(&program, &Call::from_window(1, [8, 0, 0, 0, 0, 0])));
        assert!(!may_notify(&program));
        assert!(may_notify(&[word(0x06, 0, 0, RET_USER_NOTIF)]));
        assert!(!is_farforks(&[word(0x06, 0, 0, RET_USER_NOTIF)]));
        assert!(is_farforks(&[word(0x06, 0, 0, RET_USER_NOTIF | filter::MARK)]));
        // ((39 + 1) << 2 ^ 5) is kept, fetched, and compared with x.
        let computing = [
            word(0x20, 0, 0, 0),
            word(0x04, 0, 0, 1),
            word(0x64, 0, 0, 2),
            word(0xa4, 0, 0, 5),
            word(0x02, 0, 0, 3),
            word(0x61, 0, 0, 3),
            word(0x00, 0, 0, 165),
            word(0x1d, 0, 1, 0),
            word(0x06, 0, 0, RET_LOG),
            word(0x06, 0, 0, 0),
        ];
        assert!(allows(&computing, &Call::from_window(39, [0; 6])));
        assert!(!allows(&computing, &Call::from_window(40, [0; 6])));
        let endless = [word(0x20, 0, 0, 0)];
        assert!(!allows(&endless, &Call::from_window(1, [0; 6])), "a program without an end");
    }

    #[test]
    fn what_is_not_known_is_not_taken_for_granted() {
        // Number 202 is let through, any other by its caller, or by its second argument's halves.
        let asks = |offset| {
            [
                word(0x20, 0, 0, 0),
                word(0x15, 2, 0, 202),
                word(0x20, 0, 0, offset),
                word(0x05, 0, 0, 0),
                word(0x06, 0, 0, RET_ALLOW),
            ]
        };
        let known = [None, Some(1 << 32 | 128), None, None, None, None];
        for (offset, is_known) in
            [(4, true), (8, false), (12, false), (16, false), (24, true), (28, true), (60, false)]
        {
            let program = asks(offset);
            assert!(allows(&program, &Call::from_anywhere(202, known)), "{offset}");
            assert_eq!(allows(&program, &Call::from_anywhere(203, known)), is_known, "{offset}");
        }
        assert!(!allows(&asks(26), &Call::from_anywhere(203, known)), "half a word");
        assert!(!allows(&asks(64), &Call::from_window(203, [0; 6])), "past the end");
        let compares = |offset, value| {
            let differs = word(0x15, 0, 1, value);
            [word(0x20, 0, 0, offset), differs, word(0x06, 0, 0, RET_ALLOW), word(0x06, 0, 0, 0)]
        };
        for (offset, value) in [(4, AUDIT_ARCH_X86_64), (24, 128), (28, 1)] {
            assert!(allows(&compares(offset, value), &Call::from_anywhere(202, known)), "{offset}");
        }
        let [low, high] = [window::BASE as u32, (window::BASE >> 32) as u32];
        for (offset, value) in [(8, low), (12, high), (56, 6), (60, 0)] {
            let call = Call::from_window(1, [1, 2, 3, 4, 5, 6]);
            assert!(allows(&compares(offset, value), &call), "{offset}");
        }
    }
}
