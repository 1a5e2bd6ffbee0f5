//! The process as a whole.

causes! {
    SEM_UNDO {
        what: "System V semaphores in a process that used SEM_UNDO, or has threads",
        why: "it may have semaphore changes to undo at its exit (SEM_UNDO), and the kernel does \
            not show them",
        remedy: "use POSIX semaphores (sem_init, sem_open), or System V semaphores without \
            SEM_UNDO in a process without threads; remove the set (ipcrm -s) if another program \
            left it",
    }
    CHILD {
        what: "child process, without --tree",
        why: "only one process is checkpointed, and its children are not",
        remedy: "checkpoint the whole tree (--tree), or checkpoint when the children have exited",
    }
    ZOMBIE {
        what: "child process that has exited and was not waited for, without --tree",
        why: "it has exited, but its status was not taken (it is a zombie), and only one process is \
            checkpointed",
        remedy: "wait for it (waitpid, Popen.wait), ignore SIGCHLD, or checkpoint the whole tree (--tree)",
    }
    LDT {
        what: "segments of its own (modify_ldt), as Wine and DOSEMU make them",
        why: "it has entries that a clone would not have",
        remedy: "remove them before the checkpoint (modify_ldt with empty entries)",
    }
    KEYRING {
        what: "keyring of a process or thread",
        why: "it holds keys of this process in the kernel, which farfork does not read",
        remedy: "keep keys in the keyring of the user (KEY_SPEC_USER_KEYRING), or make them in the clone",
    }
    SESSION_KEYS {
        what: "session keyring with keys",
        why: "a clone is in the session of its node's agent, and would not find the keys",
        remedy: "keep keys in the keyring of the user (KEY_SPEC_USER_KEYRING), or make them in the clone",
    }
    OTHER_NAMESPACE {
        what: "descendant in another namespace",
        why: "it is in another namespace than the root process of the tree",
        remedy: "start it without namespaces of its own, or checkpoint when it has exited",
    }
    SHARES_TABLE {
        what: "processes that share descriptors, directories or signal handlers",
        why: "two processes share it as threads do (clone with CLONE_FILES, CLONE_FS or \
            CLONE_SIGHAND)",
        remedy: "start them as threads of one process, or by fork",
    }
    SESSION_OUTSIDE {
        what: "descendants in several sessions from outside of the tree",
        why: "another process of the tree is in another session that comes from outside of it",
        remedy: "checkpoint the tree of the process that made the session, or start it by setsid",
    }
    GROUP_OUTSIDE {
        what: "descendants in several process groups from outside of the tree",
        why: "its group comes from outside of the tree, and another process is not in it",
        remedy: "checkpoint the tree of the process that made the group, or wait until it has \
            exited",
    }
    GROUP_LEFT {
        what: "process group that its first process has left",
        why: "the process that made the group is in another one now",
        remedy: "checkpoint when the processes of that group have exited",
    }
    MISPLACED {
        what: "orphan that another process than its parent would get now",
        why: "it was reparented from a session whose orphans another process gets now \
            (PR_SET_CHILD_SUBREAPER)",
        remedy: "checkpoint when the orphan has exited",
    }
    MAIN_THREAD_ENDED {
        what: "main thread that has exited",
        why: "it has exited, so the process can neither be stopped nor read",
        remedy: "keep the main thread running until after the checkpoint",
    }
    SHARES_MEMORY {
        what: "another process in the same memory",
        why: "it shares the memory of this process (CLONE_VM), and would change the parent only",
        remedy: "end it before the checkpoint, or make it a thread",
    }
    STOPPED_INIT {
        what: "pid 1 that a signal has stopped",
        why: "it is pid 1 and stopped",
        remedy: "continue it with SIGCONT",
    }
    CONFINED {
        what: "process with CAP_SYS_PTRACE that Landlock or another security module confines",
        why: "a security module, such as Landlock, keeps it from other processes, and its rules \
            cannot be read",
        remedy: "checkpoint it before it confines itself, and let its clones do that",
    }
    USER_NAMESPACE {
        what: "process in another user namespace",
        why: "its users, groups or capabilities are those of another user namespace",
        remedy: "run farfork in that namespace, or run the process outside of it",
    }
    TIME_NAMESPACE {
        what: "process between two time namespaces",
        why: "it has made a time namespace for its children and is not in it itself",
        remedy: "checkpoint it when it has executed a program, or start it by unshare --time",
    }
    EXECUTABLE_IN_MEMORY {
        what: "program that was executed from memory",
        why: "its executable is a memfd, which has no path",
        remedy: "execute it from a file",
    }
    NOT_EXECUTABLE {
        what: "executable that may not be executed any more",
        why: "its file lost the execute permission, or lies on a noexec mount, and the kernel \
            does not accept such a file as the executable of a clone",
        remedy: "restore the permission (chmod +x), or mount it with exec",
    }
    POSIX_TIMERS {
        what: "timer of timer_create, before Linux 6.15",
        why: "only Linux 6.15 or later creates a timer with a given id \
            (PR_TIMER_CREATE_RESTORE_IDS)",
        remedy: "use Linux 6.15 or later, or timerfd_create or setitimer instead",
    }
    TRACED {
        what: "process or thread under a debugger",
        why: "a debugger traces it",
        remedy: "detach the debugger",
    }
}
