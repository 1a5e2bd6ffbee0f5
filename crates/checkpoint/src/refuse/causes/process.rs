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
    SHARES_MEMORY {
        what: "another process in the same memory",
        why: "it lives in the memory of this process (CLONE_VM), and would change a parent alone",
        remedy: "end it before the checkpoint, or make it a thread",
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
    USER_NAMESPACE {
        what: "process in another user namespace",
        why: "its users, groups or capabilities are those of another user namespace",
        remedy: "run farfork in that namespace, or the process outside of it",
    }
    TIME_NAMESPACE {
        what: "process between two time namespaces",
        why: "it has made a time namespace for its children and is not in it itself",
        remedy: "checkpoint it when it has executed a program, or start it by unshare --time",
    }
    TRACED {
        what: "process or thread under a debugger",
        why: "a debugger traces it",
        remedy: "detach the debugger",
    }
}
