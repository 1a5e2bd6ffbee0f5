//! Whatever descriptors several processes share, the ops of the root and of each make just these.

use std::collections::BTreeMap;

use farfork_plan::PlanHeader;
use proptest::prelude::*;

use super::simulate::{Table, Thing};
use super::tests::{check_table, models};
use super::{Subject, ops, root_ops};
use crate::compile::arena::Arena;
use crate::compile::fd_layout::{FdLayout, supplied, users};
use crate::model::{EpollWatch, Member, Model, OpenFile};

/// Distinguishes what the caller supplies from numbers of descriptors.
const SUPPLIED: u32 = 10_000;

/// The same model with its descriptors dealt out to several processes, to some of them to all.
fn dealt(mut model: Model, masks: &[u8], count: usize) -> Model {
    let whole = model.members.remove(0);
    for member in 0..count {
        let has = |fd: u32| {
            let mask = masks[fd as usize % masks.len()];
            mask >> member & 1 != 0 || member == 0 && mask & ((1 << count) - 1) == 0
        };
        let mut own = Member::default();
        own.process.pid = 1 + member as u32;
        own.kinship.parent = member.checked_sub(1).map(|parent| parent as u32);
        own.descriptors = whole.descriptors.iter().filter(|d| has(d.fd)).cloned().collect();
        let is_own = |file: u32| own.descriptors.iter().any(|d| d.file == file);
        own.locks = whole.locks.iter().filter(|lock| is_own(lock.file)).cloned().collect();
        model.members.push(own);
    }
    let members = model.members.clone();
    let is_made_apart: Vec<bool> = model.files.iter().map(is_made_apart).collect();
    for (index, file) in (0u32..).zip(&mut model.files) {
        match file {
            OpenFile::Epoll { watches, .. } => {
                watches.retain_mut(|watch| settle(watch, index, &members));
            }
            OpenFile::SocketPair { incoming, .. } => {
                let files = incoming.iter_mut().map(|message| &mut message.files);
                files.for_each(|files| files.retain(|file| !is_made_apart[*file as usize]));
            }
            _ => {}
        }
    }
    model
}

/// Whether each process has one of its own: of the caller's streams, and handles of processes.
fn is_made_apart(file: &OpenFile) -> bool {
    matches!(file, OpenFile::External { .. } | OpenFile::ProcessHandle { .. })
}

/// Gives a watch to a process that has both; there may be none.
fn settle(watch: &mut EpollWatch, epoll: u32, members: &[Member]) -> bool {
    let has_both = |member: &Member| {
        let own = &member.descriptors;
        own.iter().any(|d| d.fd == watch.fd) && own.iter().any(|d| d.file == epoll)
    };
    let member = members.iter().position(has_both);
    watch.member = member.unwrap_or(0) as u32;
    member.is_some()
}

fn check(model: &Model) {
    let fds = &FdLayout::compute(model);
    let mut arena = Arena::new();
    let first = root_ops(model, fds, &mut arena);
    let members = model.members.iter().enumerate();
    let own: Vec<_> = members
        .map(|(index, member)| whole(ops(Subject { model, member, index, fds }, &mut arena)))
        .collect();
    let memory = arena.finish(PlanHeader::default());
    let supplied: Vec<u32> = (0..fds.supplied.len() as u32).map(|at| SUPPLIED + at).collect();
    let mut root =
        Table::new(fds.spare.clone(), &supplied, 0, &memory, 0, supplied.iter().copied().collect());
    root.hold(&first);
    let made_before = root.things.len();
    let mut descriptions = BTreeMap::new();
    for (index, ops) in own.iter().enumerate() {
        let mut table = root.clone();
        table.run(ops);
        check_member(model, index, &table);
        for descriptor in &model.members[index].descriptors {
            let thing = table.fds[&descriptor.fd].thing;
            let is_shared = fds.root.number(descriptor.file).is_some();
            let is_external = matches!(table.things[thing], Thing::External(_));
            assert_eq!(is_shared, thing < made_before && !is_external);
            if is_shared {
                assert_eq!(*descriptions.entry(descriptor.file).or_insert(thing), thing);
            }
        }
    }
    // What two have is made by the root, or from outside, or a handle of a process.
    for file in 0..model.files.len() as u32 {
        let exempt = is_made_apart(&model.files[file as usize]);
        let count = users(model, file).count();
        assert!(count < 2 || exempt || fds.root.number(file).is_some());
    }
}

/// What a single process with these descriptors would have.
fn check_member(model: &Model, index: usize, table: &Table<'_>) {
    let mut alone = model.clone();
    alone.members = vec![model.members[index].clone()];
    alone.members[0].process.pid = 1;
    for file in &mut alone.files {
        let before = file.clone();
        match file {
            // Only what this process adds is seen in its own table.
            OpenFile::Epoll { watches, .. } => {
                watches.retain(|watch| watch.member as usize == index);
            }
            OpenFile::Inotify { watches, .. } if !is_first(model, index, &before) => {
                watches.clear()
            }
            OpenFile::Fanotify { marks, .. } if !is_first(model, index, &before) => marks.clear(),
            _ => {}
        }
    }
    let supplied = supplied(model);
    check_table(&alone, table, |number| supplied[(number - SUPPLIED) as usize].file);
}

/// Whether `index` is the first that has the instance or group `wanted`, which is like no other.
fn is_first(model: &Model, index: usize, wanted: &OpenFile) -> bool {
    let file = model.files.iter().position(|file| file == wanted).unwrap() as u32;
    users(model, file).next() == Some(index)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_process_gets_its_table(
        model in models(),
        masks in prop::collection::vec(any::<u8>(), 5),
        count in 2usize..4,
    ) {
        check(&dealt(model, &masks, count));
    }
}

fn whole(halves: super::DescriptorOps) -> Vec<farfork_plan::Op> {
    [halves.early, halves.late].concat()
}
