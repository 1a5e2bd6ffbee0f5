//! Namespaces, which confine a process or show it another machine.

causes! {
    HOST_NAME {
        what: "host name of its own",
        why: "it has a host name of its own, and a clone has that of its node",
        remedy: "run the program without unshare --uts, or run farfork in its namespace (nsenter \
            --uts)",
    }
    IPC {
        what: "another IPC namespace, where farfork is not root",
        why: "farfork may not enter its IPC namespace to read the objects in it",
        remedy: "run farfork as root, or in that namespace (nsenter --ipc)",
    }
    IPC_COMPANY {
        what: "IPC namespace that other processes share, unless it is farfork's",
        why: "it is in the same IPC namespace, and a clone would get copies of the objects in it",
        remedy: "checkpoint all its processes as a tree (--tree), run the program without \
            unshare --ipc, or run farfork in its namespace (nsenter --ipc)",
    }
    IPC_SHARED {
        what: "System V object that another process used, too",
        why: "another process was among the last to use it, and a clone would get a copy",
        remedy: "checkpoint both as a tree (--tree), or let one of them use objects of its own",
    }
    OF_THREAD {
        what: "mount, network or IPC namespace of a single thread",
        why: "the thread is in another namespace than the main thread, and its clone would not be",
        remedy: "checkpoint it when the thread has exited or returned (setns)",
    }
    PID_FOR_CHILDREN {
        what: "another PID namespace for children",
        why: "its future children get a PID namespace of their own, and those of a clone would \
            not",
        remedy: "run the program without unshare(CLONE_NEWPID)",
    }
}
