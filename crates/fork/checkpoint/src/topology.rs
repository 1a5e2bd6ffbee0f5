//! Parents, sessions and process groups of the processes, as far as a clone can have them.
//!
//! ```text
//!  session or group ─┬─ its leader is a member                    kept
//!                    ├─ its leader is dead, and no process        kept, under the id it has
//!                    │  outside of the tree is in it
//!                    └─ else it comes from outside                0: the clone's own surroundings
//! ```
//! Invariant: no more than one session and one group come from outside, so that processes that were
//! apart in the parent are apart in the clone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use farfork_image::model::{Kinship, Member, Process};

use crate::error::CheckpointError;
use crate::ids::Ids;
use crate::refuse::{Refusals, causes};
use crate::stat::{self, Stat};
use crate::tree::{StoppedTree, TreeProcess};
use farfork_sys::status::Status;

/// Kinship of a tree, looked at once.
pub struct ProcessTopology<'f> {
    tree: &'f StoppedTree,
    known: Vec<MemberIds>,
    outside: OutsideIds,
}

/// Session and group of a member, by their ids here and in the innermost PID namespace.
struct MemberIds {
    own: u32,
    session: SessionOrGroupId,
    group: SessionOrGroupId,
}

/// A session or group.
#[derive(Clone, Copy)]
struct SessionOrGroupId {
    here: u32,
    inner: u32,
}

/// Sessions and groups of processes outside of the tree.
#[derive(Default)]
struct OutsideIds {
    sessions: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

impl<'f> ProcessTopology<'f> {
    /// Looks at all members.
    pub fn read(tree: &'f StoppedTree) -> Result<ProcessTopology<'f>, CheckpointError> {
        let known = tree.members().iter().map(MemberIds::read).collect::<Result<Vec<_>, _>>()?;
        let ids = || known.iter().flat_map(|known| [known.session, known.group]);
        // A leader that lives outside decides without a look at all processes.
        let is_leaderless = ids().any(|id| !tree.has(id.here as i32) && !exists(id.here));
        let outside = if is_leaderless { OutsideIds::read(tree) } else { OutsideIds::default() };
        Ok(ProcessTopology { tree, known, outside })
    }

    /// Kinship of the member with this index.
    pub fn kinship(&self, index: usize) -> Result<Kinship, CheckpointError> {
        let process = &self.tree.members()[index];
        let (known, stat) = (&self.known[index], Stat::read(process.pid)?);
        let exit_signal = stat.field(stat::EXIT_SIGNAL) as u32;
        Ok(Kinship {
            parent: process.parent.map(|parent| parent as u32),
            exit_signal: if index == 0 { libc::SIGCHLD as u32 } else { exit_signal },
            session: self.kept(known.session, &self.outside.sessions),
            group: self.kept(known.group, &self.outside.groups),
            ended: process.stopped.is_none().then(|| stat.field(stat::WAIT_STATUS) as i32),
        })
    }

    /// A member that has ended.
    pub fn ended(&self, index: usize) -> Result<Member, CheckpointError> {
        let process = Process { pid: self.known[index].own, ..Process::default() };
        Ok(Member { kinship: self.kinship(index)?, process, ..Member::default() })
    }

    /// Ids of all members, and of the groups that a clone has.
    pub fn ids(&self) -> Ids {
        let members = self.tree.members().iter().zip(&self.known);
        let processes = members.map(|(member, known)| (member.pid, known.own)).collect();
        let groups = self.known.iter().map(|known| known.group);
        let groups = groups
            .map(|group| (group.here as i32, self.kept(group, &self.outside.groups)))
            .filter(|(_, inside)| *inside != 0)
            .collect();
        Ids { processes, groups }
    }

    fn kept(&self, id: SessionOrGroupId, outside: &BTreeSet<u32>) -> u32 {
        let is_kept = id.inner != 0
            && (self.tree.has(id.here as i32) || !outside.contains(&id.here) && !exists(id.here));
        if is_kept { id.inner } else { 0 }
    }

    /// Refuses what would be mixed up.
    pub fn check(&self, refusals: &mut Refusals) {
        let (mut sessions, mut groups) = (BTreeSet::new(), BTreeSet::new());
        for (known, process) in self.known.iter().zip(self.tree.members()) {
            refusals.about(process.pid);
            let session = self.kept(known.session, &self.outside.sessions);
            let group = self.kept(known.group, &self.outside.groups);
            let is_second = |all: &mut BTreeSet<u32>, here: u32| all.insert(here) && all.len() > 1;
            if session == 0 && is_second(&mut sessions, known.session.here) {
                let object = format!("session {}", known.session.here);
                refusals.add(object, causes::process::SESSION_OUTSIDE);
            }
            let object = || format!("process group {}", known.group.here);
            if group == 0 && (session != 0 || is_second(&mut groups, known.group.here)) {
                refusals.add(object(), causes::process::GROUP_OUTSIDE);
            }
            if self.has_left(known.group) {
                refusals.add(object(), causes::process::GROUP_LEFT);
            }
        }
    }

    /// Whether the process that made a group is a member, but no longer of the group.
    fn has_left(&self, group: SessionOrGroupId) -> bool {
        let members = self.known.iter().zip(self.tree.members());
        let mut maker = members.filter(|(_, member)| member.pid == group.here as i32);
        maker.any(|(known, _)| known.group.here != group.here)
    }
}

impl MemberIds {
    fn read(process: &TreeProcess) -> Result<MemberIds, CheckpointError> {
        let status = Status::read(process.pid, process.pid)?;
        Ok(MemberIds {
            own: status.innermost_pid,
            session: SessionOrGroupId { here: status.session_here, inner: status.session },
            group: SessionOrGroupId { here: status.group_here, inner: status.group },
        })
    }
}

impl OutsideIds {
    fn read(tree: &StoppedTree) -> OutsideIds {
        let names = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let others = pids.filter(|pid| !tree.has(*pid));
        let mut outside = OutsideIds::default();
        for stat in others.filter_map(|pid| Stat::read(pid).ok()) {
            outside.sessions.insert(stat.field(stat::SESSION) as u32);
            outside.groups.insert(stat.field(stat::GROUP) as u32);
        }
        outside
    }
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
