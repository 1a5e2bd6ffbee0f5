//! Descriptors of real processes: what is captured, what is refused, and whether a clone that is
//! made from it has the same.

mod carried;
mod clone;
mod refused;

use farfork_checkpoint::descriptors::{Connections, ProcessDescriptors, collect, read};
use farfork_checkpoint::ids::Ids;
use farfork_checkpoint::refuse::{Refusal, Refusals};
use farfork_checkpoint::shared::Objects;
use farfork_image::model::{Descriptor, Lock, Notice, OpenFile, Terminal, UnnamedFile};

/// Descriptors of one process and the open file descriptions behind them.
struct Collected {
    descriptors: Vec<Descriptor>,
    files: Vec<OpenFile>,
    unnamed: Vec<UnnamedFile>,
    terminals: Vec<Terminal>,
    locks: Vec<Lock>,
    notices: Vec<Notice>,
}

/// What `pid` has, and what of it is refused.
fn look(pid: i32) -> (Collected, Vec<Refusal>) {
    look_supplying(pid, None)
}

/// The same, where the caller of restore is to supply number `supplied`.
fn look_supplying(pid: i32, supplied: Option<u32>) -> (Collected, Vec<Refusal>) {
    let mut refusals = Refusals::new(pid);
    let mut objects = Objects::default();
    objects.add_process(pid, &[], None, &mut refusals).expect("its memfds can be opened");
    let ids = Ids { processes: vec![(pid, pid as u32)], groups: Vec::new() };
    let tree = read(&[pid], &ids, Connections::End, &mut refusals);
    let found = tree.and_then(|tree| collect(&tree, &objects, supplied, &mut refusals));
    let mut found = found.expect("a stopped child can be looked at");
    let ProcessDescriptors { descriptors, locks, notices } = found.own.remove(0);
    let (files, unnamed, terminals) = (found.files, found.unnamed, found.terminals);
    let collected = Collected { descriptors, files, unnamed, terminals, locks, notices };
    (collected, refusals.into_list())
}

/// What `pid` has, all of which can be carried.
fn carried(pid: i32) -> Collected {
    let (collected, refusals) = look(pid);
    assert_eq!(refusals, []);
    collected
}

/// The file behind number `fd`.
fn file(collected: &Collected, fd: u32) -> &OpenFile {
    let found = collected.descriptors.iter().find(|descriptor| descriptor.fd == fd);
    &collected.files[found.expect("the number is open").file as usize]
}
