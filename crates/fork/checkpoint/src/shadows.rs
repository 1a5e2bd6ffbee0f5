//! Frozen copies of a process, the shadows of seeds: how they are known, and reaping dead ones.
//!
//! A shadow is a child of its process that sends no signal when it ends, so that the process does
//! not notice it; nothing else reaps it but farfork.

use farfork_sys::proc;
use farfork_sys::status::Status;

use crate::error::CheckpointError;
use crate::inject::{ABANDONED, COPY_NAME, Injector};
use crate::stat::{self, Stat};

/// Whether a process is the shadow of a seed, alive or dead. One that has ended before it had its
/// name is known by its exit code.
pub fn is_shadow(pid: i32) -> bool {
    let name = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim_end() == COPY_NAME {
        return true;
    }
    proc::state(pid) == Some('Z')
        && Stat::read(pid).is_ok_and(|stat| {
            stat.field(stat::EXIT_SIGNAL) == 0
                && stat.field(stat::WAIT_STATUS) == i64::from(ABANDONED) << 8
        })
}

/// Has the process reap its dead shadows.
pub fn reap(injector: &Injector<'_>) -> Result<(), CheckpointError> {
    let pid = injector.pid();
    let children = proc::children(pid);
    let is_dead = |child: &&i32| proc::state(**child) == Some('Z') && is_shadow(**child);
    let dead: Vec<&i32> = children.iter().filter(is_dead).collect();
    if dead.is_empty() {
        return Ok(());
    }
    let leader = injector.thread(pid)?;
    for child in dead {
        let Ok(status) = Status::read(*child, *child) else { continue };
        let how = (libc::__WCLONE | libc::WNOHANG) as u64;
        let args = [status.innermost_pid.into(), 0, how, 0, 0, 0];
        leader.try_call(libc::SYS_wait4, args)?;
    }
    Ok(())
}
