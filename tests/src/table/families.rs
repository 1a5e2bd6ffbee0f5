//! Families of processes: parents, sessions, groups, ends.

use crate::Program;

pub(super) const PROGRAMS: &[Program] = &[
    Program::c("tree_forks").tree().as_pid_one(),
    Program::c("tree_sessions").tree().as_pid_one(),
    Program::c("tree_zombies").tree().as_pid_one(),
    Program::c("tree_pidfd").tree(),
    // A clone whose child is stopped is not yet out of the restorer's code.
    Program::c("tree_stopped").tree().no_clone_of_clone(),
];
