//! The restorer: a static program without a C library, linked inside
//! [`farfork_plan::window`] where no clone has memory of its own.
//!
//! One program, three lives, each a `fork` or `clone3` of the one before:
//!
//! 1. the **template** ([`template`]) waits on a socket for requests of the node agent;
//! 2. the **init** ([`init`]) is forked for each request. It is pid 1 of the clone's container and
//!    stays as reaper and supervisor ([`supervise`]);
//! 3. the **clone** ([`task`]) is the init's child. It turns its address space into the parent's
//!    by running the plan, and leaves for the parent's code by `rt_sigreturn`. Where the parent
//!    was several processes, it first forks the others ([`family`]).
//!
//! Started as pid 1 of a container it is a **ghost** ([`ghost`]): an init without a template.
#![no_std]
#![no_main]
#![allow(unsafe_code)] // reason: every line here acts on the address space it runs in

mod aio;
mod call;
mod cell;
mod clocks;
mod failure;
mod family;
mod gate;
mod ghost;
mod init;
mod ipc;
mod maps;
mod memory;
mod mounts;
mod overlay;
mod packets;
mod pager;
mod place;
mod rights;
mod ring;
mod run;
mod settle;
mod shared;
mod slots;
mod sources;
mod stages;
mod supervise;
mod tables;
mod task;
mod template;
mod text;
mod trial;
mod userfault;
mod wait;
mod watch;

use core::arch::global_asm;
use core::panic::PanicInfo;

// The kernel's stack is left behind by `settle`, since a clone's stack may belong there.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {settle}",
    "movabs rsp, offset {stack}",
    "add rsp, {stack_bytes}",
    "mov rdi, rax",
    "call {main}",
    "ud2",
    settle = sym settle::settle,
    stack = sym STACK,
    stack_bytes = const STACK_BYTES,
    main = sym template::serve,
);

const STACK_BYTES: usize = 64 << 10;

#[repr(C, align(4096))]
struct Stack([u8; STACK_BYTES]);

static mut STACK: Stack = Stack([0; STACK_BYTES]);

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    call::exit(call::EXIT_BUG)
}

/// Named by the unwind tables of the prebuilt core library, and never called: panics abort.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
