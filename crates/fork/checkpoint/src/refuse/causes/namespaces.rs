//! Namespaces, which confine a process or show it another machine.

causes! {
    HOST_NAME {
        what: "host name of its own",
        why: "it has a host name of its own, and a clone has that of its node",
        remedy: "run the program without unshare --uts, or farfork in its namespace \
            (nsenter --uts)",
    }
    IPC {
        what: "another IPC namespace, where farfork is not root",
        why: "farfork may not enter its IPC namespace to look at what is in it",
        remedy: "run farfork as root, or in that namespace (nsenter --ipc)",
    }
    IPC_COMPANY {
        what: "IPC namespace with other processes in it, apart from farfork's",
        why: "it is in the IPC namespace of the process too, whose objects a clone would have for \
            itself",
        remedy: "checkpoint all that are in it as a tree (--tree), run the program without \
            unshare --ipc, or farfork in its namespace (nsenter --ipc)",
    }
    IPC_SHARED {
        what: "object of System V that another process used, too",
        why: "another process was among the last to use it, and a clone's would be its own",
        remedy: "checkpoint both as a tree (--tree), or let one of them work with objects of its own",
    }
    OF_THREAD {
        what: "mount, network or IPC namespace of a single thread",
        why: "the thread is in another namespace than the first one, where its clone would be",
        remedy: "checkpoint it when the thread has ended or gone back (setns)",
    }
    PID_FOR_CHILDREN {
        what: "another PID namespace for children",
        why: "its children are to be in a PID namespace of their own, and those of a clone would \
            not",
        remedy: "run the program without unshare(CLONE_NEWPID)",
    }
}
