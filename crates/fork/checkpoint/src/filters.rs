//! The program's own seccomp filters: reading them back, and whether a clone can be put under
//! them.

use farfork_image::bpf::{self, Call};
use farfork_image::compile::filters::{PROGRAM, call};
use farfork_image::model::SeccompFilter;
use farfork_sys::ptrace;

use crate::error::{CheckpointError, doing};
use crate::refuse::{Cause, Refusals, causes};
use farfork_sys::status::Status;

const MODE_STRICT: u32 = 1;
const CAP_SYS_ADMIN: u32 = 21;
const EFFECTIVE: usize = 2;

/// Whether a stopped thread is under farfork's own filter: it is a clone's, or one of a program that a clone
/// has executed, which has nothing else of a clone any more.
pub fn is_farforks(tid: i32) -> bool {
    // Where filters cannot be read, none is set aside either.
    ptrace::seccomp_filter(tid, 0).is_ok_and(|(oldest, _)| bpf::is_farforks(&oldest))
}

/// Lets a stopped thread make calls for the checkpoint whatever its filters say, until it is let
/// go. A clone is under `own_filters` of farfork's own, which let those calls pass. False if it
/// cannot be, which is among the refusals then.
pub fn suspend(tid: i32, status: &Status, own_filters: u32, refusals: &mut Refusals) -> bool {
    let object = || format!("thread {tid} ({})", status.name);
    if status.seccomp == MODE_STRICT {
        refusals.add(object(), causes::threads::SECCOMP_STRICT);
        return false;
    }
    if status.seccomp == 0 || status.seccomp_filters == Some(own_filters) {
        return true;
    }
    if ptrace::suspend_seccomp(tid).is_err() {
        refusals.add(object(), causes::threads::SECCOMP_ACTIVE);
        return false;
    }
    true
}

/// The filters of a stopped thread besides farfork's own, the oldest first.
pub fn collect(
    tid: i32,
    status: &Status,
    own_filters: u32,
    refusals: &mut Refusals,
) -> Result<Vec<SeccompFilter>, CheckpointError> {
    let count = if status.seccomp == 0 { 0 } else { status.seccomp_filters.unwrap_or(0) };
    let mut filters: Vec<SeccompFilter> = Vec::new();
    for index in own_filters..count {
        let (instructions, logs) = ptrace::seccomp_filter(tid, u64::from(index))
            .map_err(doing(tid, "read a seccomp filter"))?;
        let mut filter = SeccompFilter { instructions, logs, by_prctl: false };
        filter.by_prctl = !logs && !is_allowed(&filters, &filter);
        if let Some(cause) = obstacle(&filters, &filter, status) {
            refusals.add(format!("thread {tid} ({})", status.name), cause);
            return Ok(Vec::new());
        }
        filters.push(filter);
    }
    Ok(filters)
}

/// Whether `earlier` filters let a thread install `filter`.
fn is_allowed(earlier: &[SeccompFilter], filter: &SeccompFilter) -> bool {
    let (number, args) = call(filter, PROGRAM);
    let call = Call::from_window(number, args);
    earlier.iter().all(|earlier| bpf::allows(&earlier.instructions, &call))
}

fn obstacle(
    earlier: &[SeccompFilter],
    filter: &SeccompFilter,
    status: &Status,
) -> Option<&'static Cause> {
    let may_install =
        status.no_new_privs || status.capabilities[EFFECTIVE] >> CAP_SYS_ADMIN & 1 != 0;
    let code = &filter.instructions;
    [
        (bpf::may_notify(code), causes::threads::SECCOMP_NOTIFY),
        (!may_install, causes::threads::SECCOMP_RIGHTS),
        (!is_allowed(earlier, filter), causes::threads::SECCOMP_FORBIDS_FILTER),
        (
            !bpf::allows(code, &Call::from_window(libc::SYS_rt_sigreturn, [0; 6])),
            causes::threads::SECCOMP_FORBIDS_RETURN,
        ),
    ]
    .into_iter()
    .find(|(applies, _)| *applies)
    .map(|(_, cause)| cause)
}
