//! The descriptors of all processes of an image.

use std::path::PathBuf;
use std::rc::Rc;

use super::connection::Connections;
use super::context::TreeContext;
use super::error::DescriptorError;
use super::network::Network;
use super::share;
use super::subject::Subject;
use super::table::{self, Entry};
use crate::ids::Ids;

/// What the kernel calls memory without a name.
const MEMFD: &str = "/memfd:";

/// Descriptors, grouped by the open file descriptions behind them.
pub struct TreeDescriptors {
    entries: Vec<Entry>,
    groups: Vec<Vec<usize>>,
    subjects: Vec<Subject>,
    context: Rc<TreeContext>,
}

impl TreeDescriptors {
    /// Those of processes `pids`, the first of which is the root of the others.
    pub fn read(
        pids: &[i32],
        ids: &Ids,
        connections: Connections,
    ) -> Result<TreeDescriptors, DescriptorError> {
        let mut entries = table::read(pids)?;
        let mut groups = share::groups(&entries)?;
        let network = Rc::new(Network::open(pids.first().copied().unwrap_or_default())?);
        let context = Rc::new(TreeContext::collect(
            pids,
            ids,
            &network,
            &mut entries,
            &mut groups,
            connections,
        )?);
        let subjects = pids.iter().map(|pid| Subject {
            pid: *pid,
            inner_pid: ids.process(*pid).unwrap_or_default(),
            network: Rc::clone(&network),
            context: Rc::clone(&context),
        });
        let subjects = subjects.collect();
        Ok(TreeDescriptors { entries, groups, subjects, context })
    }

    /// Descriptors of one description each, those of the first process that has it first, in the
    /// order of their first.
    pub fn groups(&self) -> impl Iterator<Item = Vec<&Entry>> {
        self.groups.iter().map(|group| group.iter().map(|index| &self.entries[*index]).collect())
    }

    /// Memory without a name that only messages refer to: the process that may receive it, where it
    /// can be opened, and what it is called.
    pub fn memory_in_flight(&self) -> impl Iterator<Item = (i32, PathBuf, &str)> {
        let is_memory = |entry: &&Entry| entry.held.is_some() && entry.link.starts_with(MEMFD);
        let own = self.entries.iter().filter(is_memory);
        own.map(|entry| (entry.pid, entry.place(), entry.link.as_str()))
    }

    /// What the processes have in common.
    pub fn context(&self) -> &TreeContext {
        &self.context
    }

    /// The process that has `entry`.
    pub fn subject(&self, entry: &Entry) -> &Subject {
        &self.subjects[self.place(entry.pid)]
    }

    /// Place of process `pid` among all.
    pub fn place(&self, pid: i32) -> usize {
        self.context.pids.iter().position(|own| *own == pid).unwrap_or_default()
    }
}
