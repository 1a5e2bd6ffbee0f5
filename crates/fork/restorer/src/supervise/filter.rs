//! The seccomp filter that hands calls on memory to the init: those that discard it, and those
//! that give it attributes which the init has to know of when it replaces memory later.
//!
//! The number of a call alone decides about all others: the kernel notices that, and lets them
//! pass without running the filter. To notice, it tries every number there is when a filter is
//! installed, and each init installs its own: so numbers are searched, not compared one by one.

use farfork_plan::filter::MARK;
use farfork_plan::window;
use linux_raw_sys::general as k;
use linux_raw_sys::prctl;

use crate::call::{Errno, syscall};

/// One instruction of classic BPF.
#[repr(C)]
#[derive(Clone, Copy)]
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
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const NR: u32 = 0;
const ARCH: u32 = 4;
const INSTRUCTION_POINTER_HIGH: u32 = 12;
const ARG1_LOW: u32 = 24;
const ARG2_LOW: u32 = 32;

const ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_I386: u32 = 0x4000_0003;

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000 | MARK;
const EPERM: u32 = 0x0005_0000 | linux_raw_sys::errno::EPERM;

const SECCOMP_SET_MODE_FILTER: u64 = 1;
const NEW_LISTENER: u64 = 1 << 3;
const WAIT_KILLABLE_RECV: u64 = 1 << 5;

/// Advice of `madvise` whose effect differs between file and anonymous memory.
pub const DISCARDING: [u32; 6] = [
    k::MADV_DONTNEED,
    k::MADV_FREE,
    k::MADV_REMOVE,
    k::MADV_WIPEONFORK,
    k::MADV_DONTNEED_LOCKED,
    MADV_GUARD_INSTALL,
];

/// Advice that sets an attribute of a mapping which programs rely on.
const MARKING: [u32; 4] = [k::MADV_DONTFORK, k::MADV_DOFORK, k::MADV_DONTDUMP, k::MADV_DODUMP];

/// Makes a range fault on access (Linux 6.13).
pub const MADV_GUARD_INSTALL: u32 = 102;

/// `mseal` (Linux 6.10).
pub const NR_MSEAL: u32 = 462;

/// `UFFDIO_REGISTER`, by which a program has faults of a range handed to itself.
const UFFDIO_REGISTER: u32 = 0xc020_aa00;

/// A number, and the part of the filter that it leads to.
type Case = (u32, usize);

/// How many calls are not let through by their number alone.
const COUNT: usize = 12;

/// Those calls, in the order of their numbers.
const CALLS: [Case; COUNT] = [
    (k::__NR_ioctl, BY_REQUEST),
    (k::__NR_mremap, BY_CALLER),
    (k::__NR_madvise, BY_ADVICE),
    (k::__NR_mlock, BY_CALLER),
    (k::__NR_munlock, BY_CALLER),
    (k::__NR_mlockall, BY_CALLER),
    (k::__NR_munlockall, BY_CALLER),
    (k::__NR_mlock2, BY_CALLER),
    (k::__NR_pkey_mprotect, BY_CALLER),
    (k::__NR_io_uring_setup, REFUSE),
    (k::__NR_process_madvise, BY_CALLER),
    (NR_MSEAL, BY_CALLER),
];

/// The same of 32-bit programs, in the order of their numbers, and what each is for 64-bit ones.
const CALLS_I386: [(u32, u32); COUNT] = [
    (54, k::__NR_ioctl),
    (150, k::__NR_mlock),
    (151, k::__NR_munlock),
    (152, k::__NR_mlockall),
    (153, k::__NR_munlockall),
    (163, k::__NR_mremap),
    (219, k::__NR_madvise),
    (376, k::__NR_mlock2),
    (380, k::__NR_pkey_mprotect),
    (425, k::__NR_io_uring_setup),
    (440, k::__NR_process_madvise),
    (462, NR_MSEAL),
];

/// Calls of 32-bit programs are handed over whatever their arguments are.
const CASES_I386: [Case; COUNT] = {
    let mut cases = [(0, NOTIFY_I386); COUNT];
    let mut index = 0;
    while index < cases.len() {
        let (number, native) = CALLS_I386[index];
        cases[index].0 = number;
        if native == k::__NR_io_uring_setup {
            cases[index].1 = REFUSE_I386;
        }
        index += 1;
    }
    cases
};

/// The x86-64 number of a handed-over call.
pub fn native_number(arch: u32, nr: u32) -> u32 {
    let is_i386 = arch == ARCH_I386;
    let found = CALLS_I386.iter().find(|(other, _)| is_i386 && *other == nr);
    found.map_or(nr, |(_, native)| *native)
}

/// Whether an `ioctl` sets an attribute of memory.
pub fn is_marking(request: u64) -> bool {
    request as u32 == UFFDIO_REGISTER
}

// Where the parts of the filter begin.
const PASS: usize = 3 + search_length(COUNT);
const BY_ADVICE: usize = PASS + 1;
const BY_REQUEST: usize = BY_ADVICE + DISCARDING.len() + MARKING.len() + 2;
const BY_CALLER: usize = BY_REQUEST + 3;
const REFUSE: usize = BY_CALLER + 4;
const I386: usize = REFUSE + 1;
const PASS_I386: usize = I386 + 2 + search_length(COUNT);
const NOTIFY_I386: usize = PASS_I386 + 1;
const REFUSE_I386: usize = NOTIFY_I386 + 1;
const LENGTH: usize = REFUSE_I386 + 1;

/// Instructions of a search among so many numbers.
const fn search_length(numbers: usize) -> usize {
    2 * numbers - 1
}

/// A filter under construction.
struct Draft {
    instructions: [Instruction; LENGTH],
    count: usize,
}

impl Draft {
    const fn put(mut self, code: u16, if_true: u8, if_false: u8, operand: u32) -> Draft {
        self.instructions[self.count] = Instruction { code, if_true, if_false, operand };
        self.count += 1;
        self
    }

    const fn load(self, offset: u32) -> Draft {
        self.put(LOAD, 0, 0, offset)
    }

    /// Goes to the part that begins at `to` if the loaded word is `value`.
    const fn equal(self, value: u32, to: usize) -> Draft {
        let skip = (to - self.count - 1) as u8;
        self.put(JUMP_EQUAL, skip, 0, value)
    }

    const fn each_equal(mut self, values: &[u32], to: usize) -> Draft {
        let mut index = 0;
        while index < values.len() {
            self = self.equal(values[index], to);
            index += 1;
        }
        self
    }

    /// Goes to the part that the loaded word leads to, one of the cases `first..end`, or else to `pass`.
    const fn search(self, cases: &[Case], first: usize, end: usize, pass: usize) -> Draft {
        if end - first == 1 {
            let ((number, to), here) = (cases[first], self.count + 1);
            return self.put(JUMP_EQUAL, (to - here) as u8, (pass - here) as u8, number);
        }
        let middle = first.midpoint(end);
        let skip = search_length(middle - first) as u8;
        self.put(JUMP_AT_LEAST, skip, 0, cases[middle].0)
            .search(cases, first, middle, pass)
            .search(cases, middle, end, pass)
    }

    /// Goes to the part that begins at `to` unless the loaded word is `value`.
    const fn other_than(self, value: u32, to: usize) -> Draft {
        let skip = (to - self.count - 1) as u8;
        self.put(JUMP_EQUAL, 0, skip, value)
    }

    const fn done(self, verdict: u32) -> Draft {
        self.put(RETURN, 0, 0, verdict)
    }
}

/// io_uring performs `madvise` without passing any filter. So a clone cannot use it, and gets the same
/// EPERM as with `kernel.io_uring_disabled`, which programs know from container runtimes.
const FILTER: [Instruction; LENGTH] = {
    let none = Instruction { code: 0, if_true: 0, if_false: 0, operand: 0 };
    Draft { instructions: [none; LENGTH], count: 0 }
        .load(ARCH)
        .other_than(ARCH_X86_64, I386)
        .load(NR)
        .search(&CALLS, 0, COUNT, PASS)
        .done(ALLOW)
        .load(ARG2_LOW)
        .each_equal(&DISCARDING, BY_CALLER)
        .each_equal(&MARKING, BY_CALLER)
        .done(ALLOW)
        .load(ARG1_LOW)
        .equal(UFFDIO_REGISTER, BY_CALLER)
        .done(ALLOW)
        .load(INSTRUCTION_POINTER_HIGH)
        .other_than((window::BASE >> 32) as u32, BY_CALLER + 3)
        .done(ALLOW)
        .done(NOTIFY)
        .done(EPERM)
        // The last part, for 32-bit programs.
        .other_than(ARCH_I386, PASS_I386)
        .load(NR)
        .search(&CASES_I386, 0, COUNT, PASS_I386)
        .done(ALLOW)
        .done(NOTIFY)
        .done(EPERM)
        .instructions
};

static PROGRAM: [Instruction; FILTER.len()] = FILTER;

/// Installs the filter on this thread and returns its listener.
pub fn install() -> Result<i32, Errno> {
    let program = Program { length: PROGRAM.len() as u16, instructions: PROGRAM.as_ptr() };
    let flags = NEW_LISTENER | WAIT_KILLABLE_RECV;
    let args = [SECCOMP_SET_MODE_FILTER, flags, &raw const program as u64];
    // SAFETY: the kernel reads the program; this process has CAP_SYS_ADMIN or no_new_privs.
    let listener = match unsafe { syscall(k::__NR_seccomp, args) } {
        Err(errno) if errno.0 == linux_raw_sys::errno::EACCES as i32 => unprivileged(args)?,
        other => other?,
    };
    Ok(listener as i32)
}

/// Without CAP_SYS_ADMIN the kernel wants `no_new_privs` first.
fn unprivileged(args: [u64; 3]) -> Result<u64, Errno> {
    // SAFETY: one attribute of this process, then as in `install`.
    unsafe {
        syscall(k::__NR_prctl, [u64::from(prctl::PR_SET_NO_NEW_PRIVS), 1, 0, 0, 0])?;
        syscall(k::__NR_seccomp, args)
    }
}

/// A call as the filter sees it.
#[derive(Clone, Copy)]
struct Call {
    arch: u32,
    nr: u32,
    caller_high: u32,
    request: u32,
    advice: u32,
}

/// The verdict of the filter, evaluated at compile time: a wrong jump does not build.
const fn verdict(call: Call) -> u32 {
    let (mut at, mut word) = (0, 0);
    loop {
        let step = &FILTER[at];
        at += 1;
        match (step.code, step.operand) {
            (LOAD, NR) => word = call.nr,
            (LOAD, ARCH) => word = call.arch,
            (LOAD, INSTRUCTION_POINTER_HIGH) => word = call.caller_high,
            (LOAD, ARG1_LOW) => word = call.request,
            (LOAD, _) => word = call.advice,
            (JUMP_EQUAL, value) => {
                at += if word == value { step.if_true } else { step.if_false } as usize
            }
            (JUMP_AT_LEAST, value) => {
                at += if word >= value { step.if_true } else { step.if_false } as usize
            }
            (_, value) => return value,
        }
    }
}

const PLAIN: Call =
    Call { arch: ARCH_X86_64, nr: 0, caller_high: 0x7fff, request: 0, advice: k::MADV_DONTNEED };

const fn each_call_is(caller_high: u32, expected: u32) -> bool {
    let mut index = 0;
    while index < CALLS_I386.len() {
        let nr = CALLS_I386[index].1;
        let expected = if nr == k::__NR_io_uring_setup { EPERM } else { expected };
        if verdict(Call { nr, caller_high, request: UFFDIO_REGISTER, ..PLAIN }) != expected {
            return false;
        }
        index += 1;
    }
    true
}

const fn each_i386_is(arch: u32, expected: u32) -> bool {
    let mut index = 0;
    while index < CALLS_I386.len() {
        let (nr, native) = CALLS_I386[index];
        let is_io_uring = arch == ARCH_I386 && native == k::__NR_io_uring_setup;
        let expected = if is_io_uring { EPERM } else { expected };
        if verdict(Call { arch, nr, ..PLAIN }) != expected {
            return false;
        }
        index += 1;
    }
    true
}

/// Whether all numbers up to `end` that are none of `cases` are let through, whatever else a call is.
const fn others_pass(arch: u32, cases: &[Case], end: u32) -> bool {
    let (mut nr, mut next) = (0, 0);
    while nr < end {
        if next < cases.len() && cases[next].0 == nr {
            next += 1; // never, if they are out of order
        } else if verdict(Call { arch, nr, request: UFFDIO_REGISTER, ..PLAIN }) != ALLOW {
            return false;
        }
        nr += 1;
    }
    next == cases.len()
}

const fn each_advice_is(all: &[u32], expected: u32) -> bool {
    let mut index = 0;
    while index < all.len() {
        if verdict(Call { nr: k::__NR_madvise, advice: all[index], ..PLAIN }) != expected {
            return false;
        }
        index += 1;
    }
    true
}

const _: () = {
    assert!(others_pass(ARCH_X86_64, &CALLS, 600));
    assert!(others_pass(ARCH_I386, &CASES_I386, 600));
    assert!(each_call_is(0x7fff, NOTIFY));
    assert!(each_call_is((window::BASE >> 32) as u32, ALLOW));
    assert!(each_i386_is(ARCH_I386, NOTIFY));
    assert!(each_i386_is(ARCH_X86_64 + 1, ALLOW));
    assert!(each_advice_is(&DISCARDING, NOTIFY));
    assert!(each_advice_is(&MARKING, NOTIFY));
    assert!(each_advice_is(&[k::MADV_HUGEPAGE, k::MADV_WILLNEED, 0], ALLOW));
    assert!(verdict(Call { nr: k::__NR_ioctl, ..PLAIN }) == ALLOW);
};
