//! Files whose bytes come from a process, and virtual machines.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use rustix::process::{getegid, geteuid};

use super::{Finding, Probe, while_doing};
use crate::Group;

/// `FUSE_HAS_RESEND` among the second 32 flags of the kernel's first request, from linux/fuse.h.
const HAS_RESEND: u32 = 1 << (39 - 32);
/// Where these flags stand: after the header of 40 bytes, two versions, a length and the first 32 flags.
const FLAGS_AT: usize = 40 + 16;
/// The kernel demands room for the largest request.
const REQUEST_BYTES: usize = 64 << 10;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "fuse_file_system",
        group: Group::Later,
        needed_for: "clones of images on another node, seeds, and snapshots as files (vm map)",
        advice: "run as root; load the module fuse, and give the container /dev/fuse",
        look: || {
            first_flags()?;
            Ok("mounted a file system of its own through /dev/fuse".to_owned())
        },
    },
    Probe {
        id: "fuse_resend",
        group: Group::Later,
        needed_for: "going on when a process that serves such a file system is killed",
        advice: "use Linux 6.9 or later",
        look: fuse_resend,
    },
    Probe {
        id: "rdma",
        group: Group::Later,
        needed_for: "one-sided reads of images on another node (far serve --rdma)",
        advice: "build farfork with the feature rdma, install libibverbs1 and ibverbs-providers, and use a machine \
                 with a device, or load the module rdma_rxe and run rdma link add rxe0 type rxe netdev DEVICE",
        look: || {
            let found = farfork_fabric::rdma::examine().map_err(|error| error.to_string())?;
            Ok(format!("opened {}", found.join(", ")))
        },
    },
    Probe {
        id: "kvm",
        group: Group::Later,
        needed_for: "virtual machines, which farfork vm restores",
        advice: "use a machine whose processor has virtualisation or passes it on, and allow /dev/kvm",
        look: kvm,
    },
];

fn fuse_resend() -> Finding {
    match first_flags()? & HAS_RESEND {
        0 => Err("the kernel does not send requests again".to_owned()),
        _ => Ok("the kernel offers to send requests again".to_owned()),
    }
}

/// Mounts a file system that nothing looks into, and reads which features the kernel offers to the process that would
/// serve it.
fn first_flags() -> Result<u32, String> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let mut device = device.map_err(while_doing("opening /dev/fuse"))?;
    let mount = || -> rustix::io::Result<OwnedFd> {
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "fd", device.as_raw_fd().to_string())?;
        fsconfig_set_string(&context, "rootmode", "40000")?;
        fsconfig_set_string(&context, "user_id", geteuid().as_raw().to_string())?;
        fsconfig_set_string(&context, "group_id", getegid().as_raw().to_string())?;
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    let _mounted = mount().map_err(while_doing("mounting a FUSE file system"))?;
    let mut request = vec![0; REQUEST_BYTES];
    let got = device.read(&mut request).map_err(while_doing("reading its first request"))?;
    let flags = request[..got].get(FLAGS_AT..FLAGS_AT + 4);
    let flags = flags.and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    flags.ok_or_else(|| format!("its first request has only {got} bytes"))
}

fn kvm() -> Finding {
    let device = File::options().read(true).write(true).open("/dev/kvm");
    device.map_err(while_doing("opening /dev/kvm"))?;
    Ok("opened /dev/kvm".to_owned())
}
