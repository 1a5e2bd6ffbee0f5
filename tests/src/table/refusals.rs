//! What cannot be carried is refused in words, before anything is written.

use crate::Program;
use crate::program::Source;

pub(super) const PROGRAMS: &[Program] = &[
    Program::c("refuse_shared_elsewhere").refused(&["has the same memory"]),
    Program::of("refuse_shared_elsewhere_latin", Source::C("refuse_shared_elsewhere"))
        .env(&[("LATIN", "1")])
        .refused(&["has the same memory"]),
    Program::c("refuse_sysv_elsewhere").refused(&["has the same memory"]),
    Program::c("refuse_executable").refused(&["lost the execute permission"]),
    Program::of("refuse_executable_in_memory", Source::C("refuse_executable"))
        .env(&[("IN_MEMORY", "1")])
        .refused(&["is a memfd"]),
    Program::c("refuse_deleted_directory").refused(&["fd 3"]),
    Program::c("refuse_other_thread").refused(&["fd 3 (/proc/"]),
    Program::of("refuse_other_thread_cwd", Source::C("refuse_other_thread"))
        .env(&[("CWD", "1")])
        .refused(&["cwd /proc/"]),
    Program::c("refuse_child").refused(&["child"]),
    Program::c("refuse_clone_vm").refused(&["shares the memory"]),
    Program::c("refuse_zombie").refused(&["its status was not taken"]),
    Program::c("refuse_io_uring").refused(&["a ring)", "only idle rings"]),
    ring("refuse_io_uring_busy", &[("KIND", "busy")], &["under way"]),
    ring("refuse_io_uring_reads", &[("KIND", "reads")], &["only idle rings"]),
    ring("refuse_io_uring_eventfd", &[("KIND", "eventfd")], &["registered"]),
    ring("refuse_io_uring_single", &[("KIND", "single")], &["restricted to one thread"]),
    ring("refuse_io_uring_disabled", &[("KIND", "disabled")], &["restricted to one thread"]),
    ring(
        "refuse_io_uring_polled",
        &[("KIND", "polled")],
        &["thread of the kernel that polls a ring"],
    ),
    Program::c("refuse_urgent").refused(&["cannot be read without consuming"]),
    Program::c("refuse_ldt").refused(&["local descriptor table"]),
    Program::c("refuse_keyring").refused(&["process keyring"]),
    Program::of("refuse_keyring_thread", Source::C("refuse_keyring"))
        .env(&[("KIND", "thread")])
        .refused(&["thread keyring"]),
    Program::of("refuse_keyring_session", Source::C("refuse_keyring"))
        .env(&[("KIND", "session")])
        .refused(&["session keyring"]),
    Program::c("refuse_pressure").refused(&["it may have a trigger"]),
    Program::c("refuse_path_too_long").refused(&["path_max"]),
    Program::of("refuse_32_bit", Source::C32("refuse_32_bit")).refused(&["32-bit code"]),
    Program::c("refuse_seccomp_strict").refused(&["strict seccomp mode"]),
    Program::c("refuse_seccomp_notify").refused(&["asks a supervisor"]),
    Program::c("refuse_seccomp_rights").refused(&["capabilities that it has dropped"]),
    Program::c("refuse_pty_bytes").refused(&["the terminal holds unread bytes"]),
    Program::c("refuse_aio").refused(&["does not show its requests in progress"]),
    Program::of("refuse_aio_events", Source::C("refuse_aio"))
        .env(&[("KIND", "events")])
        .options(&["--aio-idle"])
        .refused(&["it holds unread events"]),
    Program::of("refuse_aio_ring", Source::C("refuse_aio"))
        .env(&[("KIND", "ring")])
        .options(&["--aio-idle"])
        .refused(&["not the unchanged ring of a context"]),
    Program::c("refuse_inotify").refused(&["it holds unread events"]),
    Program::c("refuse_fanotify").refused(&["it holds unread events"]),
    Program::of("refuse_fanotify_asked", Source::C("refuse_fanotify"))
        .env(&[("KIND", "asked")])
        .refused(&["wait for its answers"]),
    Program::of("refuse_fanotify_mount", Source::C("refuse_fanotify"))
        .env(&[("KIND", "mount")])
        .refused(&["mounts of its own"]),
    Program::of("refuse_fanotify_rights", Source::C("refuse_fanotify"))
        .env(&[("KIND", "rights")])
        .refused(&["made with that capability"]),
    Program::c("refuse_hugetlb").refused(&["huge pages of hugetlbfs"]),
    Program::c("refuse_region").refused(&["region of objects", "ff_close"]),
    Program::c("refuse_window").refused(&["where farfork keeps its own code"]),
    Program::c("refuse_userfaultfd").refused(&["fd 3"]),
    Program::c("refuse_own_tmpfs").refused(&["tmpfs mounted on"]),
    Program::c("refuse_user_namespace").refused(&["another user namespace"]),
    Program::c("refuse_time_namespace").refused(&["time namespace"]),
    Program::c("refuse_uts_namespace").refused(&["a host name of its own"]),
    Program::of("refuse_packet_ring", Source::C("packet"))
        .env(&[("RING", "1")])
        .refused(&["shares its ring with the kernel"]),
    Program::c("refuse_semaphores").refused(&["sem_undo"]),
    Program::of("refuse_semaphores_shared", Source::C("refuse_semaphores"))
        .env(&[("SHARED", "1")])
        .refused(&["among the last to use it"]),
    Program::of("refuse_ipc_company", Source::C("ipc_namespace"))
        .env(&[("COMPANY", "1")])
        .refused(&["in the same ipc namespace"]),
    Program::c("refuse_children_namespace").refused(&["its future children get"]),
    Program::c("refuse_thread_root").refused(&["a root and a working directory of its own"]),
    Program::c("refuse_dispatch").refused(&["syscall user dispatch"]),
    Program::c("refuse_landlock").refused(&["landlock"]),
    Program::c("refuse_chroot").refused(&["without chroot"]),
    Program::c("refuse_ptraced").refused(&["trace"]),
];

/// A ring of io_uring of some kind, refused with `words`.
const fn ring(
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    words: &'static [&'static str],
) -> Program {
    Program::of(name, Source::C("refuse_io_uring")).env(env).refused(words)
}
