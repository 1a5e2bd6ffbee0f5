//! Open files of every kind that a clone can have.

use crate::Program;
use crate::program::Source;

pub(super) const PROGRAMS: &[Program] = &[
    Program::c("fd_regular"),
    Program::c("fd_deleted"),
    Program::c("fd_directory"),
    Program::c("fd_log"),
    Program::c("fd_devices"),
    Program::of("fd_own_thread", Source::C("refuse_other_thread")).env(&[("OWN", "1")]),
    Program::c("fd_pipes").as_pid_one(),
    Program::c("fd_fifo"),
    Program::c("fd_fifo_external").needs_inherit(3, "clone-control"),
    Program::c("fd_locks_shared"),
    Program::c("fd_locks").excludes("another process holds it"),
    Program::c("fd_async"),
    Program::c("fd_inotify"),
    Program::c("fd_fanotify").as_pid_one(),
    Program::c("fd_pidfd").as_pid_one(),
    Program::c("fd_pty"),
    Program::c("fd_eventfd"),
    Program::c("fd_epoll").as_pid_one(),
    Program::c("fd_timerfd"),
    Program::c("fd_signalfd").as_pid_one(),
    Program::c("fd_socketpair"),
    Program::c("fd_in_flight").as_pid_one(),
    Program::c("fd_memfd"),
    Program::c("exec_memfd"),
    Program::c("ring_idle").as_pid_one(),
    Program::c("fd_no_follow"),
    Program::c("fd_many"),
    Program::c("aio_idle").options(&["--aio-idle"]).as_pid_one(),
    Program::c("fd_high_numbers"),
    Program::c("unix_listening_external").needs_inherit_beside(5, "clone-listening"),
];
