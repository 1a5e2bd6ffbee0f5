//! Whatever descriptors a process has, the ops make just these.

use std::collections::BTreeMap;

use farfork_plan::PlanHeader;
use proptest::prelude::*;

use super::simulate::{Made, Open, Table, Thing};
use super::{Subject, ops};
use crate::compile::arena::Arena;
use crate::compile::fd_layout::{FdLayout, Supplied, externals, replaceables};
use crate::model::{
    Descriptor, EpollWatch, FanotifyMark, FileIdentity, InotifyWatch, Lock, LockKind, Member,
    Message, Model, Notice, OpenFile, Socket, SocketFile, SocketOption, SocketRole, Terminal,
    UnnamedFile,
};

/// So few numbers that gaps and collisions are common.
const NUMBERS: u32 = 24;

/// Numbers from half of them on may lie further up, which leaves the restorer's in between.
fn number(drawn: u32, further: u32) -> u32 {
    if drawn < NUMBERS / 2 { drawn } else { drawn + further }
}

fn pipe(pipe: u64, is_write_end: bool, content: &[u8]) -> OpenFile {
    let content = if is_write_end { Vec::new() } else { content.to_vec() };
    OpenFile::Pipe { pipe, is_write_end, flags: 0, capacity: 4096, content }
}

fn end(pair: u64, end: u32, waiting: &[u8]) -> OpenFile {
    let message = |bytes: &[u8]| Message { bytes: bytes.to_vec(), ..Message::default() };
    let (incoming, buffers) = ([waiting, &[end as u8 + 1]].map(message).to_vec(), (4096, 212_992));
    let (kind, flags, shutdown, options) = (1, 0, 1, Vec::new());
    OpenFile::SocketPair { pair, end, kind, flags, incoming, shutdown, buffers, options }
}

fn socket(id: u64, content: &[u8]) -> OpenFile {
    let role = match id % 4 {
        0 => SocketRole::Listening { backlog: id as u32 },
        1 => SocketRole::Connected { peer: content.to_vec() },
        2 => SocketRole::Ended { is_reset: true },
        _ => SocketRole::Idle,
    };
    let option = |(name, byte): (usize, &u8)| SocketOption {
        level: libc::SOL_SOCKET,
        name: name as i32,
        value: vec![*byte; 4],
    };
    OpenFile::Socket(Box::new(Socket {
        file: Some(SocketFile { place: "/s".into(), mode: 0o600, user: 1, group: 2 }),
        description: format!("socket {id}"),
        family: if id.is_multiple_of(3) { libc::AF_UNIX } else { libc::AF_INET } as u32,
        kind: id as u32,
        protocol: libc::IPPROTO_TCP as u32,
        options: content.iter().enumerate().map(option).collect(),
        name: (content.len() > 1).then(|| content.to_vec()),
        role,
        ..Socket::default()
    }))
}

fn place(number: u32, id: u64) -> InotifyWatch {
    let (path, identity) = (format!("/place/{id}/{number}").into(), FileIdentity::default());
    InotifyWatch { number, path, mask: number << 4, identity }
}

fn mark(id: u64, is_file_system: bool) -> FanotifyMark {
    let (path, identity) = (format!("/mark/{id}").into(), FileIdentity::default());
    let (mask, ignored, flags) = (id % 3, (id % 2) << 5, libc::FAN_MARK_IGNORED_SURV_MODIFY);
    FanotifyMark { path, identity, is_file_system, flags, mask, ignored }
}

/// The files of one kind, with an identity that no other has.
fn files(kind: u8, id: u64, content: &[u8]) -> Vec<OpenFile> {
    match kind {
        0 => vec![OpenFile::Path {
            path: format!("/file/{id}").into(),
            flags: 0,
            offset: id,
            stamp: None,
            identity: FileIdentity::default(),
        }],
        1 => vec![OpenFile::Event { count: id << 33 | 1, flags: 0, is_semaphore: false }],
        2 => vec![pipe(id, false, content), pipe(id, true, content)],
        3 => vec![end(id, 0, content), end(id, 1, content)],
        4 => vec![OpenFile::Epoll { flags: 0, watches: Vec::new() }],
        // Opened twice: made in its final form, or to be opened again.
        5 => [libc::O_WRONLY | libc::O_TMPFILE, libc::O_RDONLY][id as usize % 2..]
            .iter()
            .chain([&libc::O_WRONLY])
            .map(|flags| OpenFile::Unnamed { file: id as u32, flags: *flags as u32, offset: id })
            .collect(),
        6 => vec![OpenFile::Inotify {
            flags: 0,
            watches: [3, id as u32 + 7].map(|number| place(number, id)).to_vec(),
        }],
        7 => vec![OpenFile::ProcessHandle { member: 0, flags: 0 }],
        8 => vec![
            OpenFile::TerminalMaster { terminal: id as u32, path: "/dev/ptmx".into(), flags: 2 },
            OpenFile::TerminalSlave { terminal: id as u32, flags: 2 },
            OpenFile::TerminalSlave { terminal: id as u32, flags: 0 },
        ],
        9 => vec![socket(id, content)],
        10 => vec![OpenFile::Fanotify {
            flags: 0,
            group: libc::FAN_NONBLOCK,
            event_flags: 0,
            marks: vec![mark(id, id.is_multiple_of(5)), mark(id + 1, false)],
        }],
        _ => vec![OpenFile::External { description: format!("outside {id}") }],
    }
}

fn numbers_of(supplied: Vec<Supplied>) -> Vec<u32> {
    supplied.into_iter().map(|own| own.fd).collect()
}

fn member(descriptors: Vec<Descriptor>) -> Vec<Member> {
    let mut member = Member { descriptors, ..Member::default() };
    member.process.pid = 1;
    vec![member]
}

fn terminal() -> Terminal {
    Terminal { is_hung_up: true, session: 1, is_locked: true, ..Terminal::default() }
}

/// Leaves out slaves whose master is not there: they are supplied by the caller.
fn with_masters(mut model: Model) -> Model {
    let is_there = |index: usize| model.root().descriptors.iter().any(|d| d.file as usize == index);
    let masters: Vec<u32> = (0..model.files.len())
        .filter(|index| is_there(*index))
        .filter_map(|index| match &model.files[index] {
            OpenFile::TerminalMaster { terminal, .. } => Some(*terminal),
            _ => None,
        })
        .collect();
    for file in &mut model.files {
        if matches!(file, OpenFile::TerminalSlave { terminal, .. } if !masters.contains(terminal)) {
            *file = OpenFile::External { description: "a terminal".into() };
        }
    }
    model
}

/// More than there are kinds in a model.
const UNNAMED: u64 = 10;

/// Content around a hole, and a hole at the end.
fn unnamed(id: u64) -> UnnamedFile {
    let extents = vec![(id, vec![id as u8; 3]), (id + 90, vec![1, 2])];
    UnnamedFile { directory: "/tmp".into(), size: id + 99, extents, ..UnnamedFile::default() }
}

fn unnamed_bytes(id: u64) -> Vec<u8> {
    let UnnamedFile { size, extents, .. } = unnamed(id);
    let mut bytes = vec![0; size as usize];
    for (offset, part) in extents {
        bytes[offset as usize..][..part.len()].copy_from_slice(&part);
    }
    bytes
}

/// Files of all kinds in any order, at numbers in any order; an end without a number is one that
/// the parent had closed.
pub fn models() -> impl Strategy<Value = Model> {
    let kinds = prop::collection::vec((0u8..12, prop::collection::vec(any::<u8>(), 1..9)), 1..9);
    let files = kinds.prop_map(|kinds| {
        let kinds = kinds.iter().enumerate();
        kinds.flat_map(|(id, (kind, bytes))| files(*kind, id as u64 + 1, bytes)).collect::<Vec<_>>()
    });
    let files = files.prop_flat_map(|files| Just(files).prop_shuffle());
    let numbers = prop::collection::btree_map(0..NUMBERS, (any::<u32>(), any::<bool>()), 0..20);
    let watches = prop::collection::vec((any::<usize>(), any::<usize>()), 0..6);
    let further = prop_oneof![Just(0u32), Just(20), Just(500)];
    (files, numbers, watches, further).prop_map(|(files, numbers, watches, further)| {
        let count = files.len() as u32;
        let descriptors = numbers
            .into_iter()
            .map(|(fd, (file, cloexec))| (number(fd, further), file % count, cloexec))
            .map(|(fd, file, cloexec)| Descriptor { fd, file, cloexec })
            .collect();
        let unnamed = (0..UNNAMED).map(unnamed).collect();
        let terminals = vec![terminal(); UNNAMED as usize];
        let model =
            Model { files, members: member(descriptors), unnamed, terminals, ..Model::default() };
        let model = with_masters(model);
        with_flight(with_locks(with_watches(model, &watches), &watches), &watches)
    })
}

/// Locks of all kinds on any files, also such as nothing is left of.
fn with_locks(mut model: Model, drawn: &[(usize, usize)]) -> Model {
    use LockKind::*;
    let count = model.files.len();
    let is_ours = |file: &usize| model.files[*file].flags().is_some();
    let files: Vec<usize> = (0..count).filter(is_ours).collect();
    for (first, second) in drawn.iter().filter(|_| !files.is_empty()) {
        let file = files[first % files.len()] as u32;
        let kind = [Whole, Process, Description, Lease][second % 4];
        let (is_write, start) = (first % 2 == 0, *second as u64 >> 8);
        model.members[0].locks.push(Lock { file, kind, is_write, start, length: start % 5 });
        model.members[0].notices.push(Notice { file, owner: 1, signal: 29, is_async: true });
    }
    model
}

/// Messages with one or two files, which may have numbers or not, and be the very socket.
fn with_flight(mut model: Model, drawn: &[(usize, usize)]) -> Model {
    let of = |wanted: fn(&OpenFile) -> bool| -> Vec<usize> {
        (0..model.files.len()).filter(|file| wanted(&model.files[*file])).collect()
    };
    let ends = of(|file| matches!(file, OpenFile::SocketPair { .. }));
    let sendable = of(|file| {
        use OpenFile::{Epoll, External, Fanotify, Inotify, TerminalMaster, TerminalSlave};
        !matches!(
            file,
            Epoll { .. }
                | Inotify { .. }
                | Fanotify { .. }
                | External { .. }
                | TerminalMaster { .. }
                | TerminalSlave { .. }
        )
    });
    for (first, second) in drawn.iter().filter(|_| !ends.is_empty()) {
        let files = [*first, second >> 4].map(|drawn| sendable[drawn % sendable.len()] as u32);
        let files = files[..1 + second % 2].to_vec();
        let sender = (first % 3 == 0).then_some((1, 2));
        if let OpenFile::SocketPair { incoming, .. } = &mut model.files[ends[second % ends.len()]] {
            incoming.push(Message { bytes: vec![*first as u8], files, sender });
        }
    }
    // What nothing locks by has no lock.
    for member in &mut model.members {
        let Member { descriptors, locks, notices, .. } = member;
        let numbered = |file: u32| descriptors.iter().any(|descriptor| descriptor.file == file);
        locks.retain(|lock| numbered(lock.file));
        notices.retain(|notice| numbered(notice.file));
    }
    model
}

fn with_watches(mut model: Model, pairs: &[(usize, usize)]) -> Model {
    let numbers: Vec<u32> =
        model.root().descriptors.iter().map(|descriptor| descriptor.fd).collect();
    let epolls: Vec<usize> = (0..model.files.len())
        .filter(|file| matches!(model.files[*file], OpenFile::Epoll { .. }))
        .collect();
    if numbers.is_empty() || epolls.is_empty() {
        return model;
    }
    for (epoll, watched) in pairs {
        let fd = numbers[watched % numbers.len()];
        let added = EpollWatch { member: 0, fd, events: fd + 1, data: u64::from(fd) << 32 };
        if let OpenFile::Epoll { watches, .. } = &mut model.files[epolls[epoll % epolls.len()]] {
            watches.push(added);
        }
    }
    model
}

/// Of what the caller may supply, every other is left out; `leave` says which of two.
fn check(model: &Model, gap: u32, leave: bool) {
    let mut arena = Arena::new();
    let fds = FdLayout::compute(model);
    let halves = ops(Subject::root(model, &fds), &mut arena);
    let compiled = [halves.early, halves.late].concat();
    let memory = arena.finish(PlanHeader::default());
    let replaceable = numbers_of(replaceables(model));
    let left_out = replaceable.into_iter().enumerate();
    let left_out = left_out.filter(|(index, _)| (index % 2 == 0) == leave).map(|(_, fd)| fd);
    let external = numbers_of(fds.supplied.clone());
    let flying = fds.in_flight.count();
    let left_out = left_out.collect();
    let mut table = Table::new(fds.spare.clone(), &external, flying, &memory, gap, left_out);
    table.run(&compiled);
    check_table(model, &table, |number| {
        model.root().descriptors.iter().find(|own| own.fd == number).unwrap().file
    });
}

/// The table of the root alone; `supplied` gives the file that a thing from outside stands for.
pub fn check_table(model: &Model, table: &Table<'_>, supplied: impl Fn(u32) -> u32) {
    let numbers: Vec<u32> =
        model.root().descriptors.iter().map(|descriptor| descriptor.fd).collect();
    assert_eq!(table.fds.keys().copied().collect::<Vec<_>>(), numbers);
    check_sharing(model, table);
    check_locks(model, table);
    for descriptor in &model.root().descriptors {
        let open = table.fds[&descriptor.fd];
        assert_eq!(open.cloexec, descriptor.cloexec);
        if let Thing::External(number) = &table.things[open.thing] {
            assert_eq!(supplied(*number), descriptor.file);
        }
        check_thing(model, table, descriptor, open);
    }
}

/// Every lock on what the parent had open is taken, by its own description.
fn check_locks(model: &Model, table: &Table<'_>) {
    let expected = model.root().locks.iter().filter_map(|lock| {
        let fd =
            model.root().descriptors.iter().find(|descriptor| descriptor.file == lock.file)?.fd;
        let thing = table.fds[&fd].thing;
        let kind = u64::from(lock.is_write);
        Some(match lock.kind {
            LockKind::Whole => (thing, 0, [5, 6][kind as usize], 0, 0),
            LockKind::Lease => (thing, libc::F_SETLEASE as u64, kind, 0, 0),
            LockKind::Process => (thing, libc::F_SETLK as u64, kind, lock.start, lock.length),
            LockKind::Description => {
                (thing, libc::F_OFD_SETLK as u64, kind, lock.start, lock.length)
            }
        })
    });
    assert_eq!(expected.collect::<Vec<_>>(), table.locks);
}

/// Two numbers are one description exactly if they were, except for standard streams.
fn check_sharing(model: &Model, table: &Table<'_>) {
    let mut described: BTreeMap<usize, u32> = BTreeMap::new();
    for descriptor in &model.root().descriptors {
        let file = descriptor.file;
        let thing = table.fds[&descriptor.fd].thing;
        assert_eq!(*described.entry(thing).or_insert(file), file);
        let is_external = matches!(model.files[file as usize], OpenFile::External { .. });
        let first = model.root().descriptors.iter().find(|other| other.file == file).unwrap();
        if !is_external || descriptor.fd > 2 {
            assert_eq!(table.fds[&first.fd].thing, thing);
        }
    }
}

fn check_thing(model: &Model, table: &Table<'_>, descriptor: &Descriptor, open: Open) {
    match (&model.files[descriptor.file as usize], &table.things[open.thing]) {
        (OpenFile::Path { path, offset, .. }, Thing::Path(opened, at)) => {
            assert_eq!((path.to_str().unwrap(), offset), (opened.as_str(), at));
        }
        (OpenFile::Unnamed { file, flags, offset }, Thing::Unnamed(made, opened, at)) => {
            let access = libc::O_ACCMODE as u32;
            assert_eq!((flags & access, offset), (*opened as u32 & access, at));
            assert_eq!(table.unnamed[*made], unnamed_bytes(u64::from(*file)));
            check_inode(model, table, *made, *file);
        }
        (OpenFile::Event { count, .. }, Thing::Event(counted)) => assert_eq!(count, counted),
        (OpenFile::Socket(socket), Thing::Socket(made)) => check_socket(socket, made),
        (OpenFile::Socket(socket), Thing::External(number)) => {
            assert!(socket.is_replaceable() && !table.left_out.contains(number));
        }
        (OpenFile::External { .. }, Thing::External(_)) => {}
        (OpenFile::Pipe { pipe, is_write_end, content, .. }, Thing::Pair(made, end)) => {
            assert_eq!(*end, u32::from(*is_write_end));
            check_partner(model, table, *made, |file| is_of_pipe(file, *pipe));
            check_written(table, (*made, 1), content, *is_write_end);
        }
        (OpenFile::SocketPair { pair, incoming, .. }, Thing::Pair(made, end)) => {
            check_partner(model, table, *made, |file| is_of_pair(file, *pair));
            check_written(table, (*made, 1 - end), &bytes_of(incoming), false);
            check_sent(model, table, (*made, 1 - end), incoming);
        }
        (OpenFile::Epoll { watches, .. }, Thing::Epoll(added)) => {
            let expected = |watch: &EpollWatch| {
                (watch.fd, table.fds[&watch.fd].thing, watch.events, watch.data)
            };
            assert_eq!(&watches.iter().map(expected).collect::<Vec<_>>(), added);
        }
        (OpenFile::TerminalMaster { .. }, Thing::Master(..)) => {}
        (OpenFile::TerminalSlave { terminal, flags }, Thing::Slave(made, opened)) => {
            assert_eq!(*opened, u64::from(*flags | libc::O_NOCTTY as u32));
            let is_master = |d: &&Descriptor| {
                matches!(&model.files[d.file as usize],
                    OpenFile::TerminalMaster { terminal: other, .. } if other == terminal)
            };
            // Of several processes, another may have it.
            let master = model.root().descriptors.iter().find(is_master);
            let thing = master.map(|master| &table.things[table.fds[&master.fd].thing]);
            assert!(
                thing.is_none_or(|thing| matches!(thing, Thing::Master(other, _) if other == made))
            );
        }
        (OpenFile::ProcessHandle { .. }, Thing::Handle(pid)) => {
            assert_eq!(*pid, u64::from(model.root().process.pid));
        }
        (file, Thing::Inotify(..) | Thing::Fanotify(_)) => {
            check_watched(file, &table.things[open.thing]);
        }
        (file, thing) => panic!("{file:?} became {thing:?}"),
    }
}

fn check_watched(file: &OpenFile, thing: &Thing) {
    match (file, thing) {
        (OpenFile::Inotify { watches, .. }, Thing::Inotify(added, _)) => {
            // That no link is followed is up to the restorer, which opens the place first.
            let expected = watches
                .iter()
                .map(|watch| (watch.number, watch.path.display().to_string(), watch.mask));
            assert_eq!(&expected.collect::<Vec<_>>(), added);
        }
        (OpenFile::Fanotify { marks, .. }, Thing::Fanotify(added)) => {
            let adds = |mark: &FanotifyMark| {
                let whole = if mark.is_file_system { 0x100 } else { 0 };
                let path = mark.path.display().to_string();
                // FAN_MARK_ADD; FAN_MARK_IGNORED_MASK and FAN_MARK_IGNORED_SURV_MODIFY
                let reported = (path.clone(), mark.mask, 1 | whole);
                [reported, (path, mark.ignored, 1 | whole | 0x20 | 0x40)]
            };
            let expected = marks.iter().flat_map(adds).filter(|(_, mask, _)| *mask != 0);
            assert_eq!(&expected.collect::<Vec<_>>(), added);
        }
        (file, thing) => panic!("{file:?} became {thing:?}"),
    }
}

fn bytes_of(messages: &[Message]) -> Vec<u8> {
    messages.iter().flat_map(|message| message.bytes.clone()).collect()
}

/// What has ended has no options, and may have been anywhere before it did.
fn check_socket(socket: &Socket, made: &Made) {
    assert_eq!([socket.family, socket.kind, socket.protocol].map(u64::from), made.kind);
    if let SocketRole::Ended { .. } = socket.role {
        assert!(made.is_shut);
        return;
    }
    let set = socket.options.iter().map(|option| ((option.level, option.name), &option.value));
    let set: BTreeMap<(i32, i32), &Vec<u8>> = set.collect();
    assert_eq!(set, made.options.iter().map(|(at, value)| (*at, value)).collect());
    assert_eq!(socket.name, made.name);
    let (backlog, peer) = match &socket.role {
        SocketRole::Established(_) => panic!("not simulated"),
        SocketRole::Listening { backlog } => (Some(u64::from(*backlog)), None),
        SocketRole::Connected { peer } | SocketRole::Within { peer } => (None, Some(peer.clone())),
        SocketRole::Idle | SocketRole::Ended { .. } => (None, None),
    };
    assert_eq!((backlog, peer), (made.backlog, made.peer.clone()));
}

/// Descriptions of one file are of one file again, and of no other.
fn check_inode(model: &Model, table: &Table<'_>, made: usize, unnamed: u32) {
    for other in &model.root().descriptors {
        let thing = &table.things[table.fds[&other.fd].thing];
        let is_same = matches!(thing, Thing::Unnamed(file, ..) if *file == made);
        let file = &model.files[other.file as usize];
        assert_eq!(is_same, matches!(file, OpenFile::Unnamed { file, .. } if *file == unnamed));
    }
}

fn is_of_pipe(file: &OpenFile, identity: u64) -> bool {
    matches!(file, OpenFile::Pipe { pipe, .. } if *pipe == identity)
}

fn is_of_pair(file: &OpenFile, identity: u64) -> bool {
    matches!(file, OpenFile::SocketPair { pair, .. } if *pair == identity)
}

/// Every number of the same pair was made by the same call.
fn check_partner(
    model: &Model,
    table: &Table<'_>,
    made: usize,
    is_same: impl Fn(&OpenFile) -> bool,
) {
    for other in model.root().descriptors.iter().filter(|d| is_same(&model.files[d.file as usize]))
    {
        let thing = &table.things[table.fds[&other.fd].thing];
        assert!(matches!(thing, Thing::Pair(call, _) if *call == made));
    }
}

fn check_written(table: &Table<'_>, through: (usize, u32), content: &[u8], is_exempt: bool) {
    let written = table.written.get(&through).map_or(&[][..], Vec::as_slice);
    assert!(is_exempt || written == content, "{written:?} instead of {content:?}");
}

/// What came with the messages is what they bring: the process's own, or a file of that kind.
fn check_sent(model: &Model, table: &Table<'_>, through: (usize, u32), messages: &[Message]) {
    let none = Vec::new();
    let sent = table.sent.get(&through).unwrap_or(&none);
    let expected: Vec<_> = messages.iter().filter(|message| !message.files.is_empty()).collect();
    assert_eq!(sent.len(), expected.len());
    for (things, message) in sent.iter().zip(expected) {
        assert_eq!(things.len(), message.files.len());
        for (thing, file) in things.iter().zip(&message.files) {
            match model.root().descriptors.iter().find(|own| own.file == *file) {
                Some(descriptor) => assert_eq!(*thing, table.fds[&descriptor.fd].thing),
                None => check_kind(&model.files[*file as usize], &table.things[*thing]),
            }
        }
    }
}

fn check_kind(file: &OpenFile, thing: &Thing) {
    let is_it = match (file, thing) {
        (OpenFile::Path { path, .. }, Thing::Path(opened, _)) => path.to_str() == Some(opened),
        (OpenFile::Event { count, .. }, Thing::Event(counted)) => count == counted,
        (OpenFile::SocketPair { .. }, Thing::Pair(..)) => true,
        (OpenFile::Pipe { is_write_end, .. }, Thing::Pair(_, end)) => *is_write_end == (*end == 1),
        (OpenFile::Socket(socket), Thing::Socket(made)) => u64::from(socket.kind) == made.kind[1],
        (OpenFile::Unnamed { .. }, Thing::Unnamed(..)) => true,
        (OpenFile::ProcessHandle { .. }, Thing::Handle(_)) => true,
        _ => false,
    };
    assert!(is_it, "{file:?} was sent as {thing:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_clone_gets_the_parents_table(model in models(), gap in 0u32..3, leave: bool) {
        check(&model, gap, leave);
    }
}

#[test]
fn ends_that_want_each_others_numbers_are_not_lost() {
    for (read, write) in [(0, 1), (1, 0), (1, 2), (2, 1), (5, 0)] {
        let descriptor = |fd, file| Descriptor { fd, file, cloexec: false };
        let mut descriptors = vec![descriptor(read, 0), descriptor(write, 1)];
        descriptors.sort_by_key(|descriptor| descriptor.fd);
        let files = vec![pipe(1, false, b"waiting"), pipe(1, true, b"")];
        check(&Model { files, members: member(descriptors), ..Model::default() }, 0, true);
    }
}

#[test]
fn a_table_without_gaps_needs_no_number_in_between() {
    let descriptors = (0..64).map(|fd| Descriptor { fd, file: 63 - fd, cloexec: fd % 2 == 0 });
    let files = (0..32).flat_map(|id| files(2 + (id % 2) as u8, id, b"bytes")).collect();
    check(&Model { files, members: member(descriptors.collect()), ..Model::default() }, 0, true);
}

#[test]
fn standard_streams_are_asked_for_one_by_one_and_others_once() {
    let descriptors = [(1, 0), (2, 0), (5, 0), (7, 1), (8, 1), (9, 2)];
    let descriptors = descriptors.map(|(fd, file)| Descriptor { fd, file, cloexec: false });
    let files = [11, 11, 1].into_iter().flat_map(|kind| files(kind, 1, b"")).collect();
    let model = Model { files, members: member(descriptors.to_vec()), ..Model::default() };
    assert_eq!(numbers_of(externals(&model)), [1, 2, 7]);
    check(&model, 0, true);
}
