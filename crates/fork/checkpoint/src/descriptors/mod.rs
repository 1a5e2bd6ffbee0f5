//! The open descriptors of stopped processes, all in one table: what they inherited from each other
//! is one file.
//!
//! ```text
//!  /proc/PID/fd, fdinfo ─► table ─► share (kcmp) ─► one capture per open file description
//!                                                   ├─ OpenFile      carried, or supplied later
//!                                                   └─ refusal       in words
//! ```
//! Invariants: nothing of the processes changes (pipes are read by `tee`, sockets by `MSG_PEEK`);
//! descriptors made by `dup` stay one file; whatever is not known to be carried whole is refused;
//! the files come in the order of their first descriptors.

mod anonymous;
mod connection;
mod context;
mod epoll;
mod error;
mod event;
mod external;
mod fdinfo;
mod handle;
mod in_flight;
mod inet;
mod locks;
mod multicast;
mod netlink;
mod network;
mod options;
mod other_processes;
mod packet;
mod pair;
mod path;
mod pipe;
mod pty;
mod raw;
mod ring;
mod share;
mod socket;
mod subject;
mod table;
mod terminal;
mod timer;
mod tree;
mod unix;
mod unnamed;
mod watches;

use std::rc::Rc;

use farfork_image::model::{Descriptor, Lock, Notice, OpenFile, Terminal, UnnamedFile};
use farfork_plan::protocol::MAX_REQUEST_FDS;

use crate::ids::Ids;
use crate::refuse::{Refusals, causes};
use crate::shared::Objects;
pub use connection::{Connections, KeptConnections};
pub use error::DescriptorError;
use error::{CaptureError, CaptureResult, Refused};
use fdinfo::O_PATH;
use locks::HeldLocks;
use subject::Subject;
use table::{Entry, Kind};
pub use tree::TreeDescriptors;

/// Descriptors that a request to start a clone carries for itself: pool, status socket, pin.
const REQUEST_FDS: usize = 3;

/// Descriptors of some processes and the open file descriptions behind them.
#[derive(Debug, Default)]
pub struct Collected {
    /// What each process has, in the order of the processes.
    pub own: Vec<ProcessDescriptors>,
    /// What the descriptors refer to.
    pub files: Vec<OpenFile>,
    /// Files without a name among them.
    pub unnamed: Vec<UnnamedFile>,
    /// By place in `unnamed`: which of the files without a name it is to the processes.
    read: Vec<u32>,
    /// Terminals whose masters are among them.
    pub terminals: Vec<Terminal>,
    /// Connections of the processes, if they are to go on.
    pub kept: Option<Rc<KeptConnections>>,
}

/// What a process has.
#[derive(Debug, Default)]
pub struct ProcessDescriptors {
    /// Its descriptors, by number.
    pub descriptors: Vec<Descriptor>,
    /// Locks and leases that it takes in a clone.
    pub locks: Vec<Lock>,
    /// Those of its files that send signals, where no process before it has them.
    pub notices: Vec<Notice>,
}

/// Reads which descriptors processes `pids` have, which are stopped and stay so, and which are in
/// flight between them.
pub fn read(
    pids: &[i32],
    ids: &Ids,
    connections: Connections,
    refusals: &mut Refusals,
) -> Result<TreeDescriptors, DescriptorError> {
    for pid in pids {
        refusals.about(*pid);
        refuse_private_tables(*pid, refusals)?;
    }
    TreeDescriptors::read(pids, ids, connections)
}

/// Collects what the descriptors of a tree refer to; some may be of shared `objects`. What cannot be
/// carried goes to `refusals` and is left out. The root's descriptor `supplied` becomes external.
pub fn collect(
    tree: &TreeDescriptors,
    objects: &Objects,
    supplied: Option<u32>,
    refusals: &mut Refusals,
) -> Result<Collected, DescriptorError> {
    let pids = &tree.context().pids;
    let leaders: Vec<&Entry> = tree.groups().map(|group| group[0]).collect();
    let mut collected = Collected::default();
    collected.own.resize_with(pids.len(), ProcessDescriptors::default);
    collected.terminals.resize_with(tree.context().terminals(), Terminal::default);
    let is_supplied = |entry: &&Entry| entry.is_supplied(supplied);
    if let Some(fd) = supplied.filter(|_| !tree.groups().flatten().any(|one| is_supplied(&one))) {
        refusals.add(format!("descriptor {fd}"), causes::descriptors::NOT_OPEN);
    }
    for group in tree.groups() {
        let outside = group.iter().find(|entry| is_supplied(entry));
        match collected.take(&group, outside.copied(), (&leaders, tree, objects)) {
            Ok(file) => collected.add(file, &group, tree),
            Err(CaptureError::Refused(Refused { detail, cause })) => {
                refusals.about(group[0].pid);
                refusals.add(group[0].object(&detail), cause);
            }
            Err(CaptureError::Failed(error)) => return Err(error),
        }
    }
    for own in &mut collected.own {
        own.descriptors.sort_by_key(|descriptor| descriptor.fd);
    }
    inet::find_those_within(&mut collected.files);
    refuse_too_many_externals(&collected.files, refusals);
    if pids.len() > 1 {
        refuse_own_in_flight(&collected.files, refusals);
    }
    collected.kept = tree.context().kept().cloned();
    Ok(collected)
}

/// Lets the TCP connections of processes `pids` end in resets when they die: to be called when that
/// is certain.
pub fn reset_on_death(pids: &[i32]) -> Result<(), DescriptorError> {
    let tree = TreeDescriptors::read(pids, &Ids::default(), Connections::End)?;
    let firsts = tree.groups().map(|group| group[0]);
    firsts
        .filter(|entry| entry.kind() == Kind::Socket && !entry.is_standard())
        .try_for_each(|entry| inet::reset_on_death(entry, tree.subject(entry)))
}

impl Collected {
    /// Captures a description, the file behind it if that has no name, and what it holds.
    fn take(
        &mut self,
        group: &[&Entry],
        outside: Option<&Entry>,
        (leaders, tree, objects): (&[&Entry], &TreeDescriptors, &Objects),
    ) -> CaptureResult {
        let entry = group[0];
        let subject = tree.subject(entry);
        let mut file = match outside {
            Some(outside) => external::of(format!("{}, supplied to each clone", outside.link)),
            None => capture(group, subject, objects)?,
        };
        in_flight::check(entry, &file)?;
        if let OpenFile::Unnamed { file: index, .. } = &mut file {
            *index = self.unnamed(*index, entry, subject)?;
        }
        if let (OpenFile::TerminalMaster { terminal: index, .. }, Some(number)) =
            (&file, pty::number(entry))
        {
            let slave = pty::slave(leaders, number);
            self.terminals[*index as usize] = terminal::read(entry, slave, subject)?;
        }
        let HeldLocks { locks, notice } =
            locks::collect(group, subject, &file, self.files.len() as u32)?;
        for (pid, lock) in locks {
            self.own[tree.place(pid)].locks.push(lock);
        }
        self.own[tree.place(entry.pid)].notices.extend(notice);
        Ok(file)
    }

    /// The place in the image of file `index` of those that have no name, which is read once. Not all of
    /// them have one: what is mapped, too, is a shared object.
    fn unnamed(
        &mut self,
        index: u32,
        entry: &Entry,
        subject: &Subject,
    ) -> Result<u32, CaptureError> {
        if let Some(place) = self.read.iter().position(|read| *read == index) {
            return Ok(place as u32);
        }
        let extents = self.unnamed.iter().flat_map(|other| &other.extents);
        let taken = extents.map(|(_, bytes)| bytes.len() as u64).sum();
        self.unnamed.push(unnamed::read(entry, subject, taken)?);
        self.read.push(index);
        Ok(self.read.len() as u32 - 1)
    }

    fn add(&mut self, file: OpenFile, group: &[&Entry], tree: &TreeDescriptors) {
        let index = self.files.len() as u32;
        self.files.push(file);
        for entry in group.iter().filter(|entry| entry.held.is_none()) {
            let cloexec = entry.info.is_cloexec();
            let descriptor = Descriptor { fd: entry.fd, file: index, cloexec };
            self.own[tree.place(entry.pid)].descriptors.push(descriptor);
        }
    }
}

/// The description behind `group`, descriptors of one or several processes.
fn capture(group: &[&Entry], subject: &Subject, objects: &Objects) -> CaptureResult {
    let entry = group[0];
    path::check_inherited(group)?;
    if entry.info.flags & O_PATH != 0 {
        return path::capture(entry, subject);
    }
    if let Some(object) = objects.of_inode(&entry.inode) {
        let (flags, offset) = (entry.info.status_flags(), entry.info.position);
        return Ok(OpenFile::Object { object, flags, offset });
    }
    match entry.kind() {
        Kind::Anonymous(name) => anonymous::capture(name, group, subject),
        Kind::Pipe => pipe::capture(entry, subject),
        Kind::Socket => socket::capture(entry, subject),
        Kind::Terminal => terminal::capture(entry, subject),
        Kind::Master => terminal::master(entry, subject),
        Kind::Device => path::device(entry, subject),
        Kind::Path => path::capture(entry, subject),
    }
}

/// Threads that have left the common table (`unshare(CLONE_FILES)`) have descriptors of their own.
fn refuse_private_tables(pid: i32, refusals: &mut Refusals) -> Result<(), DescriptorError> {
    for tid in table::threads(pid)? {
        let is_shared = farfork_sys::kcmp::shares_table(pid, tid)
            .map_err(error::kernel_error(pid, "the descriptor tables of the threads"))?;
        if !is_shared {
            refusals.add(format!("descriptors of thread {tid}"), causes::threads::OWN_TABLE);
        }
    }
    Ok(())
}

/// The first of several processes makes what is in flight, before there are others: not what each
/// process has to make, or to be brought, for itself.
fn refuse_own_in_flight(files: &[OpenFile], refusals: &mut Refusals) {
    for file in files {
        let OpenFile::SocketPair { incoming, .. } = file else { continue };
        let sent = incoming.iter().flat_map(|message| &message.files);
        // Where another was refused, places are not what they were; nothing is written then.
        for sent in sent.filter_map(|index| files.get(*index as usize)) {
            let words = match sent {
                OpenFile::External { description } => description.as_str(),
                OpenFile::ProcessHandle { .. } => "pidfd",
                _ => continue,
            };
            refusals.add(format!("{words} in flight"), causes::sockets::PAIR_TREE);
        }
    }
}

fn refuse_too_many_externals(files: &[OpenFile], refusals: &mut Refusals) {
    let externals = files.iter().filter(|file| matches!(file, OpenFile::External { .. })).count();
    let most = MAX_REQUEST_FDS - REQUEST_FDS;
    if externals > most {
        refusals.add(
            format!("{externals} external descriptors, at most {most}"),
            causes::descriptors::TOO_MANY_OUTSIDE,
        );
    }
}
