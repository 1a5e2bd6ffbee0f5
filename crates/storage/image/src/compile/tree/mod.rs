//! How the processes of an image come into being and how they part: the forks, and
//! the waits for each other. A single process has none of this.
//!
//! ```text
//!  birth    held descriptors and objects (the root) ─► forks ─► sessions, groups ─► BORN
//!           ─► those that have ended end, and their parents wait until they have
//!  as one   memory, descriptors, threads … each member for itself
//!  settle   READY ─► stopped ones stop, and their parents wait until they have ─► SETTLED
//!           ─► the root says that the clone runs ─► RUNNING: all leave
//! ```

mod arrange;
#[cfg(test)]
mod tests;

use farfork_plan::{Birth, Op, What, nr, stage};

use super::arena::Arena;
use super::descriptors::is_slave;
use super::fd_layout::{FdLayout, RootFds};
use super::meeting::{living, meet};
use super::{Subject, descriptors, mounts, shared};
use crate::model::{Member, Model, Terminal};
pub use arrange::Misplaced;
use arrange::{Step, arrange};

const SIGCHLD: u32 = libc::SIGCHLD as u32;
const SIGKILL: u64 = libc::SIGKILL as u64;
const P_PID: u64 = libc::P_PID as u64;
/// `__WALL`: also children that end without a signal.
const ALL: u64 = libc::__WALL as u64;

/// Whether every process can be given its parent, its session and its group.
///
/// # Errors
/// The first that cannot.
pub fn check(members: &[Member]) -> Result<(), Misplaced> {
    arrange(members).map(|_| ())
}

/// Compiles how the processes of `model` are born. The root begins with what all of them need.
pub fn births(model: &Model, fds: &FdLayout, arena: &mut Arena) -> Vec<Birth> {
    if !model.is_tree() {
        return Vec::new();
    }
    let mut first = mounts::ops(&model.mounts, arena);
    first.extend(shared::root_ops(model, fds, arena));
    first.extend(descriptors::root_ops(model, fds, arena));
    // No model is valid that cannot be arranged.
    let births = arrange(&model.members).unwrap_or_default();
    let root_fds = &fds.root;
    let mut compiler = Compiler { model, root_fds, arena, births: &births, ops: Vec::new() };
    let mut compiled = Vec::new();
    for (index, birth) in births.iter().enumerate() {
        compiler.ops = if index == 0 { std::mem::take(&mut first) } else { Vec::new() };
        compiler.birth(index, birth);
        let ops = compiler.arena.ops(&compiler.ops);
        let (pid, exit_signal, is_any_pid) =
            (birth.pid, birth.exit_signal, birth.is_any_pid.into());
        compiled.push(Birth { pid, exit_signal, is_any_pid, reserved: 0, ops });
    }
    compiled
}

struct Compiler<'m> {
    model: &'m Model,
    root_fds: &'m RootFds,
    arena: &'m mut Arena,
    births: &'m [arrange::Birth],
    ops: Vec<Op>,
}

impl Compiler<'_> {
    fn birth(&mut self, index: usize, birth: &arrange::Birth) {
        let detail = self.arena.detail(&format!("process {}", birth.pid));
        let about = self.ops.len();
        let is_adopted = self.births.iter().any(|other| {
            other.steps.contains(&Step::Fork(index)) && other.steps.last() == Some(&Step::End(0))
        });
        // The parent of an orphan changes; what ends on the way does so by itself.
        let follow = Op::new(What::Process, nr::FOLLOW_PARENT, &[self.parent_of(index)]);
        let is_member = index < self.model.members.len();
        if is_member && !is_adopted {
            self.ops.push(follow);
        }
        for step in &birth.steps {
            self.step(*step);
            match step {
                Step::LeadSession => self.terminals(birth.pid, Terminal::controls),
                Step::Meet if is_adopted => self.ops.push(follow),
                _ => {}
            }
        }
        self.terminals(birth.pid, Terminal::foreground);
        if is_member {
            self.forget(index, &birth.steps);
        }
        self.ops[about..].iter_mut().filter(|op| op.detail == 0).for_each(|op| op.detail = detail);
    }

    /// The id of a member's parent, 0 for the root, whose parent is not of the image.
    fn parent_of(&self, index: usize) -> u64 {
        let member = self.model.members.get(index);
        let parent = member.and_then(|member| member.kinship.parent);
        parent.map_or(0, |parent| self.model.members[parent as usize].process.pid.into())
    }

    fn step(&mut self, step: Step) {
        let kinship = |number: i64, args: &[u64]| Op::new(What::Kinship, number as u32, args);
        let pid = |child: usize| u64::from(self.births[child].pid);
        let ended = libc::WEXITED as u64 | ALL;
        let op = match step {
            Step::Adopt => {
                kinship(libc::SYS_prctl, &[libc::PR_SET_CHILD_SUBREAPER as u64, 1, 0, 0, 0])
            }
            Step::Fork(child) => {
                let detail = self.arena.detail(&format!("process {}", pid(child)));
                Op::new(What::Process, nr::FORK, &[child as u64]).about(detail)
            }
            Step::LeadSession => kinship(libc::SYS_setsid, &[]),
            Step::LeadGroup => kinship(libc::SYS_setpgid, &[0, 0]),
            Step::Join(group) => kinship(libc::SYS_setpgid, &[0, group.into()]),
            Step::Await(child) => {
                let how = ended | libc::WNOWAIT as u64;
                kinship(libc::SYS_waitid, &[P_PID, pid(child), 0, how, 0])
            }
            Step::Reap(child) if self.births[child].is_any_pid => {
                // The only child that has ended by now: it is the one forked last.
                kinship(libc::SYS_waitid, &[libc::P_ALL as u64, 0, 0, ended, 0])
            }
            Step::Reap(child) => kinship(libc::SYS_waitid, &[P_PID, pid(child), 0, ended, 0]),
            Step::Meet => {
                let all = self.model.members.len() as u64;
                Op::new(What::Kinship, nr::MEET, &[stage::BORN, all])
            }
            Step::End(status) => Op::new(What::Process, nr::END, &[status as u64]),
        };
        self.ops.push(op);
    }

    /// Of the terminals of the session that `leader` leads, which are held and have a slave open.
    fn terminals(&mut self, leader: u32, request: fn(&Terminal, &mut Arena) -> Option<[u64; 2]>) {
        for (index, terminal) in (0u32..).zip(&self.model.terminals) {
            let slave = self.root_fds.find(self.model, |file| is_slave(file, index));
            let (Some(slave), true) = (slave, terminal.session == leader) else { continue };
            if let Some([request, argument]) = request(terminal, self.arena) {
                let args = [slave.into(), request, argument];
                self.ops.push(Op::new(What::Kinship, libc::SYS_ioctl as u32, &args));
            }
        }
    }

    /// Undoes what the birth of others has left in a member.
    fn forget(&mut self, index: usize, steps: &[Step]) {
        let members = &self.model.members;
        let awaited = steps.iter().filter_map(|step| match step {
            Step::Await(child) => members.get(*child).map(|child| child.kinship.exit_signal),
            _ => None,
        });
        let mut signals: Vec<u32> = awaited.filter(|signal| *signal != 0).collect();
        if !signals.is_empty() {
            signals.push(SIGCHLD); // what one sends that was an orphan
        }
        signals.sort_unstable();
        signals.dedup();
        for signal in signals {
            self.ops.extend(drop_pending(signal, self.arena));
        }
        if steps.contains(&Step::Adopt) && !members[index].process.is_child_subreaper {
            let args = [libc::PR_SET_CHILD_SUBREAPER as u64, 0, 0, 0, 0];
            self.ops.push(Op::new(What::Kinship, libc::SYS_prctl as u32, &args));
        }
    }
}

impl Terminal {
    /// What makes it control the caller's session, and all that is forked from then on.
    fn controls(&self, _: &mut Arena) -> Option<[u64; 2]> {
        Some([libc::TIOCSCTTY, 0])
    }

    /// What puts a group of the caller's session in its foreground; the signal against that is
    /// blocked.
    fn foreground(&self, arena: &mut Arena) -> Option<[u64; 2]> {
        let is_other = self.foreground != 0 && self.foreground != self.session;
        is_other.then(|| [libc::TIOCSPGRP, arena.words(&[self.foreground.into()])])
    }
}

/// Ignoring a signal removes it from those that are pending; then the default action is set again.
fn drop_pending(signal: u32, arena: &mut Arena) -> [Op; 2] {
    [libc::SIG_IGN, libc::SIG_DFL].map(|handler| {
        let action = arena.words(&[handler as u64, 0, 0, 0]);
        let args = [signal.into(), action, 0, 8];
        Op::new(What::Signal, libc::SYS_rt_sigaction as u32, &args)
    })
}

/// Has the calling thread, whose ids have changed, die with its parent still.
pub fn follow_parent() -> Op {
    let args = [libc::PR_SET_PDEATHSIG as u64, SIGKILL, 0, 0, 0];
    Op::new(What::Attribute, libc::SYS_prctl as u32, &args)
}

/// Compiles what a member does when all else of it is made.
pub fn settle(subject: Subject<'_>, arena: &mut Arena) -> Vec<Op> {
    let Subject { model, member, index, fds } = subject;
    if !model.is_tree() {
        return Vec::new();
    }
    let mut ops = vec![meet(stage::READY, living(model))];
    if index == 0 {
        // By now all processes have mapped what may no longer be mapped.
        ops.extend(shared::root_seals(model, fds));
    }
    ops.extend(await_stopped(model, index, arena));
    let signal = member.threads.first().map_or(0, |thread| thread.parent_death_signal);
    let args = [libc::PR_SET_PDEATHSIG as u64, signal.into(), 0, 0, 0];
    ops.push(Op::new(What::Attribute, libc::SYS_prctl as u32, &args));
    let goes_on = |index: usize, member: &Member| {
        index == 0 || member.kinship.ended.is_none() && !member.process.is_stopped
    };
    if goes_on(index, member) {
        let others = model.members.iter().enumerate();
        let others = others.filter(|(index, member)| goes_on(*index, member)).count();
        ops.push(meet(stage::SETTLED, if index == 0 { others } else { 0 }));
    }
    ops
}

/// Waits until children have stopped that were stopped, and drops their SIGCHLD. A stop that the parent had
/// not waited for yet can still be waited for.
fn await_stopped(model: &Model, index: usize, arena: &mut Arena) -> Vec<Op> {
    let member = &model.members[index];
    let is_child = |child: &&Member| child.kinship.parent == Some(index as u32);
    let stopped = model.members.iter().filter(is_child).filter(|child| child.process.is_stopped);
    let pending = &member.signals.pending;
    let is_child_signal = |info: &Vec<u8>| info.starts_with(&SIGCHLD.to_le_bytes());
    let how = |child: &Member| {
        let keep = if child.process.stop_is_unreported { libc::WNOWAIT as u64 } else { 0 };
        libc::WSTOPPED as u64 | keep | ALL
    };
    let mut ops: Vec<Op> = stopped
        .map(|child| [P_PID, child.process.pid.into(), 0, how(child), 0])
        .map(|args| Op::new(What::Kinship, libc::SYS_waitid as u32, &args))
        .collect();
    if ops.is_empty() {
        return ops;
    }
    ops.extend(drop_pending(SIGCHLD, arena));
    let actions = member.signals.actions.iter().filter(|(signal, _)| *signal == SIGCHLD);
    for (signal, action) in actions {
        let args = [(*signal).into(), arena.words(action), 0, 8];
        ops.push(Op::new(What::Signal, libc::SYS_rt_sigaction as u32, &args));
    }
    for info in pending.iter().filter(|info| is_child_signal(info)) {
        let args = [member.process.pid.into(), SIGCHLD.into(), arena.put(info, 8)];
        ops.push(Op::new(What::Signal, libc::SYS_rt_sigqueueinfo as u32, &args));
    }
    ops
}
