//! System calls without a C library, for programs that share an address space with a clone and
//! may touch neither its thread-local storage nor its heap.
#![allow(unsafe_code)] // reason: this is the system call instruction itself

use core::arch::asm;

/// A positive `errno` value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Result of a system call.
pub type SysResult = Result<u64, Errno>;

/// `struct clone_args` of `clone3` (Linux 5.5, with `set_tid`; 5.7 added `cgroup`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // reason: the fields are the kernel's, documented in clone(2)
pub struct CloneArgs {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_size: u64,
    pub cgroup: u64,
}

const _: () = assert!(size_of::<CloneArgs>() == 88);

/// Calls the kernel with up to six arguments; missing ones are zero.
///
/// # Safety
/// Whatever the call does to memory, descriptors or threads must be sound for the caller.
#[inline(always)]
pub unsafe fn syscall<const N: usize>(nr: u32, args: [u64; N]) -> SysResult {
    let mut full = [0u64; 6];
    full[..N].copy_from_slice(&args);
    let result: i64;
    // SAFETY: the caller vouches for the call's effects; rcx, r11 and rax are declared clobbered.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") u64::from(nr) => result,
            in("rdi") full[0], in("rsi") full[1], in("rdx") full[2],
            in("r10") full[3], in("r8") full[4], in("r9") full[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    check(result)
}

/// `clone3` whose child starts at `entry(argument)` on the stack in `args` and never returns.
///
/// # Safety
/// With `CLONE_VM` the stack must be free for the child's use alone; `entry` must not return.
pub unsafe fn clone3_entry(
    args: &CloneArgs,
    entry: extern "C" fn(u64) -> !,
    argument: u64,
) -> SysResult {
    let result: i64;
    // SAFETY: the child runs on its own stack, aligned down here, and leaves through `entry`;
    // r12 and r13 survive the system call in both.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "and rsp, -16",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") 435u64 => result, // clone3
            in("rdi") args as *const CloneArgs,
            in("rsi") size_of::<CloneArgs>(),
            in("r12") entry as usize,
            in("r13") argument,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    check(result)
}

/// Leaves for the state in the signal frame whose `ucontext` is at `frame`.
///
/// # Safety
/// `frame` must be a complete `ucontext` with its floating-point state, mapped readable.
pub unsafe fn sigreturn(frame: u64) -> ! {
    // SAFETY: nothing of this context is used again.
    unsafe {
        asm!(
            "mov rsp, {frame}",
            "mov eax, 15", // rt_sigreturn
            "syscall",
            "ud2",
            frame = in(reg) frame,
            options(noreturn),
        );
    }
}

fn check(result: i64) -> SysResult {
    match result {
        -4095..=-1 => Err(Errno(-result as i32)),
        _ => Ok(result as u64),
    }
}
