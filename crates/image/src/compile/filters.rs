//! Installing a thread's own seccomp filters: its last act before it leaves for the parent's code,
//! since whatever comes after is under them.

use farfork_plan::{Op, What, window};

use super::arena::Arena;
use crate::model::{SeccompFilter, Thread};

const SECCOMP_SET_MODE_FILTER: u64 = 1;
const SECCOMP_MODE_FILTER: u64 = 2;
const SECCOMP_FILTER_FLAG_LOG: u64 = 2;

/// System call and arguments that install a filter whose `struct sock_fprog` is at `program`.
pub fn call(filter: &SeccompFilter, program: u64) -> (i64, [u64; 6]) {
    if filter.by_prctl {
        let option = libc::PR_SET_SECCOMP as u64;
        return (libc::SYS_prctl, [option, SECCOMP_MODE_FILTER, program, 0, 0, 0]);
    }
    let flags = if filter.logs { SECCOMP_FILTER_FLAG_LOG } else { 0 };
    (libc::SYS_seccomp, [SECCOMP_SET_MODE_FILTER, flags, program, 0, 0, 0])
}

/// Where programs are, as far as a filter might ask.
pub const PROGRAM: u64 = window::PLAN;

/// Ops that install the filters of `thread`, the oldest first.
pub fn ops(thread: &Thread, arena: &mut Arena) -> Vec<Op> {
    let install = |filter: &SeccompFilter| {
        let instructions = arena.words(&filter.instructions);
        let program = arena.words(&[filter.instructions.len() as u64, instructions]);
        let (number, args) = call(filter, program);
        Op::new(What::Attribute, number as u32, &args)
    };
    thread.filters.iter().map(install).collect()
}
