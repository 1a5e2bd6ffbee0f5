//! System V objects, and the IPC namespace that they are in.
//!
//! ```text
//!  /proc/sysvipc ─► is it of the processes? ─► values, messages, bytes
//!                   └─ and of others? ─► refusal
//! ```
//! A clone that has such objects is in a namespace of its own, where they have their ids and keys.
//! If no other process is in the namespace, all its objects are theirs. In farfork's own namespace,
//! theirs are the objects that they have attached, and those that one of them was the last to use:
//! the kernel shows no more. It shows users by pid, also the pids of dead processes, so an object
//! that a killed program left may be taken for theirs. Times would separate the two, but only while
//! the clock is not set, and a missing object is worse for a clone than one too many.

mod namespace;
mod tables;

use std::io;

use farfork_image::model::{MessageQueue, QueuedMessage, SemaphoreSet, SystemVIdentity};
use farfork_sys::{ipc, kcmp, proc};
use farfork_types::{PAGE_BYTES, align_up};

use crate::error::{CheckpointError, doing};
use crate::refuse::{Refusals, causes};
pub use namespace::is_same;
use namespace::{inside, is_own};
pub use tables::Segment;
use tables::{Queue, Row, Set};

/// What some processes have of System V.
#[derive(Debug, Default)]
pub struct Ipc {
    /// Whether they are in another namespace than farfork.
    pub is_own: bool,
    /// Their semaphores.
    pub semaphores: Vec<SemaphoreSet>,
    /// Their message queues.
    pub queues: Vec<MessageQueue>,
    /// Segments of theirs that no process has attached.
    pub unattached: Vec<Segment>,
}

/// All segments in the namespace of process `pid`.
pub fn segments(pid: i32) -> io::Result<Vec<Segment>> {
    table(pid)
}

/// The bytes of a segment in the namespace of process `pid`.
pub fn bytes(pid: i32, segment: Segment) -> io::Result<std::fs::File> {
    inside(pid, move || ipc::segment(segment.id, align_up(segment.size, PAGE_BYTES)))
}

fn table<T: Row>(pid: i32) -> io::Result<Vec<T>> {
    inside(pid, || Ok(tables::parse(&proc::text(format!("/proc/sysvipc/{}", T::TABLE))?)))
}

impl Ipc {
    /// What stopped processes, which are in one namespace, have of System V besides what they have
    /// attached. What cannot be carried goes to `refusals`.
    pub fn collect(pids: &[i32], refusals: &mut Refusals) -> Result<Ipc, CheckpointError> {
        let Some(pid) = pids.first().copied() else { return Ok(Ipc::default()) };
        refusals.about(pid);
        let is_own = is_own(pids, refusals)?;
        let mut found = Ipc { is_own, ..Ipc::default() };
        let looked = found.look(pids, refusals);
        match looked {
            Err(error) if is_own && error.kind() == io::ErrorKind::PermissionDenied => {
                refusals.add("process", causes::namespaces::IPC);
            }
            other => other.map_err(doing(pid, "read the System V objects"))?,
        }
        found.refuse_undo(pids, refusals)?;
        Ok(found)
    }

    fn look(&mut self, pids: &[i32], refusals: &mut Refusals) -> io::Result<()> {
        let pid = pids[0];
        let ownership = Ownership { pids, is_own: self.is_own };
        for set in table::<Set>(pid)? {
            let users = match inside(pid, move || ipc::semaphore_users(set.id, set.count)) {
                // A process that may not read it does not use it either.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                users => users?,
            };
            if ownership.claims(&users, &format!("semaphore set {}", set.id), refusals) {
                let values = inside(pid, move || ipc::semaphore_values(set.id, set.count))?;
                self.semaphores.push(SemaphoreSet {
                    identity: identity(set.id, set.key, set.mode, set.owner, set.creator),
                    values,
                    was_used: set.used_at != 0,
                });
            }
        }
        for queue in table::<Queue>(pid)? {
            if ownership.claims(&queue.users, &format!("message queue {}", queue.id), refusals) {
                self.queues.push(inside(pid, move || read(queue))?);
            }
        }
        let loose = table::<Segment>(pid)?.into_iter().filter(|segment| segment.attached == 0);
        let is_theirs = |segment: &Segment| {
            ownership.claims(&segment.users, &format!("System V segment {}", segment.id), refusals)
        };
        self.unattached.extend(loose.filter(is_theirs));
        Ok(())
    }

    /// The semaphore changes that the kernel undoes when a process exits belong to that process,
    /// and the kernel does not show them.
    fn refuse_undo(&self, pids: &[i32], refusals: &mut Refusals) -> Result<(), CheckpointError> {
        if self.semaphores.is_empty() {
            return Ok(());
        }
        let ids = self.semaphores.iter().map(|set| set.identity.id.to_string());
        let sets = format!("System V semaphore set {}", ids.collect::<Vec<_>>().join(", "));
        for pid in pids {
            let has = kcmp::has_undo_list(*pid).map_err(|errno| {
                doing(*pid, "compare the lists of semaphore changes to undo (kcmp)")(errno.into())
            })?;
            if has {
                refusals.about(*pid);
                refusals.add(sets.as_str(), causes::process::SEM_UNDO);
            }
        }
        Ok(())
    }
}

/// Which objects belong to some processes.
struct Ownership<'p> {
    pids: &'p [i32],
    is_own: bool,
}

impl Ownership<'_> {
    /// Whether an object that these `users` were the last to use is theirs; refuses it if another
    /// process used it, too.
    fn claims(&self, users: &[i32], words: &str, refusals: &mut Refusals) -> bool {
        let is_ours = |user: &i32| self.pids.contains(user);
        if !self.is_own && !users.iter().any(is_ours) {
            return false;
        }
        let mut others = users.iter().filter(|user| **user != 0 && !is_ours(user));
        let lives = |user: &&i32| proc::state(**user).is_some();
        if let Some(other) = others.find(lives).filter(|_| !self.is_own) {
            let object = format!("{words}, also in process {other}");
            refusals.add(object, causes::namespaces::IPC_SHARED);
        }
        true
    }
}

fn identity(
    id: u32,
    key: i32,
    mode: u32,
    owner: (u32, u32),
    creator: (u32, u32),
) -> SystemVIdentity {
    SystemVIdentity { id, key, mode: mode & 0o777, owner, creator }
}

fn read(queue: Queue) -> io::Result<MessageQueue> {
    let mut messages = Vec::new();
    while messages.len() < queue.count {
        let Some((kind, bytes)) = ipc::message(queue.id, messages.len(), queue.bytes)? else {
            break;
        };
        messages.push(QueuedMessage { kind, bytes });
    }
    Ok(MessageQueue {
        identity: identity(queue.id, queue.key, queue.mode, queue.owner, queue.creator),
        capacity: ipc::queue_capacity(queue.id)?,
        messages,
    })
}
