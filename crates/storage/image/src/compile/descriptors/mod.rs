//! Descriptors in the form of a plan.
//!
//! ```text
//!  numbers   0 ............. spare_fd .. + spare_count ............
//!            free at the     the restorer's own,        free too
//!            start           the external ones
//!
//!  shared      (see `fd_layout::root_fds`) dup3 from the number where the root made it
//!  one file    create ─► lowest free number ─► MOVE_FD to its first number ─► dup3 to the others
//!  two ends    create ─► second end ─► F_DUPFD at spare_fd or above ─► each placed like one file
//!  socket      of the caller's, if supplied, or create ─► options ─► bind ─► listen or connect
//!  slaves      of terminals, in the same way, by their masters
//!  in flight   messages with descriptors, when all files are made
//!  connected   TCP connections that go on, when the sockets that listen at their ports are there
//!  late        (see `is_late`) is made after all else
//!  last        epoll_ctl, when every number that is watched stands for its file; then locks: the
//!              kernel drops a process's own when it closes any descriptor of the file; then
//!              watches of places, which nothing done here shall wake
//! ```
//! Invariant: outside the spare run, which holds no number of the parent, nothing is open but
//! descriptors in their final place and the one in the making. A number is free until its own
//! descriptor is placed, so whatever is created lands in the run, or at or below the number it is
//! meant for, and no move overwrites anything.

mod connection;
mod epoll;
mod in_flight;
mod lock;
mod make;
mod pair;
mod ring;
#[cfg(test)]
mod simulate;
mod socket;
mod terminal;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
mod unnamed;
mod watches;

use std::collections::BTreeMap;

use farfork_plan::protocol::SLOT_EXTERNAL;
use farfork_plan::{Op, What, nr, stage};

use super::arena::Arena;
use super::fd_layout::{FdLayout, InFlight, LAST_STREAM, RootFds, users};
use super::place::Opener;
use super::{Subject, meeting};
use crate::model::{Descriptor, Member, Model, OpenFile};
pub use terminal::is_slave;

/// Status flags that `F_SETFL` sets.
const LATER: u32 = (libc::O_NONBLOCK | libc::O_DIRECT | libc::O_APPEND | libc::O_NOATIME) as u32;

struct Compiler<'m> {
    model: &'m Model,
    member: &'m Member,
    index: usize,
    arena: &'m mut Arena,
    /// Descriptors of each file, by number.
    numbers: BTreeMap<u32, Vec<&'m Descriptor>>,
    ops: Vec<Op>,
    opener: Opener,
    fds: &'m FdLayout,
    /// What is there already, made by the root.
    root_fds: &'m RootFds,
    /// Whether this is the root, which leaves the others what the caller supplied.
    is_root: bool,
    in_flight: &'m InFlight,
    /// Socket pairs to be filled when all files are made: the first end that was met, the other.
    late: Vec<(u32, Option<u32>)>,
    slots: Temporaries,
    /// Text that names the descriptor in the making.
    detail: u32,
}

/// Slots for what is in the making.
#[derive(Clone, Copy)]
struct Temporaries {
    /// The file, or the first of two ends.
    made: u8,
    /// The second end, where the kernel put it.
    second: u8,
    /// The second end, out of the way.
    aside: u8,
}

/// Ops in the order in which they are run.
#[derive(Debug, Default)]
pub struct DescriptorOps {
    /// What can be done long before the clone starts: no other process notices it, and nothing that
    /// it makes changes by itself.
    pub early: Vec<Op>,
    /// What is done when the clone starts.
    pub late: Vec<Op>,
}

/// Whether a file is to be made only when the clone starts: the caller supplies it then, or others
/// see it and send to it, or it runs out.
fn is_late(file: &OpenFile) -> bool {
    matches!(
        file,
        OpenFile::External { .. }
            | OpenFile::Socket(_)
            | OpenFile::Timer { .. }
            | OpenFile::Ring { .. }
    )
}

/// Compiles the descriptors of `subject`; they must be made after memory and before threads.
pub fn ops(subject: Subject<'_>, arena: &mut Arena) -> DescriptorOps {
    let Subject { model, member, fds, .. } = subject;
    let nothing = InFlight::default();
    // Of several processes, the root makes what is in flight.
    let in_flight = if model.is_tree() { &nothing } else { &fds.in_flight };
    let all = in_flight.beside(&member.descriptors);
    let mut compiler = Compiler::new(subject, &all, &fds.root, in_flight, arena);
    compiler.make_all(|file| !is_late(file));
    compiler.slaves();
    compiler.control();
    let early = std::mem::take(&mut compiler.ops);
    compiler.make_all(is_late);
    compiler.close_root_fds();
    compiler.watches();
    compiler.late_messages();
    compiler.connections();
    compiler.notices();
    compiler.locks();
    compiler.await_others();
    compiler.places();
    DescriptorOps { early, late: compiler.ops }
}

/// Compiles what the root makes for several members, before it forks any.
pub fn root_ops(model: &Model, fds: &FdLayout, arena: &mut Arena) -> Vec<Op> {
    let (nothing, in_flight) = (RootFds::default(), &fds.in_flight);
    let all = in_flight.beside(&fds.root.descriptors);
    let mut compiler = Compiler::new(Subject::root(model, fds), &all, &nothing, in_flight, arena);
    compiler.is_root = true;
    compiler.make_all(|_| true);
    compiler.slaves();
    compiler.control();
    compiler.late_messages();
    compiler.connections();
    compiler.ops
}

fn numbers(descriptors: &[Descriptor]) -> BTreeMap<u32, Vec<&Descriptor>> {
    let mut numbers: BTreeMap<u32, Vec<&Descriptor>> = BTreeMap::new();
    for descriptor in descriptors {
        numbers.entry(descriptor.file).or_default().push(descriptor);
    }
    numbers.values_mut().for_each(|own| own.sort_by_key(|descriptor| descriptor.fd));
    numbers
}

/// The slots after those of the external descriptors.
fn temporaries(externals: usize) -> Temporaries {
    let made = SLOT_EXTERNAL + externals as u8;
    Temporaries { made, second: made + 1, aside: made + 2 }
}

impl<'m> Compiler<'m> {
    fn new(
        subject: Subject<'m>,
        descriptors: &'m [Descriptor],
        root_fds: &'m RootFds,
        in_flight: &'m InFlight,
        arena: &'m mut Arena,
    ) -> Compiler<'m> {
        let Subject { model, member, index, fds } = subject;
        Compiler {
            model,
            member,
            index,
            opener: Opener::new(member, arena),
            arena,
            numbers: numbers(descriptors),
            ops: Vec::new(),
            slots: temporaries(fds.supplied.len()),
            fds,
            root_fds,
            is_root: false,
            in_flight,
            late: Vec::new(),
            detail: 0,
        }
    }

    fn make_all(&mut self, is_wanted: impl Fn(&OpenFile) -> bool) {
        for (file, open) in (0u32..).zip(&self.model.files) {
            if !self.numbers.contains_key(&file) || !is_wanted(open) {
                continue;
            }
            match self.root_fds.number(file) {
                Some(number) => self.take_from_root(file, number),
                None => self.file(file),
            }
        }
        self.opener.resume(&mut self.ops);
    }

    /// Gives the numbers of a file to what the root has made at `number`.
    fn take_from_root(&mut self, file: u32, number: u32) {
        self.name(file, &self.model.files[file as usize]);
        for own in self.numbers[&file].clone() {
            self.push(libc::SYS_dup3, &[number.into(), own.fd.into(), cloexec(own)]);
        }
    }

    /// Closes the numbers at which the root has made files. No process keeps a file of another open,
    /// and the kernel drops a process's locks when it closes any descriptor of the file.
    fn close_root_fds(&mut self) {
        let first = self.root_fds.descriptors.first().map(|own| own.fd);
        if let Some(first) = first {
            self.detail = 0;
            self.push(libc::SYS_close_range, &[first.into(), (self.fds.spare.end - 1).into(), 0]);
        }
    }

    /// Waits for the other processes, so that watches of places report nothing that these do to be made.
    fn await_others(&mut self) {
        if self.model.is_tree() && self.model.files.iter().any(watches::watches_places) {
            self.ops.push(meeting::meet(stage::OPENED, meeting::living(self.model)));
        }
    }

    /// Whether this is the member that sets up what several have.
    fn comes_first(&self, file: u32) -> bool {
        users(self.model, file).next() == Some(self.index)
    }

    /// The first number of a file that has one.
    fn first(&self, file: u32) -> Option<u32> {
        self.numbers.get(&file).map(|own| own[0].fd)
    }

    fn file(&mut self, index: u32) {
        let model = self.model;
        let file = &model.files[index as usize];
        self.name(index, file);
        match file {
            OpenFile::Path { .. } => self.opener.assume(&mut self.ops),
            _ => self.opener.resume(&mut self.ops),
        }
        match file {
            OpenFile::External { .. } => self.external(index),
            OpenFile::Pipe { pipe, .. } => self.pipe(index, *pipe),
            OpenFile::SocketPair { pair, .. } => self.socket_pair(index, *pair),
            OpenFile::Socket(socket) => self.socket(index, socket),
            OpenFile::Ring { flags, queues, .. } => self.ring(index, *flags, queues),
            OpenFile::Unnamed { file, flags, offset } => {
                self.unnamed(index, *file, *flags, *offset);
            }
            OpenFile::TerminalMaster { terminal, path, flags } => {
                self.master(index, *terminal, path, *flags);
            }
            // Opened by way of the master, which may come later.
            OpenFile::TerminalSlave { .. } => {}
            OpenFile::Object { object, flags, offset } if self.is_original(index, *object) => {
                self.original(index, *object, *flags, *offset);
            }
            single => {
                self.make(single);
                self.place(self.slots.made, index);
            }
        }
    }

    /// The first file before `index` that is made and is `alike`.
    fn earlier(&self, index: u32, alike: impl Fn(&OpenFile) -> bool) -> Option<u32> {
        let made = self.numbers.range(..index).map(|(file, _)| *file);
        made.into_iter().find(|file| alike(&self.model.files[*file as usize]))
    }

    fn name(&mut self, index: u32, file: &OpenFile) {
        let number = self.first(index).unwrap_or(0);
        self.detail = self.arena.detail(&format!("fd {number} ({})", noun(file)));
    }

    fn external(&mut self, file: u32) {
        let own = self.numbers[&file].clone();
        for descriptor in &own {
            match self.slot_of(file, descriptor.fd) {
                Some(slot) if self.is_root => {
                    let args = [slot.into(), descriptor.fd.into(), cloexec(descriptor)];
                    self.ops.push(self.op(libc::SYS_dup3, &args).slot_arg(0));
                }
                Some(slot) if descriptor.fd <= LAST_STREAM || descriptor.fd == own[0].fd => {
                    self.move_to(slot, descriptor);
                }
                _ => self.duplicate(own[0], descriptor),
            }
        }
    }

    /// The slot of what the caller supplies for number `fd` of `file`.
    fn slot_of(&self, file: u32, fd: u32) -> Option<u8> {
        let mut own = self.fds.supplied.iter().enumerate().filter(|(_, own)| own.file == file);
        let first = own.clone().next()?;
        let exact = own.find(|(_, own)| own.fd == fd && fd <= LAST_STREAM);
        Some(SLOT_EXTERNAL + exact.unwrap_or(first).0 as u8)
    }

    /// Moves what is in `slot` to the numbers of `file`.
    fn place(&mut self, slot: u8, file: u32) {
        let own = self.numbers[&file].clone();
        self.move_to(slot, own[0]);
        for other in &own[1..] {
            self.duplicate(own[0], other);
        }
    }

    fn move_to(&mut self, slot: u8, to: &Descriptor) {
        let args = [slot.into(), to.fd.into(), cloexec(to)];
        let moved = Op::new(What::Descriptor, nr::MOVE_FD, &args).slot_arg(0);
        self.ops.push(moved.about(self.detail));
    }

    fn duplicate(&mut self, from: &Descriptor, to: &Descriptor) {
        self.push(libc::SYS_dup3, &[from.fd.into(), to.fd.into(), cloexec(to)]);
    }

    /// An op about the descriptor in the making.
    fn op(&self, number: i64, args: &[u64]) -> Op {
        Op::new(What::Descriptor, number as u32, args).about(self.detail)
    }

    fn push(&mut self, number: i64, args: &[u64]) {
        self.ops.push(self.op(number, args));
    }

    /// A call whose first argument is the descriptor in `slot`.
    fn push_on(&mut self, slot: u8, number: i64, args: &[u64]) {
        let args = [&[slot.into()], args].concat();
        self.ops.push(self.op(number, &args).slot_arg(0));
    }

    /// Sets those status flags that can be set later and are not zero.
    fn set_flags(&mut self, slot: u8, flags: u32) {
        let flags = flags & LATER;
        if flags != 0 {
            self.push_on(slot, libc::SYS_fcntl, &[libc::F_SETFL as u64, flags.into()]);
        }
    }
}

fn cloexec(descriptor: &Descriptor) -> u64 {
    if descriptor.cloexec { libc::O_CLOEXEC as u64 } else { 0 }
}

fn noun(file: &OpenFile) -> String {
    match file {
        OpenFile::Path { path, .. } => path.display().to_string(),
        OpenFile::Unnamed { .. } => "file without a name".to_owned(),
        OpenFile::Pipe { .. } => "pipe".to_owned(),
        OpenFile::Event { .. } => "eventfd".to_owned(),
        OpenFile::Signal { .. } => "signalfd".to_owned(),
        OpenFile::Timer { .. } => "timerfd".to_owned(),
        OpenFile::Epoll { .. } => "epoll".to_owned(),
        OpenFile::Inotify { .. } => "inotify".to_owned(),
        OpenFile::Fanotify { .. } => "fanotify".to_owned(),
        OpenFile::ProcessHandle { .. } => "pidfd".to_owned(),
        OpenFile::TerminalMaster { .. } => "master of a terminal".to_owned(),
        OpenFile::TerminalSlave { .. } => "terminal".to_owned(),
        OpenFile::SocketPair { .. } => "Unix socket pair".to_owned(),
        OpenFile::Object { .. } => "shared memory".to_owned(),
        OpenFile::Socket(socket) => socket.description.clone(),
        OpenFile::External { description } => description.clone(),
        OpenFile::Ring { .. } => "ring of io_uring".to_owned(),
    }
}
