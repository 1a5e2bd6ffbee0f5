//! The program's own seccomp filters: reading them back, and whether a clone can be put under
//! them.

mod bpf;

use farfork_image::compile::filters::{PROGRAM, call};
use farfork_image::model::SeccompFilter;
use farfork_sys::ptrace;

use crate::error::{CheckpointError, doing};
use crate::refuse::Refusals;
use crate::status::Status;

const MODE_STRICT: u32 = 1;
const CAP_SYS_ADMIN: u32 = 21;
const EFFECTIVE: usize = 2;

/// Lets a stopped thread make calls for the checkpoint whatever its filters say, until it is let
/// go. A clone is under `own_filters` of farfork's own, which let those calls pass. False if it
/// cannot be, which is among the refusals then.
pub fn suspend(tid: i32, status: &Status, own_filters: u32, refusals: &mut Refusals) -> bool {
    let object = || format!("thread {tid} ({})", status.name);
    if status.seccomp == MODE_STRICT {
        refusals.add(
            object(),
            "it is in strict seccomp mode, which cannot be entered under farfork's filter",
            "use a seccomp filter instead",
        );
        return false;
    }
    if status.seccomp == 0 || status.seccomp_filters == Some(own_filters) {
        return true;
    }
    if ptrace::suspend_seccomp(tid).is_err() {
        refusals.add(
            object(),
            "farfork may not set its seccomp filter aside for the checkpoint",
            "run farfork with CAP_SYS_ADMIN and under no filter itself",
        );
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
        if let Some((reason, remedy)) = obstacle(&filters, &filter, status) {
            refusals.add(format!("thread {tid} ({})", status.name), reason, remedy);
            return Ok(Vec::new());
        }
        filters.push(filter);
    }
    Ok(filters)
}

/// Whether `earlier` filters let a thread install `filter`.
fn is_allowed(earlier: &[SeccompFilter], filter: &SeccompFilter) -> bool {
    let (number, args) = call(filter, PROGRAM);
    earlier.iter().all(|earlier| bpf::allows(&earlier.instructions, number, args))
}

fn obstacle(
    earlier: &[SeccompFilter],
    filter: &SeccompFilter,
    status: &Status,
) -> Option<(&'static str, &'static str)> {
    let may_install =
        status.no_new_privs || status.capabilities[EFFECTIVE] >> CAP_SYS_ADMIN & 1 != 0;
    let code = &filter.instructions;
    [
        (
            bpf::may_notify(code),
            "its seccomp filter asks a supervisor, which a clone does not have",
            "run it without SECCOMP_RET_USER_NOTIF",
        ),
        (
            !may_install,
            "its seccomp filter was installed with rights that it has given up since",
            "set no_new_privs before the checkpoint",
        ),
        (
            !is_allowed(earlier, filter),
            "its seccomp filters forbid to install the last of them again",
            "let its filters allow seccomp",
        ),
        (
            !bpf::allows(code, libc::SYS_rt_sigreturn, [0; 6]),
            "its seccomp filter forbids rt_sigreturn, by which clones start",
            "let its filter allow rt_sigreturn",
        ),
    ]
    .into_iter()
    .find(|(applies, ..)| *applies)
    .map(|(_, reason, remedy)| (reason, remedy))
}
