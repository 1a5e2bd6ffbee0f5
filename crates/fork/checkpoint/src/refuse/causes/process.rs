//! The process as a whole.

causes! {
    SEM_UNDO {
        what: "semaphores of System V in a process that used SEM_UNDO, or has threads",
        why: "it may have changes of semaphores to be undone at its end (SEM_UNDO), which the \
            kernel shows to nobody",
        remedy: "use semaphores of POSIX (sem_init, sem_open), or those of System V without SEM_UNDO \
            in a process without threads; remove the set (ipcrm -s) if another program left it",
    }
    CHILD {
        what: "child process, without --tree",
        why: "only one process is checkpointed, and its children are not",
        remedy: "checkpoint the whole tree by --tree, or when the children have ended",
    }
    OTHER_NAMESPACE {
        what: "descendant in another namespace",
        why: "it is in another one than the process at the root of the tree",
        remedy: "start it without namespaces of its own, or checkpoint it when that one has ended",
    }
    SHARES_TABLE {
        what: "processes that share more than a fork leaves them",
        why: "two processes share it as threads do (clone with CLONE_FILES, CLONE_FS or \
            CLONE_SIGHAND)",
        remedy: "start them as threads of one process, or by fork",
    }
    SESSION_OUTSIDE {
        what: "descendants in several sessions from outside of the tree",
        why: "another process of the tree is in another session that comes from outside of it",
        remedy: "checkpoint from the ancestor on that made the session, or start it by setsid",
    }
    GROUP_OUTSIDE {
        what: "descendants in several process groups from outside of the tree",
        why: "its group comes from outside of the tree, and another process is not in it",
        remedy: "checkpoint from the ancestor on that made the group, or wait until it has ended",
    }
    GROUP_LEFT {
        what: "process group that its first process has left",
        why: "the process that made the group is in another one now",
        remedy: "checkpoint it when the processes of that group have ended",
    }
    MISPLACED {
        what: "orphan that reached its parent past another that gets orphans",
        why: "it came to its parent from a session whose processes now leave their orphans to \
            another (PR_SET_CHILD_SUBREAPER)",
        remedy: "checkpoint it when the orphan has ended",
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
    EXECUTABLE_IN_MEMORY {
        what: "program that was executed from memory",
        why: "its executable is a memfd, which no name leads to",
        remedy: "execute it from a file",
    }
    NOT_EXECUTABLE {
        what: "executable that may not be executed any more",
        why: "its file has lost the permission to be executed, or lies on a mount without it (noexec), \
            and the kernel takes no such file for a clone's executable",
        remedy: "give the permission back (chmod +x), or mount it with exec",
    }
    POSIX_TIMERS {
        what: "timer of timer_create, before Linux 6.15",
        why: "only a kernel from 6.15 on makes a timer with the number that a program knows it by \
            (PR_TIMER_CREATE_RESTORE_IDS)",
        remedy: "use Linux 6.15 or later, or timerfd_create or setitimer instead",
    }
    TRACED {
        what: "process or thread under a debugger",
        why: "a debugger traces it",
        remedy: "detach the debugger",
    }
}
