//! Families of processes: parents, sessions, groups, ends.

use crate::Program;

pub(super) const PROGRAMS: &[Program] = &[
    Program::c("tree_forks").tree().as_pid_one(),
    Program::c("tree_sessions").tree().as_pid_one(),
    Program::c("tree_zombies").tree().as_pid_one(),
    Program::c("tree_pidfd").tree(),
    Program::c("tree_files").tree(),
    Program::c("tree_in_flight").tree(),
    Program::c("tree_tcp").tree().hands_over(),
    Program::c("tree_epoll").tree(),
    Program::c("tree_shared_memory").tree(),
    Program::c("tree_sysv").tree().as_pid_one(),
    Program::c("tree_pty").tree(),
    // The exclusive lock of one of them is the parent's, or a clone's.
    Program::c("tree_locks").tree().excludes("lock"),
    // A clone whose child is stopped is not yet out of the restorer's code.
    Program::c("tree_stopped").tree().no_clone_of_clone(),
    Program::c("tree_stop_unreported").tree().no_clone_of_clone(),
];
