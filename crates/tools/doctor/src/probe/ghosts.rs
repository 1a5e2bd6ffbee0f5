//! Containers that wait to become clones.

use super::raw::in_child;
use super::{Finding, Probe, while_doing};
use crate::Group;
use farfork_sys::layer::Layer;
use farfork_sys::mounts;
use nix::sched::{CloneFlags, unshare};
use std::io;
use std::path::Path;
use std::process::Command;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "runc",
        group: Group::Ghosts,
        needed_for: "the containers of ghosts",
        advice: "apt-get install runc (setup/system.sh does)",
        look: runc,
    },
    Probe {
        id: "container_namespaces",
        group: Group::Ghosts,
        needed_for: "network, System V IPC and host name of a ghost",
        advice: "run as root; in a container, allow unshare in the seccomp profile",
        look: || in_child(namespaces),
    },
    Probe {
        id: "container_root",
        group: Group::Ghosts,
        needed_for: "the root file system of a ghost",
        advice: "run as root; in a container, allow mount in the seccomp profile",
        look: || in_child(root),
    },
    Probe {
        id: "container_layer",
        group: Group::Ghosts,
        needed_for: "functions that write to their working directory",
        advice: "load or build overlayfs (modprobe overlay; CONFIG_OVERLAY_FS, CONFIG_TMPFS_XATTR)",
        look: layer,
    },
];

fn runc() -> Finding {
    let output = Command::new("runc").arg("--version").output().map_err(|error| match error {
        error if error.kind() == io::ErrorKind::NotFound => "runc is not installed".to_owned(),
        error => while_doing("running runc")(error),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().next().unwrap_or_default().trim();
    if output.status.success() && version.starts_with("runc version ") {
        return Ok(version.to_owned());
    }
    Err(format!("runc --version prints no version ({})", output.status))
}

fn namespaces() -> Finding {
    let wanted = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    unshare(wanted).map_err(while_doing("creating network, IPC and UTS namespaces"))?;
    Ok("created network, IPC and UTS namespaces".to_owned())
}

/// Mounts / as for a ghost, in a mount namespace that ends with this child.
fn root() -> Finding {
    use nix::mount::{MsFlags, mount};
    let nothing = None::<&str>;
    mounts::own_namespace().map_err(while_doing("creating a mount namespace"))?;
    mount(Some("/"), "/proc", nothing, MsFlags::MS_REC | MsFlags::MS_BIND, nothing)
        .map_err(while_doing("bind-mounting /"))?;
    Ok("bind-mounted /".to_owned())
}

fn layer() -> Finding {
    let (lower, at) = (Path::new("/usr"), Path::new("/tmp"));
    let layer = Layer { name: "farfork-trial", lower, at, most_bytes: None };
    layer.try_out().map_err(while_doing("mounting an overlay on a tmpfs"))?;
    Ok("mounted an overlay on a tmpfs".to_owned())
}
