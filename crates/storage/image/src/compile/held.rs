//! What several processes of an image refer to. The root makes it before it forks anyone, and
//! keeps it at numbers of the restorer's own run, from which each process takes it.
//!
//! ```text
//!  spare run   OWN_FDS │ what the caller supplied, twice │ objects │ in flight │ held files
//! ```
//! Held are whole families of files, since one cannot be made without the others: both ends of a
//! pipe or pair, master and slaves of a terminal, all that have one file without a name open. What
//! the caller supplies needs no holding: every process has a copy of its slots.

use std::collections::{BTreeMap, BTreeSet};

use farfork_plan::protocol::OWN_FDS;

use super::{descriptors, family};
use crate::model::{Descriptor, Message, Model, OpenFile, Region, SocketRole};

/// Files that cannot be made apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kin {
    Alone(u32),
    Pipe(u64),
    Pair(u64),
    Terminal(u32),
    Unnamed(u32),
}

/// Held files and objects of an image.
#[derive(Debug, Default)]
pub struct Held {
    /// One for each held file, with its number in the spare run.
    pub descriptors: Vec<Descriptor>,
    /// Objects that several processes refer to.
    pub objects: BTreeSet<u32>,
}

impl Held {
    /// What of `model` has to be held; nothing if it has one process.
    pub fn of(model: &Model) -> Held {
        let mut held = Held::unnumbered(model);
        let first = first_number(model);
        for (descriptor, fd) in held.descriptors.iter_mut().zip(first..) {
            descriptor.fd = fd;
        }
        held
    }

    /// How many numbers held files take.
    pub fn count(model: &Model) -> u32 {
        Held::unnumbered(model).descriptors.len() as u32
    }

    /// The same, without numbers.
    pub fn unnumbered(model: &Model) -> Held {
        if !family::has_several(model) {
            return Held::default();
        }
        let files = files(model);
        let objects = objects(model, &files);
        let descriptor = |file| Descriptor { fd: 0, file, cloexec: true };
        Held { descriptors: files.into_iter().map(descriptor).collect(), objects }
    }

    /// The number at which a file is held.
    pub fn number(&self, file: u32) -> Option<u32> {
        self.descriptors.iter().find(|own| own.file == file).map(|own| own.fd)
    }

    /// The number of a file of those that are `alike`.
    pub fn find(&self, model: &Model, alike: impl Fn(&OpenFile) -> bool) -> Option<u32> {
        let mut own = self.descriptors.iter();
        own.find(|own| alike(&model.files[own.file as usize])).map(|own| own.fd)
    }
}

/// Objects that several members refer to.
pub fn shared_objects(model: &Model) -> BTreeSet<u32> {
    if family::has_several(model) { objects(model, &files(model)) } else { BTreeSet::new() }
}

fn first_number(model: &Model) -> u32 {
    let externals = descriptors::supplied(model).len() as u32;
    let objects = super::shared::Numbers::count(model);
    let in_flight = descriptors::InFlight::count(model);
    descriptors::spare(model).start + OWN_FDS + 2 * externals + objects + in_flight
}

/// Members that have a descriptor of `file`.
pub fn users(model: &Model, file: u32) -> impl Iterator<Item = usize> {
    let has =
        move |member: &usize| model.members[*member].descriptors.iter().any(|own| own.file == file);
    (0..model.members.len()).filter(has)
}

fn kin(model: &Model, file: u32) -> Option<Kin> {
    match &model.files[file as usize] {
        // A pidfd is made by each process that has it, when all are there.
        OpenFile::External { .. } | OpenFile::ProcessHandle { .. } => None,
        OpenFile::Pipe { pipe, .. } => Some(Kin::Pipe(*pipe)),
        OpenFile::SocketPair { pair, .. } => Some(Kin::Pair(*pair)),
        OpenFile::TerminalMaster { terminal, .. } | OpenFile::TerminalSlave { terminal, .. } => {
            Some(Kin::Terminal(*terminal))
        }
        OpenFile::Unnamed { file, .. } => Some(Kin::Unnamed(*file)),
        _ => Some(Kin::Alone(file)),
    }
}

/// Files to be held: families of files that several members have a part of, and terminals that
/// control a session, since they must before its leader forks. Also what is in flight, with the
/// sockets it waits in, and connections, none of which may be there before the lock on the network
/// goes.
fn files(model: &Model) -> Vec<u32> {
    let mut users: BTreeMap<Kin, BTreeSet<usize>> = BTreeMap::new();
    let mut open = BTreeMap::new();
    for (index, member) in model.members.iter().enumerate() {
        for own in &member.descriptors {
            if let Some(kin) = kin(model, own.file) {
                users.entry(kin).or_default().insert(index);
                open.insert(own.file, kin);
            }
        }
    }
    let in_flight = in_flight(model);
    let is_early = |kin: &Kin| match kin {
        Kin::Terminal(terminal) => model.terminals[*terminal as usize].session != 0,
        Kin::Alone(file) => is_connection(&model.files[*file as usize]),
        _ => false,
    };
    open.retain(|_, kin| users[kin].len() > 1 || is_early(kin) || in_flight.contains(kin));
    open.into_keys().collect()
}

/// Files that wait in sockets to be received, and these sockets.
fn in_flight(model: &Model) -> BTreeSet<Kin> {
    let mut found = BTreeSet::new();
    for (index, file) in (0u32..).zip(&model.files) {
        let OpenFile::SocketPair { incoming, .. } = file else { continue };
        let mut files = sent(incoming).peekable();
        if files.peek().is_some() {
            found.extend(files.chain([index]).filter_map(|file| kin(model, file)));
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
    // Made by one process, before there are others: the kernel is told the id of the next one.
    let all = (0u32..).zip(&model.objects);
    shared.extend(all.filter(|(_, object)| object.is_system_v()).map(|(index, _)| index));
    shared
}
