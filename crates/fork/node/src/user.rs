//! An agent without root works in a user namespace of its own.
//!
//! In it the agent keeps its ids and holds every capability over the namespaces that are made from
//! there, which is what clones need: a PID and a mount namespace, `/proc`, pids of choice. Over
//! anything outside it has no more rights than before. The only ids in the namespace are the
//! agent's own, so that its clones have those and no others.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use caps::{CapSet, Capability};
use farfork_image::model::{Credentials, Model};
use nix::sched::{CloneFlags, unshare};

use crate::error::NodeError;

const PERMITTED: usize = 1;

/// The ids of an agent that is not root, and of all its clones.
#[derive(Debug)]
pub struct OwnIds {
    uid: u32,
    gid: u32,
    groups: BTreeSet<u32>,
}

/// Moves this process, which must have one thread only, to a user namespace, unless it has CAP_SYS_ADMIN.
/// Returns the ids that all clones then must have.
pub fn settle() -> Result<Option<OwnIds>, NodeError> {
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false) {
        return Ok(None);
    }
    let own = OwnIds::read()?;
    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(io::Error::from)
        .and_then(|()| own.map())
        .and_then(|()| keep_capabilities())
        .map_err(|source| NodeError::UserNamespace { source })?;
    Ok(Some(own))
}

/// Makes all capabilities ambient: `execve` of the template drops the others. Clones give up every
/// capability that their parents did not have.
fn keep_capabilities() -> io::Result<()> {
    let failed = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    let all = caps::read(None, CapSet::Permitted).map_err(failed)?;
    caps::set(None, CapSet::Inheritable, &all).map_err(failed)?;
    caps::set(None, CapSet::Ambient, &all).map_err(failed)
}

/// Whether the kernel lets users without privileges supply pages to processes that the kernel works for.
pub fn may_supply_pages() -> bool {
    let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    allowed.is_ok_and(|allowed| allowed.trim() == "1")
}

impl OwnIds {
    fn read() -> Result<OwnIds, NodeError> {
        let groups = nix::unistd::getgroups()
            .map_err(|errno| NodeError::UserNamespace { source: errno.into() })?;
        Ok(OwnIds {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        })
    }

    /// Gives the new namespace this process's ids. The kernel demands that `setgroups` is denied first: a
    /// process could leave a group that has fewer rights to a file.
    fn map(&self) -> io::Result<()> {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", self.uid))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", self.gid))
    }

    /// Refuses an image whose process had an identity that this agent cannot give.
    pub fn check(&self, name: &str, model: &Model) -> Result<(), NodeError> {
        let threads = model.members.iter().flat_map(|member| &member.threads);
        let all = threads.map(|thread| &thread.credentials);
        match all.filter_map(|credentials| self.difference(credentials)).next() {
            Some(what) => Err(NodeError::OtherIdentity { name: name.to_owned(), what }),
            None => Ok(()),
        }
    }

    fn difference(&self, theirs: &Credentials) -> Option<String> {
        let Credentials { uids, gids, groups, capabilities, .. } = theirs;
        if let Some(uid) = uids.iter().find(|uid| **uid != self.uid) {
            return Some(format!("ran as user {uid}, this agent runs as user {}", self.uid));
        }
        if let Some(gid) = gids.iter().find(|gid| **gid != self.gid) {
            return Some(format!("ran as group {gid}, this agent runs as group {}", self.gid));
        }
        if self.groups != groups.iter().copied().collect() {
            let (theirs, own) = (list(groups.iter()), list(self.groups.iter()));
            return Some(format!("was in the groups {theirs}, this agent is in {own}"));
        }
        (capabilities[PERMITTED] != 0).then(|| "had capabilities".to_owned())
    }
}

fn list<'a>(groups: impl Iterator<Item = &'a u32>) -> String {
    let words: Vec<String> = groups.map(u32::to_string).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_agents_own_identity_fits() {
        let own = OwnIds { uid: 1000, gid: 100, groups: BTreeSet::from([100, 27]) };
        let fits = Credentials {
            uids: [1000; 4],
            gids: [100; 4],
            groups: vec![27, 100],
            ..Credentials::default()
        };
        assert_eq!(own.difference(&fits), None);
        let with = |change: fn(&mut Credentials)| {
            let mut other = fits.clone();
            change(&mut other);
            own.difference(&other).expect("a difference")
        };
        assert!(with(|other| other.uids[2] = 0).contains("user 0"));
        assert!(with(|other| other.gids[1] = 5).contains("group 5"));
        assert!(with(|other| other.groups.clear()).contains("none"));
        assert!(with(|other| other.capabilities[PERMITTED] = 1).contains("capabilities"));
    }
}
