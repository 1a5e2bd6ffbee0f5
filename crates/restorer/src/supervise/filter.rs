//! The seccomp filter that hands discarding calls to the init.

use farfork_plan::window;
use linux_raw_sys::general as k;
use linux_raw_sys::prctl;

use crate::call::{self, Errno, syscall};

/// One instruction of classic BPF.
#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

const NR: u32 = 0;
const ARCH: u32 = 4;
const INSTRUCTION_POINTER_HIGH: u32 = 12;
const ARG2_LOW: u32 = 32;

const ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_I386: u32 = 0x4000_0003;

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const EPERM: u32 = 0x0005_0000 | linux_raw_sys::errno::EPERM;

const SECCOMP_SET_MODE_FILTER: u64 = 1;
const NEW_LISTENER: u64 = 1 << 3;
const WAIT_KILLABLE_RECV: u64 = 1 << 5;

/// Advice of `madvise` whose effect differs between file and anonymous memory.
pub const ADVICE: [u32; 6] = [
    k::MADV_DONTNEED,
    k::MADV_FREE,
    k::MADV_REMOVE,
    k::MADV_WIPEONFORK,
    k::MADV_DONTNEED_LOCKED,
    MADV_GUARD_INSTALL,
];

/// Makes a range fault on access (Linux 6.13).
pub const MADV_GUARD_INSTALL: u32 = 102;

/// Numbers of the same calls for 32-bit programs, in the order of [`CALLS`].
pub const CALLS_I386: [u32; 3] = [219, 163, 440];
/// The calls that are handed over.
pub const CALLS: [u32; 3] = [k::__NR_madvise, k::__NR_mremap, k::__NR_process_madvise];

const fn instruction(code: u16, if_true: u8, if_false: u8, operand: u32) -> Instruction {
    Instruction { code, if_true, if_false, operand }
}

const fn load(offset: u32) -> Instruction {
    instruction(LOAD, 0, 0, offset)
}

const fn equal(value: u32, if_true: u8, if_false: u8) -> Instruction {
    instruction(JUMP_EQUAL, if_true, if_false, value)
}

const fn done(verdict: u32) -> Instruction {
    instruction(RETURN, 0, 0, verdict)
}

/// io_uring performs `madvise` behind any filter's back, so a clone gets none: the same EPERM as
/// with `kernel.io_uring_disabled`, which programs know from container runtimes.
const FILTER: [Instruction; 26] = [
    load(ARCH),
    equal(ARCH_X86_64, 0, 15),
    load(INSTRUCTION_POINTER_HIGH),
    equal((window::BASE >> 32) as u32, 12, 0),
    load(NR),
    equal(k::__NR_io_uring_setup, 19, 0),
    equal(CALLS[1], 17, 0),
    equal(CALLS[2], 16, 0),
    equal(CALLS[0], 0, 7),
    load(ARG2_LOW), // the advice
    equal(ADVICE[0], 13, 0),
    equal(ADVICE[1], 12, 0),
    equal(ADVICE[2], 11, 0),
    equal(ADVICE[3], 10, 0),
    equal(ADVICE[4], 9, 0),
    equal(ADVICE[5], 8, 0),
    done(ALLOW),
    equal(ARCH_I386, 0, 5), // not x86-64
    load(NR),
    equal(k::__NR_io_uring_setup, 5, 0), // the same number there
    equal(CALLS_I386[0], 3, 0),
    equal(CALLS_I386[1], 2, 0),
    equal(CALLS_I386[2], 1, 0),
    done(ALLOW),
    done(NOTIFY),
    done(EPERM),
];

static PROGRAM: [Instruction; FILTER.len()] = FILTER;

/// Installs the filter on this thread and returns its listener, at `lowest` or above.
pub fn install(lowest: u32) -> Result<i32, Errno> {
    let program = Program { length: PROGRAM.len() as u16, instructions: PROGRAM.as_ptr() };
    let flags = NEW_LISTENER | WAIT_KILLABLE_RECV;
    let args = [SECCOMP_SET_MODE_FILTER, flags, &raw const program as u64];
    // SAFETY: the kernel reads the program; this process has CAP_SYS_ADMIN or no_new_privs.
    let listener = match unsafe { syscall(k::__NR_seccomp, args) } {
        Err(errno) if errno.0 == linux_raw_sys::errno::EACCES as i32 => unprivileged(args)?,
        other => other?,
    } as i32;
    let kept = call::duplicate_above(listener, lowest)?;
    call::close_range(listener as u32, listener as u32);
    Ok(kept)
}

/// Without CAP_SYS_ADMIN the kernel wants `no_new_privs` first.
fn unprivileged(args: [u64; 3]) -> Result<u64, Errno> {
    // SAFETY: one attribute of this process, then as in `install`.
    unsafe {
        syscall(k::__NR_prctl, [u64::from(prctl::PR_SET_NO_NEW_PRIVS), 1, 0, 0, 0])?;
        syscall(k::__NR_seccomp, args)
    }
}

/// What the filter says, worked out at compile time: a wrong jump does not build.
const fn verdict(nr: u32, arch: u32, ip_high: u32, advice: u32) -> u32 {
    let (mut at, mut word) = (0, 0);
    loop {
        let step = &FILTER[at];
        at += 1;
        match (step.code, step.operand) {
            (LOAD, NR) => word = nr,
            (LOAD, ARCH) => word = arch,
            (LOAD, INSTRUCTION_POINTER_HIGH) => word = ip_high,
            (LOAD, _) => word = advice,
            (JUMP_EQUAL, value) => {
                at += if word == value { step.if_true } else { step.if_false } as usize
            }
            (_, value) => return value,
        }
    }
}

const fn each_is(calls: [u32; 3], arch: u32, expected: u32) -> bool {
    let mut index = 0;
    while index < calls.len() {
        if verdict(calls[index], arch, 0x7fff, k::MADV_DONTNEED) != expected {
            return false;
        }
        index += 1;
    }
    true
}

const fn each_advice_is(expected: u32) -> bool {
    let mut index = 0;
    while index < ADVICE.len() {
        if verdict(k::__NR_madvise, ARCH_X86_64, 0x7fff, ADVICE[index]) != expected {
            return false;
        }
        index += 1;
    }
    true
}

const _: () = {
    let own = (window::BASE >> 32) as u32;
    assert!(each_is(CALLS, ARCH_X86_64, NOTIFY));
    assert!(each_is(CALLS_I386, ARCH_I386, NOTIFY));
    assert!(each_is(CALLS, ARCH_X86_64 + 1, ALLOW));
    assert!(each_advice_is(NOTIFY));
    assert!(verdict(k::__NR_madvise, ARCH_X86_64, 0x7fff, k::MADV_HUGEPAGE) == ALLOW);
    assert!(verdict(k::__NR_madvise, ARCH_X86_64, own, k::MADV_DONTNEED) == ALLOW);
    assert!(verdict(k::__NR_read, ARCH_X86_64, 0x7fff, 0) == ALLOW);
    assert!(verdict(3, ARCH_I386, 0, 0) == ALLOW);
    assert!(verdict(k::__NR_io_uring_setup, ARCH_X86_64, 0x7fff, 0) == EPERM);
    assert!(verdict(k::__NR_io_uring_setup, ARCH_I386, 0, 0) == EPERM);
};
