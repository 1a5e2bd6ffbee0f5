//! The process as a whole.

causes! {
    CHILD {
        what: "child process",
        why: "process trees are not carried yet",
        remedy: "checkpoint it when its children have ended",
    }
    MAIN_THREAD_ENDED {
        what: "main thread that has ended",
        why: "it has ended, so that the process can be neither stopped nor described",
        remedy: "keep the main thread until the checkpoint",
    }
    STOPPED_INIT {
        what: "pid 1 that a signal has stopped",
        why: "it is pid 1 and stopped",
        remedy: "continue it with SIGCONT",
    }
    CONFINED {
        what: "process with CAP_SYS_PTRACE that Landlock or another security module confines",
        why: "a security module, Landlock perhaps, keeps it from other processes, by rules that \
            nobody is told",
        remedy: "checkpoint it before it confines itself, and have its clones do that",
    }
    TRACED {
        what: "process or thread under a debugger",
        why: "a debugger traces it",
        remedy: "detach the debugger",
    }
}
