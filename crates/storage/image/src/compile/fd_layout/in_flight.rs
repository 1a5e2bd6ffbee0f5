//! Descriptor numbers for files that wait in Unix sockets to be received (SCM_RIGHTS) and for which the
//! parent has no number.
//!
//! ```text
//!  files that only messages refer to │ far ends, closed by the parent, of sockets they wait in
//! ```

use crate::model::{Descriptor, Message, Model, OpenFile};

/// Numbers of the restorer's own run for what the parent has no number for.
#[derive(Debug, Default)]
pub struct InFlight {
    first: u32,
    /// Files that only messages refer to.
    files: Vec<u32>,
    /// Ends whose other end the parent had closed, and in which descriptors wait.
    alone: Vec<u32>,
}

impl InFlight {
    /// Those beside `descriptors`.
    pub fn unnumbered(model: &Model, descriptors: &[Descriptor]) -> InFlight {
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
            has_fds_in_flight(&model.files[*file as usize])
                && !others.into_iter().any(|other| is_there(other) && are_ends(model, *file, other))
        });
        let alone = alone.collect();
        InFlight { first: 0, files, alone }
    }

    /// Gives numbers from `first` on.
    pub fn number_from(&mut self, first: u32) {
        self.first = first;
    }

    /// How many numbers they take.
    pub fn count(&self) -> u32 {
        (self.files.len() + self.alone.len()) as u32
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

    /// All numbers.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.count()
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
pub fn has_fds_in_flight(file: &OpenFile) -> bool {
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
