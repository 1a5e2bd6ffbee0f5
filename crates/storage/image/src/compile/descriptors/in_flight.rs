//! Descriptors in flight: files that wait in Unix sockets to be received (SCM_RIGHTS).
//!
//! ```text
//!  numbers   0 ... spare_fd  own │ external │ shared objects │ in flight: files, then far ends │ held
//!  order     every file, at its own number or one of these ─► messages ─► these are closed
//! ```
//! A message can be sent when all that comes with it is there, which may be a socket that itself
//! has messages waiting, or the very one that it is sent through. So what comes with descriptors
//! is sent after all files are made; and its far end, if the parent had closed it, is kept as long.
//! Both are closed before locks are taken, since closing drops the process's own.

use farfork_plan::protocol::OWN_FDS;

use super::{Compiler, spare, supplied};
use crate::compile::family;
use crate::compile::held::Held;
use crate::compile::shared::Numbers;
use crate::model::{Descriptor, Message, Model, OpenFile};

/// Numbers of the restorer's own run for what the parent has no number for.
#[derive(Default)]
pub struct InFlight {
    first: u32,
    /// Files that only messages refer to.
    files: Vec<u32>,
    /// Ends whose other end the parent had closed, and in which descriptors wait.
    alone: Vec<u32>,
}

impl InFlight {
    /// Those beside `descriptors`, with numbers from `first` on.
    fn from(model: &Model, descriptors: &[Descriptor], first: u32) -> InFlight {
        let mut has_number = vec![false; model.files.len()];
        for descriptor in descriptors {
            has_number[descriptor.file as usize] = true;
        }
        let mut files: Vec<u32> =
            messages(model).flat_map(|message| message.files.iter().copied()).collect();
        files.sort_unstable();
        files.dedup();
        files.retain(|file| !has_number[*file as usize]);
        let is_there = |file: u32| has_number[file as usize] || files.contains(&file);
        let pairs = (0..model.files.len() as u32).filter(|file| is_there(*file));
        let alone = pairs.filter(|file| {
            let others = (0..model.files.len() as u32).filter(|other| other != file);
            is_late(&model.files[*file as usize])
                && !others.into_iter().any(|other| is_there(other) && are_ends(model, *file, other))
        });
        let alone = alone.collect();
        InFlight { first, files, alone }
    }

    /// Those beside `descriptors`, whose process makes what no process of the image has a number
    /// for.
    pub fn of(model: &Model, descriptors: &[Descriptor]) -> InFlight {
        let supplied = supplied(model).len() as u32;
        let own = OWN_FDS + 2 * supplied + Numbers::count(model);
        InFlight::from(model, descriptors, spare(model).start + own)
    }

    /// How many numbers they take.
    pub fn count(model: &Model) -> u32 {
        let InFlight { files, alone, .. } = match family::has_several(model) {
            true => InFlight::from(model, &Held::unnumbered(model).descriptors, 0),
            false => InFlight::from(model, &model.root().descriptors, 0),
        };
        (files.len() + alone.len()) as u32
    }

    /// `descriptors` and those that stand for the files while the messages are sent.
    pub fn beside(&self, descriptors: &[Descriptor]) -> Vec<Descriptor> {
        descriptors.iter().cloned().chain(self.descriptors()).collect()
    }

    /// What stands for the files while the messages are sent.
    fn descriptors(&self) -> impl Iterator<Item = Descriptor> {
        let files = self.files.iter().enumerate();
        files.map(|(index, file)| Descriptor { fd: self.number(index), file: *file, cloexec: true })
    }

    fn number(&self, index: usize) -> u32 {
        self.first + index as u32
    }

    /// The number of the far end of `file`, which the parent had closed.
    pub fn far_end(&self, file: u32) -> Option<u32> {
        let index = self.alone.iter().position(|own| *own == file)?;
        Some(self.number(self.files.len() + index))
    }

    fn end(&self) -> u32 {
        self.number(self.files.len() + self.alone.len())
    }
}

fn messages(model: &Model) -> impl Iterator<Item = &Message> {
    let queues = model.files.iter().filter_map(|file| match file {
        OpenFile::SocketPair { incoming, .. } => Some(incoming),
        _ => None,
    });
    queues.flatten()
}

/// Whether descriptors wait at this end.
pub fn is_late(file: &OpenFile) -> bool {
    let OpenFile::SocketPair { incoming, .. } = file else { return false };
    incoming.iter().any(|message| !message.files.is_empty())
}

fn are_ends(model: &Model, one: u32, other: u32) -> bool {
    match (&model.files[one as usize], &model.files[other as usize]) {
        (OpenFile::SocketPair { pair, .. }, OpenFile::SocketPair { pair: same, .. }) => {
            pair == same
        }
        _ => false,
    }
}

impl Compiler<'_> {
    /// Fills the pairs with descriptors in flight, and closes what is not the parent's.
    pub fn late_messages(&mut self) {
        for (file, partner) in std::mem::take(&mut self.late) {
            let model = self.model;
            self.name(file, &model.files[file as usize]);
            let far = partner.and_then(|partner| self.first(partner));
            let ends = (self.first(file), far.or_else(|| self.in_flight.far_end(file)));
            let (Some(near), Some(far)) = ends else { continue };
            let (made, second) = (self.slots.made, self.slots.second);
            for (number, slot) in [(near, made), (far, second)] {
                let args = [number.into(), libc::F_DUPFD_CLOEXEC as u64, self.spare.start.into()];
                let op = self.op(libc::SYS_fcntl, &args).store(slot);
                self.ops.push(op);
            }
            self.fill_sockets(file, partner);
            self.push_on(made, libc::SYS_close, &[]);
            self.push_on(second, libc::SYS_close, &[]);
        }
        for number in self.in_flight.first..self.in_flight.end() {
            self.push(libc::SYS_close, &[number.into()]);
        }
    }
}
