//! Descriptors in the form of a plan.
//!
//! ```text
//!  numbers   0 ............. spare_fd .. + spare_count ............
//!            free at the     the restorer's own,        free too
//!            start           the external ones
//!
//!  one file    create ─► lowest free number ─► MOVE_FD to its first number ─► dup3 to the others
//!  two ends    create ─► second end ─► F_DUPFD at spare_fd or above ─► each placed like one file
//!  socket      of the caller's, if supplied, or create ─► options ─► bind ─► listen or connect
//!  slaves      of terminals, in the same way, by their masters
//!  in flight   messages with descriptors, when all files are made
//!  connected   TCP connections that go on, when the sockets that listen at their ports are there
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
mod inotify;
mod lock;
mod make;
mod pair;
#[cfg(test)]
mod simulate;
mod socket;
mod terminal;
#[cfg(test)]
mod tests;
mod unnamed;

use std::collections::BTreeMap;
use std::ops::Range;

use farfork_plan::protocol::{MAX_REQUEST_FDS, OWN_FDS, SLOT_EXTERNAL};
use farfork_plan::{Op, What, nr};

use super::Subject;
use super::arena::Arena;
use super::place::Opener;
use super::shared::Numbers;
use crate::model::{Descriptor, Member, Model, OpenFile};
use in_flight::InFlight;

/// Status flags that `F_SETFL` sets.
const LATER: u32 = (libc::O_NONBLOCK | libc::O_DIRECT | libc::O_APPEND | libc::O_NOATIME) as u32;

struct Compiler<'m> {
    model: &'m Model,
    member: &'m Member,
    arena: &'m mut Arena,
    /// Descriptors of each file, by number.
    numbers: BTreeMap<u32, Vec<&'m Descriptor>>,
    ops: Vec<Op>,
    opener: Opener,
    /// Numbers that the caller supplies or may supply, in the order of their slots.
    external: Vec<u32>,
    spare_fd: u32,
    objects: Numbers,
    in_flight: InFlight,
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

/// Compiles the descriptors of `subject`; they must be made after memory and before threads.
pub fn ops(subject: Subject<'_>, arena: &mut Arena) -> Vec<Op> {
    let Subject { model, member } = subject;
    let external = supplied_numbers(model);
    let in_flight = InFlight::of(subject);
    let without_number: Vec<Descriptor> = in_flight.descriptors().collect();
    let mut numbers = numbers(member);
    numbers.extend(without_number.iter().map(|descriptor| (descriptor.file, vec![descriptor])));
    let mut compiler = Compiler {
        model,
        member,
        numbers,
        ops: Vec::new(),
        opener: Opener::new(member, arena),
        arena,
        slots: temporaries(external.len()),
        external,
        spare_fd: spare(model).start,
        objects: Numbers::of(model),
        in_flight,
        late: Vec::new(),
        detail: 0,
    };
    for file in 0..model.files.len() as u32 {
        if compiler.numbers.contains_key(&file) {
            compiler.file(file);
        }
    }
    compiler.opener.resume(&mut compiler.ops);
    compiler.slaves();
    compiler.control();
    compiler.watches();
    compiler.late_messages();
    compiler.connections();
    compiler.notices();
    compiler.locks();
    compiler.places();
    compiler.ops
}

/// The restorer's own run of numbers, from 3 on, which no process of the parents has: those of
/// the init and of ends put aside, each descriptor of a request twice while it is moved, those of
/// shared objects, and of descriptors in flight.
pub fn spare(model: &Model) -> Range<u32> {
    let externals = 2 * supplied_numbers(model).len() as u32;
    let count = OWN_FDS + externals + Numbers::count(model) + InFlight::count(model);
    let start = spare_run(model, count);
    start..start + count
}

/// The lowest run of `count` numbers from 3 on that the parent left free: it may have used the
/// highest number there is.
fn spare_run(model: &Model, count: u32) -> u32 {
    let all = model.members.iter().flat_map(|member| &member.descriptors);
    let mut taken: Vec<u32> = all.map(|descriptor| descriptor.fd).collect();
    taken.sort_unstable();
    taken
        .into_iter()
        .fold(3, |start, fd| if fd < start + count { start.max(fd + 1) } else { start })
}

/// Numbers that the caller of restore supplies, ascending: of each external file the first, and
/// each standard stream for itself, since a caller's may be three files where the parent's were
/// one.
pub fn external_numbers(model: &Model) -> Vec<u32> {
    let mut external: Vec<u32> = numbers(model.root())
        .into_iter()
        .filter(|(file, _)| matches!(model.files[*file as usize], OpenFile::External { .. }))
        .flat_map(|(_, own)| own.into_iter().enumerate().filter(|(n, d)| *n == 0 || d.fd <= 2))
        .map(|(_, descriptor)| descriptor.fd)
        .collect();
    external.sort_unstable();
    external
}

/// Numbers whose descriptors come with a request, in its order: those that the caller of restore
/// has to supply, then those that it may.
pub fn supplied_numbers(model: &Model) -> Vec<u32> {
    [external_numbers(model), replaceable_numbers(model)].concat()
}

/// Numbers that the caller of restore may supply, ascending: of each socket that others find by
/// its address the first, as many as a request has room for.
pub fn replaceable_numbers(model: &Model) -> Vec<u32> {
    const OWN: usize = 3;
    let is_replaceable = |file: u32| match &model.files[file as usize] {
        OpenFile::Socket(socket) => socket.is_replaceable(),
        _ => false,
    };
    let own = numbers(model.root()).into_iter().filter(|(file, _)| is_replaceable(*file));
    let mut firsts: Vec<u32> = own.map(|(_, own)| own[0].fd).collect();
    firsts.sort_unstable();
    firsts.truncate((MAX_REQUEST_FDS - OWN).saturating_sub(external_numbers(model).len()));
    firsts
}

fn numbers(member: &Member) -> BTreeMap<u32, Vec<&Descriptor>> {
    let mut numbers: BTreeMap<u32, Vec<&Descriptor>> = BTreeMap::new();
    for descriptor in &member.descriptors {
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

impl Compiler<'_> {
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
            OpenFile::Unnamed { file, flags, offset } => {
                self.unnamed(index, *file, *flags, *offset);
            }
            OpenFile::TerminalMaster { terminal, path, flags } => {
                self.master(index, *terminal, path, *flags);
            }
            // Opened by way of the master, which may come later.
            OpenFile::TerminalSlave { .. } => {}
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
            match self.slot_of(descriptor.fd) {
                Some(slot) => self.move_to(slot, descriptor),
                None => self.duplicate(own[0], descriptor),
            }
        }
    }

    /// The slot of what the caller supplies for number `fd`.
    fn slot_of(&self, fd: u32) -> Option<u8> {
        let index = self.external.iter().position(|own| *own == fd)?;
        Some(SLOT_EXTERNAL + index as u8)
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
        OpenFile::ProcessHandle { .. } => "pidfd".to_owned(),
        OpenFile::TerminalMaster { .. } => "master of a terminal".to_owned(),
        OpenFile::TerminalSlave { .. } => "terminal".to_owned(),
        OpenFile::SocketPair { .. } => "Unix socket pair".to_owned(),
        OpenFile::Object { .. } => "shared memory".to_owned(),
        OpenFile::Socket(socket) => socket.description.clone(),
        OpenFile::External { description } => description.clone(),
    }
}
