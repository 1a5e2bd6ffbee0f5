//! Where the general registers stand among the words of the kernel's `user_regs_struct`, in which
//! `ptrace` gives them and an image keeps them.

#![allow(missing_docs)] // reason: the names are the registers'

/// Words of the struct.
pub const COUNT: usize = 27;

pub const R15: usize = 0;
pub const R14: usize = 1;
pub const R13: usize = 2;
pub const R12: usize = 3;
pub const RBP: usize = 4;
pub const RBX: usize = 5;
pub const R11: usize = 6;
pub const R10: usize = 7;
pub const R9: usize = 8;
pub const R8: usize = 9;
pub const RAX: usize = 10;
pub const RCX: usize = 11;
pub const RDX: usize = 12;
pub const RSI: usize = 13;
pub const RDI: usize = 14;
pub const ORIG_RAX: usize = 15;
pub const RIP: usize = 16;
pub const CS: usize = 17;
pub const EFLAGS: usize = 18;
pub const RSP: usize = 19;
pub const SS: usize = 20;
