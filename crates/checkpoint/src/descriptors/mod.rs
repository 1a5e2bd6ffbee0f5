//! The open descriptors of a stopped process.
//!
//! ```text
//!  /proc/PID/fd, fdinfo ─► table ─► share (kcmp) ─► one capture per open file description
//!                                                   ├─ OpenFile      carried, or supplied later
//!                                                   └─ refusal       in words
//! ```
//! Invariants: nothing of the process changes (pipes are read by `tee`, sockets by `MSG_PEEK`);
//! descriptors made by `dup` stay one file, also with one that is in flight in a Unix socket; whatever is not known to be carried whole is refused;
//! the files come in the order of their first descriptors, those in flight last.

mod anonymous;
mod connection;
mod epoll;
mod error;
mod event;
mod external;
mod fdinfo;
mod held;
mod in_flight;
mod inet;
mod inotify;
mod multicast;
mod netlink;
mod network;
mod options;
mod pair;
mod path;
mod pipe;
mod raw;
mod share;
mod socket;
mod subject;
mod table;
mod terminal;
mod timer;
mod unix;
mod unnamed;

use farfork_image::model::{Descriptor, Lock, Notice, OpenFile, Terminal, UnnamedFile};
use farfork_plan::protocol::MAX_REQUEST_FDS;

use crate::refuse::{Refusals, causes};
use crate::shared::Objects;
pub use connection::{Connections, Kept};
pub use error::DescriptorError;
use error::{Capture, Refused, Stop};
use fdinfo::O_PATH;
use subject::Subject;
use table::{Entry, Kind};

/// Descriptors that a request to start a clone carries for itself: pool, status socket, pin.
const REQUEST_FDS: usize = 3;

/// Descriptors of a process and the open file descriptions behind them.
#[derive(Debug, Default)]
pub struct Collected {
    /// By number.
    pub descriptors: Vec<Descriptor>,
    /// What they refer to.
    pub files: Vec<OpenFile>,
    /// Files without a name among them.
    pub unnamed: Vec<UnnamedFile>,
    /// Terminals whose masters are among them.
    pub terminals: Vec<Terminal>,
    /// Locks and leases on them.
    pub locks: Vec<Lock>,
    /// Those that signal the process.
    pub notices: Vec<Notice>,
    /// Its connections, if they are to go on.
    pub kept: Option<Kept>,
}

/// Collects the descriptors of process `pid`, which is stopped and stays so; some may be of its
/// shared `objects`. What cannot be carried goes to `refusals` and is left out.
pub fn collect(
    pid: i32,
    objects: &Objects,
    connections: Connections,
    refusals: &mut Refusals,
) -> Result<Collected, DescriptorError> {
    let mut entries = table::read(pid)?;
    refuse_private_tables(pid, refusals)?;
    let mut groups = share::groups(pid, &entries)?;
    let mut subject = Subject::of(pid, &mut entries, &mut groups, connections)?;
    let leaders = subject::leaders(&entries, &groups);
    let mut collected = Collected::default();
    collected.terminals.resize_with(subject.terminals(), Terminal::default);
    for group in &groups {
        let first = &entries[group[0]];
        match collected.take(first, &leaders, &subject, objects) {
            Ok(file) => collected.add(file, group.iter().map(|index| &entries[*index])),
            Err(Stop::Refused(Refused { detail, cause })) => {
                refusals.add(first.object(&detail), cause);
            }
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
    collected.descriptors.sort_by_key(|descriptor| descriptor.fd);
    refuse_too_many_externals(&collected.files, refusals);
    collected.kept = subject.kept.take();
    Ok(collected)
}

/// Lets the TCP connections of process `pid` end in resets when it dies: to be called when that is
/// certain.
pub fn reset_on_death(pid: i32) -> Result<(), DescriptorError> {
    let mut entries = table::read(pid)?;
    let mut groups = share::groups(pid, &entries)?;
    let subject = Subject::of(pid, &mut entries, &mut groups, Connections::End)?;
    subject::leaders(&entries, &groups)
        .into_iter()
        .filter(|entry| entry.kind() == Kind::Socket && !entry.is_standard())
        .try_for_each(|entry| inet::reset_on_death(entry, &subject))
}

impl Collected {
    /// Captures a description, the file behind it if that has no name, and what it holds.
    fn take(
        &mut self,
        entry: &Entry,
        leaders: &[&Entry],
        subject: &Subject,
        objects: &Objects,
    ) -> Capture {
        let file = capture(entry, subject, objects)?;
        in_flight::check(entry, &file)?;
        if let OpenFile::Unnamed { file: index, .. } = file {
            // Those before it that have no content were refused.
            let before = self.unnamed.len().max(index as usize);
            self.unnamed.resize_with(before, UnnamedFile::default);
            if before == index as usize {
                let extents = self.unnamed.iter().flat_map(|other| &other.extents);
                let taken = extents.map(|(_, bytes)| bytes.len() as u64).sum();
                self.unnamed.push(unnamed::read(entry, subject, taken)?);
            }
        }
        if let (OpenFile::TerminalMaster { terminal: index, .. }, Some(number)) =
            (&file, terminal::number(entry))
        {
            let slave = terminal::slave(leaders, number);
            self.terminals[*index as usize] = terminal::read(entry, slave, subject)?;
        }
        let (locks, notice) = held::collect(entry, subject, &file, self.files.len() as u32)?;
        self.locks.extend(locks);
        self.notices.extend(notice);
        Ok(file)
    }

    fn add<'e>(&mut self, file: OpenFile, entries: impl Iterator<Item = &'e Entry>) {
        let index = self.files.len() as u32;
        self.files.push(file);
        let numbered = entries.filter(|entry| entry.held.is_none());
        self.descriptors.extend(numbered.map(|entry| Descriptor {
            fd: entry.fd,
            file: index,
            cloexec: entry.info.is_cloexec(),
        }));
    }
}

fn capture(entry: &Entry, subject: &Subject, objects: &Objects) -> Capture {
    if entry.info.flags & O_PATH != 0 {
        return path::capture(entry, subject);
    }
    if let Some(object) = objects.of_inode(&entry.inode) {
        let (flags, offset) = (entry.info.status_flags(), entry.info.position);
        return Ok(OpenFile::Object { object, flags, offset });
    }
    match entry.kind() {
        Kind::Anonymous(name) => anonymous::capture(name, entry, subject),
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
            .map_err(error::asking(pid, "which threads share its descriptors"))?;
        if !is_shared {
            refusals.add(format!("descriptors of thread {tid}"), causes::threads::OWN_TABLE);
        }
    }
    Ok(())
}

fn refuse_too_many_externals(files: &[OpenFile], refusals: &mut Refusals) {
    let externals = files.iter().filter(|file| matches!(file, OpenFile::External { .. })).count();
    let most = MAX_REQUEST_FDS - REQUEST_FDS;
    if externals > most {
        refusals.add(
            format!("{externals} descriptors that lead out of the process, {most} at most"),
            causes::descriptors::TOO_MANY_OUTSIDE,
        );
    }
}
