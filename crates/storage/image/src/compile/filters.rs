//! Installing a thread's own seccomp filters: its last act before it leaves for the parent's code,
//! since whatever comes after is under them. Where all threads have the same, the first installs
//! them for all.

use farfork_plan::{Op, What, window};

use super::arena::Arena;
use crate::bpf::{self, Call};
use crate::model::{SeccompFilter, Thread};

const SECCOMP_SET_MODE_FILTER: u64 = 1;
const SECCOMP_MODE_FILTER: u64 = 2;
const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;
const SECCOMP_FILTER_FLAG_LOG: u64 = 2;
/// Linux 5.7.
const SECCOMP_FILTER_FLAG_TSYNC_ESRCH: u64 = 16;

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

/// The same call, for every thread of the process at once. It fails for a thread that has a filter
/// which the calling one has not: with an error then, not with the id of a thread (`TSYNC_ESRCH`).
fn call_for_all(filter: &SeccompFilter, program: u64) -> (i64, [u64; 6]) {
    let (number, mut args) = call(&SeccompFilter { by_prctl: false, ..filter.clone() }, program);
    args[1] |= SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
    (number, args)
}

/// Which thread installs the filters of a process's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Each thread its own. It may not be allowed another call afterwards, not even to wait.
    Each,
    /// The first thread, for all, while the others wait for it.
    First,
}

/// Filters are installed for all if all have the same, which let the threads wait, and let the
/// first install those after them.
pub fn by(threads: &[Thread]) -> By {
    let Some((first, others)) = threads.split_first() else { return By::Each };
    let filters = &first.filters;
    // With a filter, `no_new_privs` of the first thread becomes that of all.
    let is_like_first =
        |other: &Thread| other.filters == *filters && (other.no_new_privs || !first.no_new_privs);
    let is_of_all = !others.is_empty() && !filters.is_empty() && others.iter().all(is_like_first);
    let can_go_on = |(index, filter): (usize, &SeccompFilter)| {
        let later = filters[index + 1..].iter().map(|later| {
            let (number, args) = call_for_all(later, PROGRAM);
            Call::from_window(number, args)
        });
        let calls = later.chain([FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE].map(futex));
        calls.into_iter().all(|call| bpf::allows(&filter.instructions, &call))
    };
    if is_of_all && filters.iter().enumerate().all(can_go_on) { By::First } else { By::Each }
}

/// What the restorer's threads wait and wake with, at addresses and in numbers not known here.
fn futex(operation: u64) -> Call {
    Call::from_anywhere(libc::SYS_futex, [None, Some(operation), None, None, None, None])
}

const FUTEX_WAIT_PRIVATE: u64 = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64;
const FUTEX_WAKE_PRIVATE: u64 = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u64;

/// Ops that install the filters of `thread`, the oldest first.
pub fn ops(thread: &Thread, by: By, arena: &mut Arena) -> Vec<Op> {
    let install = |filter: &SeccompFilter| {
        let instructions = arena.words(&filter.instructions);
        let program = arena.words(&[filter.instructions.len() as u64, instructions]);
        let (number, args) = match by {
            By::Each => call(filter, program),
            By::First => call_for_all(filter, program),
        };
        Op::new(What::Attribute, number as u32, &args)
    };
    thread.filters.iter().map(install).collect()
}

#[cfg(test)]
mod tests;
