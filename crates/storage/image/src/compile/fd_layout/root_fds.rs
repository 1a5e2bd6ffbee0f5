//! Descriptors that several processes of a tree refer to. The root makes them before it forks, at numbers
//! of the restorer's own run, from which each process takes them.
//!
//! Files that cannot be made one without the other belong together: both ends of a pipe or pair, master
//! and slaves of a terminal, all descriptions of one file without a name. What the caller supplies is not
//! among them: every process has a copy of its slots.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Descriptor, Message, Model, OpenFile, Region, SocketRole};

/// Files that cannot be made one without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileGroup {
    Alone(u32),
    Pipe(u64),
    Pair(u64),
    Terminal(u32),
    Unnamed(u32),
}

/// Files and objects that the root of a tree makes for several processes.
#[derive(Debug, Default)]
pub struct RootFds {
    /// One for each of these files, with its number in the spare run.
    pub descriptors: Vec<Descriptor>,
    /// Objects that several processes refer to.
    pub objects: BTreeSet<u32>,
}

impl RootFds {
    /// What of `model` the root makes; nothing if it has one process.
    pub fn unnumbered(model: &Model) -> RootFds {
        if !model.is_tree() {
            return RootFds::default();
        }
        let files = files(model);
        let objects = objects(model, &files);
        let descriptor = |file| Descriptor { fd: 0, file, cloexec: true };
        RootFds { descriptors: files.into_iter().map(descriptor).collect(), objects }
    }

    /// Gives numbers from `first` on.
    pub fn number_from(&mut self, first: u32) {
        for (descriptor, fd) in self.descriptors.iter_mut().zip(first..) {
            descriptor.fd = fd;
        }
    }

    /// How many numbers they take.
    pub fn count(&self) -> u32 {
        self.descriptors.len() as u32
    }

    /// The number at which the root has a file.
    pub fn number(&self, file: u32) -> Option<u32> {
        self.descriptors.iter().find(|own| own.file == file).map(|own| own.fd)
    }

    /// The number of a file of those that are `alike`.
    pub fn find(&self, model: &Model, alike: impl Fn(&OpenFile) -> bool) -> Option<u32> {
        let mut own = self.descriptors.iter();
        own.find(|own| alike(&model.files[own.file as usize])).map(|own| own.fd)
    }
}

/// Members that have a descriptor of `file`.
pub fn users(model: &Model, file: u32) -> impl Iterator<Item = usize> {
    let has =
        move |member: &usize| model.members[*member].descriptors.iter().any(|own| own.file == file);
    (0..model.members.len()).filter(has)
}

fn group_of(model: &Model, file: u32) -> Option<FileGroup> {
    match &model.files[file as usize] {
        // A pidfd is made by each process that has it, when all are there.
        OpenFile::External { .. } | OpenFile::ProcessHandle { .. } => None,
        OpenFile::Pipe { pipe, .. } => Some(FileGroup::Pipe(*pipe)),
        OpenFile::SocketPair { pair, .. } => Some(FileGroup::Pair(*pair)),
        OpenFile::TerminalMaster { terminal, .. } | OpenFile::TerminalSlave { terminal, .. } => {
            Some(FileGroup::Terminal(*terminal))
        }
        OpenFile::Unnamed { file, .. } => Some(FileGroup::Unnamed(*file)),
        _ => Some(FileGroup::Alone(file)),
    }
}

/// Files to be held: groups of files that several members have a part of, and terminals that
/// control a session, since they must before its leader forks. Also what is in flight, with the
/// sockets it waits in, and connections, none of which may be there before the lock on the network
/// goes.
fn files(model: &Model) -> Vec<u32> {
    let mut users: BTreeMap<FileGroup, BTreeSet<usize>> = BTreeMap::new();
    let mut open = BTreeMap::new();
    for (index, member) in model.members.iter().enumerate() {
        for own in &member.descriptors {
            if let Some(group) = group_of(model, own.file) {
                users.entry(group).or_default().insert(index);
                open.insert(own.file, group);
            }
        }
    }
    let in_flight = in_flight(model);
    let is_early = |group: &FileGroup| match group {
        FileGroup::Terminal(terminal) => model.terminals[*terminal as usize].session != 0,
        FileGroup::Alone(file) => is_connection(&model.files[*file as usize]),
        _ => false,
    };
    open.retain(|_, group| users[group].len() > 1 || is_early(group) || in_flight.contains(group));
    open.into_keys().collect()
}

/// Files that wait in sockets to be received, and these sockets.
fn in_flight(model: &Model) -> BTreeSet<FileGroup> {
    let mut found = BTreeSet::new();
    for (index, file) in (0u32..).zip(&model.files) {
        let OpenFile::SocketPair { incoming, .. } = file else { continue };
        let mut files = sent(incoming).peekable();
        if files.peek().is_some() {
            found.extend(files.chain([index]).filter_map(|file| group_of(model, file)));
        }
    }
    found
}

/// The files that come with messages.
fn sent(messages: &[Message]) -> impl Iterator<Item = u32> {
    messages.iter().flat_map(|message| message.files.iter().copied())
}

fn is_connection(file: &OpenFile) -> bool {
    let OpenFile::Socket(socket) = file else { return false };
    matches!(socket.role, SocketRole::Established(_))
}

/// Objects that several members map or have open, that a held file has open, or one in flight.
fn objects(model: &Model, held: &[u32]) -> BTreeSet<u32> {
    let object = |file: u32| match model.files[file as usize] {
        OpenFile::Object { object, .. } => Some(object),
        _ => None,
    };
    let in_flight = model.files.iter().flat_map(|file| match file {
        OpenFile::SocketPair { incoming, .. } => sent(incoming).collect(),
        _ => Vec::new(),
    });
    let early = held.iter().copied().chain(in_flight);
    let mut shared: BTreeSet<u32> = early.filter_map(object).collect();
    let mut seen = BTreeSet::new();
    for member in &model.members {
        let mapped = member.memory.regions.iter().filter_map(Region::object);
        let open = member.descriptors.iter().filter_map(|own| object(own.file));
        let own: BTreeSet<u32> = mapped.chain(open).collect();
        shared.extend(own.intersection(&seen));
        seen.extend(own);
    }
    // Made by one process, before there are others: it sets the id that the kernel gives next.
    let all = (0u32..).zip(&model.objects);
    shared.extend(all.filter(|(_, object)| object.is_system_v()).map(|(index, _)| index));
    shared
}
