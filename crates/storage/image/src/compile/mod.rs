//! From a model and the chunks that hold its pages to the plan.

pub mod arena;
mod credentials;
pub mod descriptors;
pub mod fd_layout;
pub mod filters;
mod frame;
mod ipc;
mod meeting;
mod memory;
mod mounts;
mod place;
mod process;
mod scheduling;
mod shared;
mod threads;
pub mod tree;

use farfork_plan::{MEMBER_SHIFT, MemberPlan, PLAN_MAGIC, PlanHeader, Table};

use crate::model::{Member, Model};
use arena::Arena;
use fd_layout::FdLayout;
pub use fd_layout::{Supplied, externals, replaceables, rings, supplied};

/// One process of a model, in whose terms its plan is compiled.
#[derive(Clone, Copy)]
pub struct Subject<'m> {
    /// The whole image.
    pub model: &'m Model,
    /// The process.
    pub member: &'m Member,
    /// Its place among the members.
    pub index: usize,
    /// Descriptor numbers of the whole image.
    pub fds: &'m FdLayout,
}

impl<'m> Subject<'m> {
    /// The ancestor of all processes of `model`.
    pub fn root(model: &'m Model, fds: &'m FdLayout) -> Subject<'m> {
        Subject { model, member: model.root(), index: 0, fds }
    }
}

/// Compiles the base plan of a model. The result is deterministic.
pub fn compile(model: &Model) -> Vec<u8> {
    let fds = FdLayout::compute(model);
    let mut arena = Arena::new();
    let mut members = Vec::new();
    let (mut windows, mut files, mut traits) = (Vec::new(), Vec::new(), Vec::new());
    for (index, member) in model.members.iter().enumerate() {
        let subject = Subject { model, member, index, fds: &fds };
        let memory = memory::compile(subject, &mut arena);
        let tag = (index as u64) << MEMBER_SHIFT;
        windows.extend(memory.windows(tag));
        files.extend(memory.files(tag));
        traits.extend(memory.traits(tag));
        let process = process::compile(subject, &mut arena);
        let (threads, kept) = threads(subject, &mut arena);
        let settle = tree::settle(subject, &mut arena);
        members.push(MemberPlan {
            memory_ops: arena.ops(&memory.ops),
            task_ops: arena.ops(&process.early),
            late_ops: arena.ops(&process.late),
            joined_ops: {
                let joined = process::joined(member);
                arena.ops(&joined)
            },
            settle_ops: arena.ops(&settle),
            stop_ops: {
                let stop = process::stop(member);
                arena.ops(&stop)
            },
            threads,
            kept,
        });
    }
    windows.sort_by_key(|window| window.place);
    let births = tree::births(model, &fds, &mut arena);
    let header = PlanHeader {
        magic: PLAN_MAGIC,
        bytes: 0,
        members: arena.table(&members),
        births: arena.table(&births),
        windows: arena.table(&windows),
        files: arena.table(&files),
        traits: arena.table(&traits),
        spare_fd: fds.spare.start,
        spare_count: fds.spare.len() as u32,
        is_pid_one: u32::from(model.root().process.pid == 1),
        has_own_ipc: u32::from(model.has_own_ipc),
        is_copied: u32::from(model.members.iter().any(|member| member.memory.is_copied)),
        reserved: 0,
    };
    arena.finish(header)
}

/// The plans of a process's threads, and the pages that they take, if the process may keep no others.
fn threads(subject: Subject<'_>, arena: &mut Arena) -> (Table, Table) {
    let is_copied = subject.member.memory.is_copied;
    let start = if is_copied { arena.page() } else { 0 };
    let threads = threads::compile(subject, arena);
    let threads = arena.table(&threads);
    let count = if is_copied { arena.page() - start } else { 0 };
    (threads, Table { address: start, count })
}
