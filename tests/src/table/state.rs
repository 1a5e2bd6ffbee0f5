//! Threads, registers, signals, clocks and identity.

use crate::Program;
use crate::program::Source;

pub(super) const PROGRAMS: &[Program] = &[
    Program::c("threads_regs").as_pid_one(),
    Program::c("fpu_state"),
    // Refused while tiles are in use: their state is not carried.
    Program::c("amx_tiles").refused(&["amx"]),
    Program::c("tls").as_pid_one(),
    Program::c("thread_exit_after"),
    Program::c("thread_churn"),
    Program::c("vfork_waits"),
    // The kernel neither stops nor describes a process whose main thread has ended.
    Program::c("main_thread_gone").refused(&["main thread"]),
    Program::c("signals"),
    Program::c("restart_syscalls"),
    Program::c("steady"),
    Program::c("handler_lasts"),
    Program::c("timers"),
    Program::c("rseq"),
    // Programs that register an area themselves switch off the one of glibc.
    Program::c("rseq_section").env(&[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]),
    Program::c("robust_list"),
    Program::c("prctl_state"),
    Program::c("hardening"),
    Program::c("personality"),
    Program::c("umask_cwd"),
    Program::c("own_mounts"),
    Program::c("creds"),
    Program::c("rights_apart"),
    Program::c("thread_creds").as_pid_one(),
    Program::c("threads_together").settles("CHECKED"),
    Program::of("threads_apart", Source::C("threads_together"))
        .env(&[("FORBIDS_FUTEX", "1")])
        .settles("CHECKED"),
    // A cgroup of its own has no share of real time, where the kernel divides that among cgroups.
    Program::c("priorities").as_pid_one().not_in_ghosts(),
    Program::c("auxv_exe").as_pid_one(),
    Program::c("vdso_time"),
    Program::c("clocks").as_pid_one(),
    Program::of("clocks_ahead", Source::C("clocks")).env(&[("AHEAD", "1")]).as_pid_one(),
    // On two other nodes, one of which has another boot.
    Program::of("clocks_elsewhere", Source::C("clocks")).own_network(),
    Program::of("clocks_ahead_elsewhere", Source::C("clocks")).env(&[("AHEAD", "1")]).own_network(),
    Program::c("vdso_random").values_differ(),
    Program::c("membarrier"),
    Program::c("seccomp_none"),
    Program::c("seccomp_own").as_pid_one(),
    Program::c("seccomp_by_prctl"),
];
