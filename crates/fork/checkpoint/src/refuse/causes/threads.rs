//! Threads, and the filters on their system calls.

causes! {
    CODE_32 {
        what: "32-bit code",
        why: "it runs 32-bit code",
        remedy: "use a 64-bit build of the program",
    }
    AMX {
        what: "AMX tiles",
        why: "its AMX tile registers are in use",
        remedy: "checkpoint it when no matrix computation is running",
    }
    SECCOMP_STRICT {
        what: "strict seccomp mode",
        why: "it is in strict seccomp mode, which cannot be entered under farfork's filter",
        remedy: "use a seccomp filter instead",
    }
    SECCOMP_ACTIVE {
        what: "seccomp filter, and farfork without CAP_SYS_ADMIN",
        why: "farfork may not set its seccomp filter aside for the checkpoint",
        remedy: "run farfork with CAP_SYS_ADMIN and without a seccomp filter",
    }
    SECCOMP_NOTIFY {
        what: "seccomp filter with a supervisor",
        why: "its seccomp filter asks a supervisor, which a clone does not have",
        remedy: "run it without SECCOMP_RET_USER_NOTIF",
    }
    SECCOMP_RIGHTS {
        what: "seccomp filter of a thread that has dropped capabilities",
        why: "its seccomp filter was installed with capabilities that it has dropped since",
        remedy: "set no_new_privs before the checkpoint",
    }
    SECCOMP_FORBIDS_FILTER {
        what: "seccomp filter under one that forbids it",
        why: "its seccomp filters forbid installing the last of them again",
        remedy: "let its filters allow seccomp",
    }
    SECCOMP_FORBIDS_RETURN {
        what: "seccomp filter without rt_sigreturn",
        why: "its seccomp filter forbids rt_sigreturn, by which clones start",
        remedy: "let its filter allow rt_sigreturn",
    }
    SYSCALL_DISPATCH {
        what: "system calls that are dispatched to the program",
        why: "its system calls are delivered to it as signals (syscall user dispatch)",
        remedy: "run the program without PR_SET_SYSCALL_USER_DISPATCH",
    }
    OWN_DIRECTORIES {
        what: "root and working directory of a single thread",
        why: "the thread has a root and a working directory of its own",
        remedy: "run the program without unshare(CLONE_FS)",
    }
    OWN_TABLE {
        what: "descriptors of a single thread",
        why: "the thread has a descriptor table of its own",
        remedy: "run the program without unshare(CLONE_FILES)",
    }
}
