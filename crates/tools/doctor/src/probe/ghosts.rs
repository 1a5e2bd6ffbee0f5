//! Containers that wait to become clones.

use super::raw::in_child;
use super::{Finding, Probe, while_doing};
use crate::Group;
use nix::sched::{CloneFlags, unshare};
use std::io;
use std::process::Command;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "runc",
        group: Group::Ghosts,
        needed_for: "making the containers of ghosts",
        advice: "apt-get install runc (setup/system.sh does)",
        look: runc,
    },
    Probe {
        id: "container_namespaces",
        group: Group::Ghosts,
        needed_for: "a network, System V IPC and a host name of a ghost's own",
        advice: "run as root; in a container, allow unshare in the seccomp profile",
        look: || in_child(namespaces),
    },
    Probe {
        id: "container_root",
        group: Group::Ghosts,
        needed_for: "showing a ghost the files of its node",
        advice: "run as root; in a container, allow mount in the seccomp profile",
        look: || in_child(root),
    },
];

fn runc() -> Finding {
    let output = Command::new("runc").arg("--version").output().map_err(|error| match error {
        error if error.kind() == io::ErrorKind::NotFound => "it is not installed".to_owned(),
        error => while_doing("running it")(error),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().next().unwrap_or_default().trim();
    if output.status.success() && version.starts_with("runc version ") {
        return Ok(version.to_owned());
    }
    Err(format!("it does not tell its version ({})", output.status))
}

fn namespaces() -> Finding {
    let wanted = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    unshare(wanted).map_err(while_doing("making network, IPC and UTS namespaces"))?;
    Ok("made network, IPC and UTS namespaces".to_owned())
}

/// As it is done for a ghost, in a mount namespace that ends with this child.
fn root() -> Finding {
    use nix::mount::{MsFlags, mount};
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).map_err(while_doing("making a mount namespace"))?;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
        .map_err(while_doing("keeping mounts to it"))?;
    mount(Some("/"), "/proc", nothing, MsFlags::MS_REC | MsFlags::MS_BIND, nothing)
        .map_err(while_doing("mounting / in another place"))?;
    Ok("mounted / in another place".to_owned())
}
