//! What users without root can do. Their checkpoints need no capability, and their clones are in a user
//! namespace of the agent.

use super::raw::{Mapping, PAGE_BYTES, clone_with_tid, in_child};
use super::{Finding, Probe, while_doing};
use crate::Group;
use caps::{CapSet, Capability};
use nix::sched::{CloneFlags, unshare};
use std::fs;

const AS_ROOT: &str = "run farfork and its node agent as root if you need it";

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "user_namespace",
        group: Group::Users,
        needed_for: "clones of a user's own processes, without root",
        advice: "sysctl user.max_user_namespaces=10000, kernel.unprivileged_userns_clone=1, \
                 kernel.apparmor_restrict_unprivileged_userns=0; in a container allow unshare in \
                 the seccomp profile",
        look: || in_child(user_namespace),
    },
    Probe {
        id: "map_files",
        group: Group::Users,
        needed_for: "processes with shared anonymous memory",
        advice: AS_ROOT,
        look: map_files,
    },
    Probe {
        id: "same_pid",
        group: Group::Users,
        needed_for: "restore --pid-mode same",
        advice: AS_ROOT,
        look: || in_child(same_pid),
    },
];

/// Whether this process lacks the capability to create namespaces, so that it needs a user namespace.
pub(super) fn is_needed() -> bool {
    !caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false)
}

/// Moves this process to a new user namespace with its own ids and all capabilities.
pub(super) fn user_namespace() -> Finding {
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(while_doing("creating a user namespace"))?;
    let map = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(while_doing("mapping the ids of this process"))
    };
    map("setgroups", "deny".to_owned())?;
    map("uid_map", format!("{uid} {uid} 1"))?;
    map("gid_map", format!("{gid} {gid} 1"))?;
    Ok("created one with the ids of this process".to_owned())
}

/// Runs a probe, in a user namespace if this process lacks capabilities.
pub(super) fn with_rights(look: fn() -> Finding) -> Finding {
    if !is_needed() {
        return look();
    }
    in_child(|| {
        user_namespace()?;
        look().map(|found| format!("{found}, in a user namespace"))
    })
    .map_err(|reason| format!("without root, in a user namespace: {reason}"))
}

/// Opens a page of shared anonymous memory by the only path that it has.
fn map_files() -> Finding {
    let page = Mapping::shared(PAGE_BYTES).map_err(while_doing("mapping a shared page"))?;
    let at = page.addresses();
    fs::File::open(format!("/proc/self/map_files/{:x}-{:x}", at.start, at.end))
        .map_err(while_doing("opening shared memory under /proc/PID/map_files"))?;
    Ok("opened shared memory under /proc/PID/map_files".to_owned())
}

/// Uses a free pid: that of a child that has just exited.
fn same_pid() -> Finding {
    let free = in_child(|| Ok(std::process::id().to_string()))?;
    let tid = free.parse().map_err(|_| format!("invalid pid {free}"))?;
    clone_with_tid(tid).map_err(while_doing("starting a process with a chosen id"))?;
    Ok(format!("started a process with id {tid} in this PID namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{geteuid, setresgid, setresuid};

    const NOBODY: u32 = 65534;

    /// Drops every capability, as a process without root has none.
    fn without_capabilities(look: fn() -> Finding) -> Finding {
        in_child(|| {
            caps::clear(None, CapSet::Effective).map_err(|error| error.to_string())?;
            look()
        })
    }

    #[test]
    fn without_capabilities_some_of_it_is_not_available() {
        assert!(without_capabilities(|| Ok(is_needed().to_string())).is_ok_and(|is| is == "true"));
        for look in [map_files, same_pid] {
            let reason = without_capabilities(look).expect_err("needs a capability");
            assert!(reason.contains("not permitted"), "{reason}");
        }
    }

    #[test]
    fn a_user_namespace_has_capabilities() {
        let found = in_child(|| {
            if geteuid().is_root() {
                setresgid(NOBODY.into(), NOBODY.into(), NOBODY.into()).unwrap();
                setresuid(NOBODY.into(), NOBODY.into(), NOBODY.into()).unwrap();
                // As for a process that was executed by this user.
                nix::sys::prctl::set_dumpable(true).unwrap();
            }
            assert!(is_needed());
            with_rights(|| Ok((!is_needed()).to_string()))
        });
        assert_eq!(found, Ok("true, in a user namespace".to_owned()));
    }
}
