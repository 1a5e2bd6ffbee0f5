//! The start of a program as a flavour wants it.

use crate::places::work_dir;
use crate::subject::Subject;
use crate::{Flavour, Outcome, Program, Trouble, compile};
use std::process::Command;

/// Starts the program that is treated like this, and waits until it is ready.
pub(crate) fn start(flavour: Flavour, program: &Program) -> Outcome<Subject> {
    let mut command = compile::command(program)?;
    if flavour.is_pid_one() {
        command = in_new_pid_namespace(&command);
    }
    command.current_dir(work_dir(&format!("{}-{}", flavour.name(), program.name))?);
    if flavour == Flavour::Naive {
        command.env("FARFORK_NAIVE", "1");
    }
    let mut subject = Subject::start("parent", &mut command, program.timeout)?;
    subject.await_ready()?;
    match subject.after("NOTE UNAVAILABLE").pop() {
        Some(reason) => Err(Trouble::Skipped(reason)),
        None => Ok(subject),
    }
}

/// The same command as pid 1; the started process is its parent, outside.
fn in_new_pid_namespace(command: &Command) -> Command {
    let mut outer = Command::new("unshare");
    outer.args(["--kill-child", "-pf", "--mount-proc", "--"]);
    outer.arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    outer
}
