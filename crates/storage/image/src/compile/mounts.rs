//! The ops that mount for a clone what its parent had mounted for itself alone.

use std::os::unix::ffi::OsStrExt;

use farfork_plan::{Op, What};

use super::arena::Arena;
use crate::model::Mount;

/// Ops for the bind mounts among `mounts`, before any file is opened; none if there are none.
pub fn ops(mounts: &[Mount], arena: &mut Arena) -> Vec<Op> {
    let bound = mounts.iter().filter_map(|mount| Some((mount, mount.bound_from.as_ref()?)));
    let mut ops: Vec<Op> = bound
        .flat_map(|(mount, from)| {
            let point = arena.text(mount.point.as_os_str().as_bytes());
            let source = arena.text(from.as_os_str().as_bytes());
            let (from, to) = (from.display(), mount.point.display());
            let detail = arena.detail(&format!("{from} on {to}"));
            let again = libc::MS_REMOUNT | libc::MS_BIND | flags(&mount.options);
            [
                bind(source, point, libc::MS_BIND).about(detail),
                // The source's own options are those of its mount, not of this one.
                bind(0, point, again).about(detail),
            ]
        })
        .collect();
    if !ops.is_empty() {
        // With the parent's pids it has no mount namespace of its own yet.
        let namespace = [libc::CLONE_NEWNS as u64];
        ops.insert(0, Op::new(What::Mount, libc::SYS_unshare as u32, &namespace));
    }
    ops
}

fn bind(source: u64, point: u64, flags: libc::c_ulong) -> Op {
    Op::new(What::Mount, libc::SYS_mount as u32, &[source, point, 0, flags, 0])
}

fn flags(options: &str) -> libc::c_ulong {
    options.split(',').fold(0, |flags, option| {
        flags
            | match option {
                "ro" => libc::MS_RDONLY,
                "nosuid" => libc::MS_NOSUID,
                "nodev" => libc::MS_NODEV,
                "noexec" => libc::MS_NOEXEC,
                "noatime" => libc::MS_NOATIME,
                "nodiratime" => libc::MS_NODIRATIME,
                "relatime" => libc::MS_RELATIME,
                _ => 0,
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags() {
        assert_eq!(flags("rw"), 0);
        let all = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        assert_eq!(flags("ro,nosuid,nodev,noexec,nosymfollow"), all);
    }

    #[test]
    fn only_bind_mounts_are_made() {
        let mut arena = Arena::new();
        assert_eq!(ops(&[Mount::default()], &mut arena), []);
        let bound = Mount { bound_from: Some("/a".into()), ..Mount::default() };
        let numbers: Vec<u32> = ops(&[bound], &mut arena).iter().map(|op| op.nr).collect();
        let mount = libc::SYS_mount as u32;
        assert_eq!(numbers, [libc::SYS_unshare as u32, mount, mount]);
    }
}
