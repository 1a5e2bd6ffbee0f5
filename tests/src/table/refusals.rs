//! What cannot be carried is refused in words, before anything is written.

use crate::Program;

pub(super) const PROGRAMS: &[Program] = &[
    Program::c("refuse_shared_anon").refused(&["mapping", "memory"]),
    Program::c("refuse_deleted_directory").refused(&["fd 3"]),
    Program::c("refuse_deleted_mapping").refused(&["mapping", "unnamed"]),
    Program::c("refuse_child").refused(&["child"]),
    Program::c("refuse_io_uring").refused(&["fd 3"]),
    Program::c("refuse_seccomp").refused(&["seccomp"]),
    Program::c("refuse_pty_bytes").refused(&["bytes wait in the terminal"]),
    Program::c("refuse_aio").refused(&["linux aio"]),
    Program::c("refuse_inotify").refused(&["events wait"]),
    Program::c("refuse_userfaultfd").refused(&["fd 3"]),
    Program::c("refuse_ptraced").refused(&["trace"]),
    // A memfd is a deleted file to begin with: refused until images carry the bytes of memfds.
    Program::c("fd_memfd").refused(&["fd 3"]),
];
