//! The capabilities that this process holds.

use super::users::{is_needed, with_rights};
use super::{Finding, Probe};
use crate::Group;
use caps::{CapSet, Capability};

const AS_ROOT: &str = "run as root, or give the capability to the program or container";

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "cap_sys_admin",
        group: Group::Required,
        needed_for: "new namespaces and mounting a pool",
        advice: AS_ROOT,
        look: || with_rights(|| held(Capability::CAP_SYS_ADMIN)),
    },
    Probe {
        id: "cap_sys_ptrace",
        group: Group::Required,
        needed_for: "stopping and reading processes of other users",
        advice: AS_ROOT,
        look: ptrace,
    },
    Probe {
        id: "cap_checkpoint_restore",
        group: Group::Required,
        needed_for: "giving clones the thread ids of their parent",
        advice: AS_ROOT,
        look: || with_rights(checkpoint_restore),
    },
    Probe {
        id: "cap_sys_resource",
        group: Group::Better,
        needed_for: "restoring limits above the hard limits of this process",
        advice: "raise the hard limits of farfork itself, so that clones stay below them",
        look: || held(Capability::CAP_SYS_RESOURCE),
    },
    Probe {
        id: "cap_net_admin",
        group: Group::Better,
        needed_for: "a network of its own for each container",
        advice: AS_ROOT,
        look: || held(Capability::CAP_NET_ADMIN),
    },
];

fn held(capability: Capability) -> Finding {
    match caps::has_cap(None, CapSet::Effective, capability) {
        Ok(true) => Ok("this process holds it".into()),
        Ok(false) => Err(not_held(capability)),
        Err(reason) => Err(format!("reading the capabilities of this process: {reason}")),
    }
}

/// The reason: the capability was dropped, or it is outside of the bounding set.
fn not_held(capability: Capability) -> String {
    match caps::has_cap(None, CapSet::Bounding, capability) {
        Ok(false) => format!("{capability} is outside of the bounding set: root lacks it, too"),
        _ => format!("this process does not hold {capability}"),
    }
}

/// Without root, the agent has the capability over clones in its user namespace.
fn ptrace() -> Finding {
    let own_only = |found| format!("{found}: your own processes can be checkpointed");
    let found = with_rights(|| held(Capability::CAP_SYS_PTRACE))?;
    Ok(if is_needed() { own_only(found) } else { found })
}

/// The kernel accepts CAP_SYS_ADMIN as well.
fn checkpoint_restore() -> Finding {
    held(Capability::CAP_CHECKPOINT_RESTORE).or_else(|reason| {
        held(Capability::CAP_SYS_ADMIN)
            .map(|_| "not held, but CAP_SYS_ADMIN replaces it".to_owned())
            .map_err(|_| reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::raw::in_child;

    #[test]
    fn a_dropped_capability_is_not_available() {
        let after_dropping = in_child(|| {
            caps::drop(None, CapSet::Effective, Capability::CAP_CHOWN).unwrap();
            held(Capability::CAP_CHOWN)
        });
        assert!(after_dropping.unwrap_err().contains("CAP_CHOWN"));
    }
}
