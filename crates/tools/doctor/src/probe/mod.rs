//! One file per family of probes. `unsafe` code is in [`raw`].

mod cgroups;
mod criu;
mod far;
mod filters;
mod ghosts;
mod limits;
mod machine;
mod media;
mod memory;
mod namespaces;
mod privileges;
mod raw;
mod sockets;
mod tracing;
mod users;

use crate::{Capability, Group};
use farfork_sys::words;
use std::io;

pub(crate) use machine::name as machine_name;

/// `Ok`: available, and what was found. `Err`: not available, and why not.
type Finding = Result<String, String>;

/// A probe of one capability.
pub(crate) struct Probe {
    id: &'static str,
    group: Group,
    needed_for: &'static str,
    /// What to do if it is missing.
    advice: &'static str,
    look: fn() -> Finding,
}

impl Probe {
    pub(crate) fn run(&self) -> Capability {
        let finding = (self.look)();
        let available = finding.is_ok();
        Capability {
            id: self.id,
            group: self.group,
            available,
            found: finding.unwrap_or_else(|reason| reason),
            needed_for: self.needed_for,
            advice: (!available).then_some(self.advice),
        }
    }
}

/// Every probe of every family.
pub(crate) fn all() -> impl Iterator<Item = &'static Probe> {
    let families: [&'static [Probe]; 14] = [
        machine::PROBES,
        privileges::PROBES,
        tracing::PROBES,
        namespaces::PROBES,
        users::PROBES,
        memory::PROBES,
        media::PROBES,
        sockets::PROBES,
        filters::PROBES,
        cgroups::PROBES,
        ghosts::PROBES,
        limits::PROBES,
        far::PROBES,
        criu::PROBES,
    ];
    families.into_iter().flatten()
}

/// Reads a file of `/proc` or `/sys`. `None` if the kernel does not have it.
fn setting(path: impl AsRef<std::path::Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Turns an error into "what was being done: why it failed".
fn while_doing<E: Into<io::Error>>(doing: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{doing}: {}", words::of(&error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_own_id_and_texts() {
        let mut ids: Vec<_> = all().map(|probe| probe.id).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "two probes share an id: {ids:?}");
        for probe in all() {
            assert!(!probe.needed_for.is_empty() && !probe.advice.is_empty(), "{}", probe.id);
        }
    }

    #[test]
    fn a_failed_probe_gives_its_reason_and_the_advice() {
        let probe = Probe {
            id: "warp",
            group: Group::Later,
            needed_for: "speed",
            advice: "wait",
            look: || Err("no warp drive".into()),
        };
        let capability = probe.run();
        assert!(!capability.available);
        assert_eq!((capability.found.as_str(), capability.advice), ("no warp drive", Some("wait")));
    }

    /// Denies each probe its system call, as the seccomp filter of a container would.
    #[test]
    fn a_denied_system_call_is_not_available() {
        for (id, number) in [
            ("ptrace", libc::SYS_ptrace),
            ("rseq_configuration", libc::SYS_ptrace),
            ("pidfd_getfd", libc::SYS_pidfd_getfd),
            ("kcmp", libc::SYS_kcmp),
            ("pid_namespace", libc::SYS_unshare),
            ("clone3_set_tid", libc::SYS_clone3),
            ("mount_namespace", libc::SYS_unshare),
            ("network_namespace", libc::SYS_unshare),
            ("time_namespace", libc::SYS_unshare),
            ("user_namespace", libc::SYS_unshare),
            ("map_files", libc::SYS_openat),
            ("same_pid", libc::SYS_clone3),
            ("pagemap_scan", libc::SYS_ioctl),
            ("procmap_query", libc::SYS_ioctl),
            ("process_madvise", libc::SYS_process_madvise),
            ("userfaultfd", libc::SYS_userfaultfd),
            ("userfaultfd_minor_shmem", libc::SYS_ioctl),
            ("tmpfs_huge_pages", libc::SYS_fsopen),
            ("unix_diag", libc::SYS_sendto),
            ("seccomp_user_notification", libc::SYS_seccomp),
            ("seccomp_user_notification", libc::SYS_clone3),
            ("container_namespaces", libc::SYS_unshare),
            ("container_root", libc::SYS_mount),
            ("fuse_resend", libc::SYS_fsopen),
            ("kvm", libc::SYS_openat),
            ("io_uring", libc::SYS_io_uring_setup),
            ("cgroup_memory", libc::SYS_mkdir),
        ] {
            let probe = all().find(|probe| probe.id == id).expect("a probe of this name");
            let finding = raw::in_child(|| {
                raw::deny_system_call(number).map_err(while_doing("installing the filter"))?;
                (probe.look)()
            });
            let reason = finding.expect_err(id);
            assert!(!reason.contains("installing the filter"), "{id}: {reason}");
        }
    }
}
